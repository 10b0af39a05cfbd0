//! `knit networks`, `knit capacity`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{ClientArgs, format, print};
use crate::output;

/// The arguments of `knit networks`.
#[derive(Debug, Args)]
pub struct NetworksArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only networks that pods of this namespace can use
    #[arg(short, long)]
    namespace: Option<String>,
}

/// The arguments of `knit capacity`.
#[derive(Debug, Args)]
pub struct CapacityArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this network
    network: Option<String>,
    /// Only networks of this namespace
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Prints the networks.
pub async fn run(args: &NetworksArgs) -> Result<ExitCode> {
    let request = v1::ListNetworksRequest { namespace: args.namespace.clone().unwrap_or_default() };
    let response = args.client.connect().await?.list_networks(request).await?;
    print(args.client.output, || json::value(&response), |wide| table(&response.networks, wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the address capacity.
pub async fn capacity(args: &CapacityArgs) -> Result<ExitCode> {
    let request = v1::GetCapacityRequest {
        network: args.network.clone().unwrap_or_default(),
        namespace: args.namespace.clone().unwrap_or_default(),
    };
    let response = args.client.connect().await?.get_capacity(request).await?;
    print(args.client.output, || json::value(&response), |wide| capacity_table(&response, wide))?;
    Ok(if response.no_more_pods { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(networks: &[v1::Network], wide: bool) -> String {
    if networks.is_empty() {
        return "no networks\n".to_owned();
    }
    let mut header = vec!["NAMESPACE", "NAME", "READY", "RANGES", "USED", "FREE"];
    if wide {
        header.extend(["MTU", "TRANSPORT", "LINK", "INTERFACES", "OBJECT"]);
    }
    output::table(&header, networks.iter().map(|network| row(network, wide)))
}

fn row(network: &v1::Network, wide: bool) -> Vec<String> {
    // A pod takes one address of each family, so the scarcer family limits the number of pods.
    let max =
        |number: fn(&v1::Capacity) -> u64| network.capacity.iter().map(number).max().unwrap_or_default();
    let free = network.capacity.iter().map(|capacity| capacity.free).min().unwrap_or_default();
    let name = if network.default { format!("{} (default)", network.name) } else { network.name.clone() };
    let mut row = vec![
        network.namespace.clone(),
        name,
        format::ready(network.readiness.as_ref()),
        network.ranges.join(","),
        max(|capacity| capacity.used).to_string(),
        number(free),
    ];
    if wide {
        row.extend([network.mtu.to_string(), network.transport.clone(), network.link.clone()]);
        row.extend([network.interfaces.to_string(), network.object.clone()]);
    }
    row
}

fn capacity_table(response: &v1::GetCapacityResponse, wide: bool) -> String {
    let mut header = vec!["NETWORK", "FAMILY", "TOTAL", "USED", "FREE"];
    if wide {
        header.push("COOLING");
    }
    let rows = response.networks.iter().map(|capacity| {
        let family = match capacity.family() {
            v1::Family::Ipv4 => "IPv4",
            v1::Family::Ipv6 => "IPv6",
            v1::Family::Unspecified => "",
        };
        let name = format::qualified_name(&capacity.namespace, &capacity.network);
        let mut row = vec![
            name,
            family.to_owned(),
            number(capacity.total),
            number(capacity.used),
            number(capacity.free),
        ];
        if wide {
            row.push(number(capacity.cooling));
        }
        row
    });
    let mut text = output::table(&header, rows);
    if response.no_more_pods {
        text += "no more pods\n";
    }
    text.extend(format::failures(&response.reasons).map(|failure| format!("  {failure}\n")));
    text
}

/// A count. Counts above 2^32 are not printed: IPv6 ranges saturate the counter.
fn number(count: u64) -> String {
    if count > u64::from(u32::MAX) { ">4G".to_owned() } else { count.to_string() }
}
