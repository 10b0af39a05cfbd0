//! `knit pods`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{Asking, print, words};
use crate::output;
use crate::sandbox::parse_label;

/// Which pods.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    asking: Asking,
    /// Only this namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// Only pods on this network
    #[arg(long)]
    network: Option<String>,
    /// Only pods with this label; may be given many times
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

/// Prints the pods.
pub async fn run(which: &Which) -> Result<ExitCode> {
    let request = v1::ListPodsRequest {
        namespace: which.namespace.clone().unwrap_or_default(),
        network: which.network.clone().unwrap_or_default(),
        labels: which.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
        without_extension: String::new(),
    };
    let answer = which.asking.connect().await?.list_pods(request).await?;
    print(which.asking.output, || json::value(&answer), |wide| table(&answer.pods, wide))?;
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
    let each = |word: fn(&v1::Interface) -> String| {
        let words: Vec<String> = pod.interfaces.iter().map(word).filter(|word| !word.is_empty()).collect();
        words.join(",")
    };
    let addresses = |interface: &v1::Interface| {
        interface.addresses.iter().map(|address| address.address.clone()).collect::<Vec<_>>().join(",")
    };
    let mut row = vec![
        pod.namespace.clone(),
        pod.name.clone(),
        words::ready(pod.readiness.as_ref()),
        each(|interface| interface.name.clone()),
        each(addresses),
        words::age(pod.since.as_ref(), SystemTime::now()),
    ];
    if wide {
        row.push(each(|interface| words::titled(&interface.network_namespace, &interface.network)));
        row.extend([pod.id.clone(), pod.netns_path.clone()]);
    }
    row
}
