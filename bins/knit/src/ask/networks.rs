//! `knit networks`, `knit capacity`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{Asking, print, words};
use crate::output;

/// Which networks.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    asking: Asking,
    /// Only networks that pods of this namespace can use
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Whose room.
#[derive(Debug, Args)]
pub struct Room {
    #[command(flatten)]
    asking: Asking,
    /// Only this network
    network: Option<String>,
    /// Only networks of this namespace
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Prints the networks.
pub async fn run(which: &Which) -> Result<ExitCode> {
    let request = v1::ListNetworksRequest { namespace: which.namespace.clone().unwrap_or_default() };
    let answer = which.asking.connect().await?.list_networks(request).await?;
    print(which.asking.output, || json::value(&answer), |wide| table(&answer.networks, wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints how much room there is.
pub async fn room(which: &Room) -> Result<ExitCode> {
    let request = v1::GetCapacityRequest {
        network: which.network.clone().unwrap_or_default(),
        namespace: which.namespace.clone().unwrap_or_default(),
    };
    let answer = which.asking.connect().await?.get_capacity(request).await?;
    print(which.asking.output, || json::value(&answer), |wide| capacity(&answer, wide))?;
    Ok(if answer.no_more_pods { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(networks: &[v1::Network], wide: bool) -> String {
    if networks.is_empty() {
        return "no networks\n".to_owned();
    }
    let mut header = vec!["NAMESPACE", "NAME", "READY", "RANGES", "USED", "FREE"];
    if wide {
        header.extend(["MTU", "TRANSPORT", "LINK", "INTERFACES", "DESCRIBED BY"]);
    }
    output::table(&header, networks.iter().map(|network| row(network, wide)))
}

fn row(network: &v1::Network, wide: bool) -> Vec<String> {
    // A pod takes one address of each family: the scarcer one says how many more fit.
    let most =
        |number: fn(&v1::Capacity) -> u64| network.capacity.iter().map(number).max().unwrap_or_default();
    let free = network.capacity.iter().map(|capacity| capacity.free).min().unwrap_or_default();
    let name = if network.default { format!("{} (default)", network.name) } else { network.name.clone() };
    let mut row = vec![
        network.namespace.clone(),
        name,
        words::ready(network.readiness.as_ref()),
        network.ranges.join(","),
        most(|capacity| capacity.used).to_string(),
        number(free),
    ];
    if wide {
        row.extend([network.mtu.to_string(), network.transport.clone(), network.link.clone()]);
        row.extend([network.interfaces.to_string(), network.object.clone()]);
    }
    row
}

fn capacity(answer: &v1::GetCapacityResponse, wide: bool) -> String {
    let mut header = vec!["NETWORK", "FAMILY", "TOTAL", "USED", "FREE"];
    if wide {
        header.push("COOLING");
    }
    let rows = answer.networks.iter().map(|room| {
        let family = match room.family() {
            v1::Family::Ipv4 => "IPv4",
            v1::Family::Ipv6 => "IPv6",
            v1::Family::Unspecified => "",
        };
        let name = words::titled(&room.namespace, &room.network);
        let mut row = vec![name, family.to_owned(), number(room.total), number(room.used), number(room.free)];
        if wide {
            row.push(number(room.cooling));
        }
        row
    });
    let mut text = output::table(&header, rows);
    if answer.no_more_pods {
        text += "no more pods\n";
    }
    text.extend(words::complaints(&answer.reasons).map(|complaint| format!("  {complaint}\n")));
    text
}

/// A count. Nobody reads twenty digits, and what does not fit was cut off anyway.
fn number(count: u64) -> String {
    if count > u64::from(u32::MAX) { "plenty".to_owned() } else { count.to_string() }
}
