//! `knit pods`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{ClientArgs, format, print};
use crate::output;
use crate::sandbox::parse_label;

/// The arguments of `knit pods`.
#[derive(Debug, Args)]
pub struct PodsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// Only pods on this network
    #[arg(long)]
    network: Option<String>,
    /// Only pods with this label; may be repeated
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

/// Prints the pods.
pub async fn run(args: &PodsArgs) -> Result<ExitCode> {
    let request = v1::ListPodsRequest {
        namespace: args.namespace.clone().unwrap_or_default(),
        network: args.network.clone().unwrap_or_default(),
        labels: args.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        without_extension: String::new(),
    };
    let response = args.client.connect().await?.list_pods(request).await?;
    print(args.client.output, || json::value(&response), |wide| table(&response.pods, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn table(pods: &[v1::Pod], wide: bool) -> String {
    if pods.is_empty() {
        return "no pods\n".to_owned();
    }
    let mut header = vec!["NAMESPACE", "NAME", "READY", "INTERFACES", "ADDRESSES", "AGE"];
    if wide {
        header.extend(["NETWORKS", "ID", "NETNS"]);
    }
    output::table(&header, pods.iter().map(|pod| row(pod, wide)))
}

fn row(pod: &v1::Pod, wide: bool) -> Vec<String> {
    let each = |column: fn(&v1::Interface) -> String| {
        let values: Vec<String> =
            pod.interfaces.iter().map(column).filter(|value| !value.is_empty()).collect();
        values.join(",")
    };
    let addresses = |interface: &v1::Interface| {
        interface.addresses.iter().map(|address| address.address.clone()).collect::<Vec<_>>().join(",")
    };
    let mut row = vec![
        pod.namespace.clone(),
        pod.name.clone(),
        format::ready(pod.readiness.as_ref()),
        each(|interface| interface.name.clone()),
        each(addresses),
        format::age(pod.since.as_ref(), SystemTime::now()),
    ];
    if wide {
        row.push(each(|interface| format::qualified_name(&interface.network_namespace, &interface.network)));
        row.extend([pod.id.clone(), pod.netns_path.clone()]);
    }
    row
}
