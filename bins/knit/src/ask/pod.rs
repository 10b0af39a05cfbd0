//! `knit pod`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{Asking, print, words};
use crate::place::DEFAULT_NAMESPACE;

/// Which pod.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    asking: Asking,
    #[command(flatten)]
    name: Name,
}

/// A pod, by its name or its sandbox's id.
#[derive(Debug, Args)]
pub struct Name {
    /// The pod's name
    #[arg(required_unless_present = "id")]
    name: Option<String>,
    /// The pod's namespace
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// The sandbox's id, instead of the name
    #[arg(long, conflicts_with = "name")]
    id: Option<String>,
}

impl Name {
    /// As the agent is asked for it.
    pub fn reference(&self) -> v1::PodRef {
        match &self.id {
            Some(id) => v1::PodRef { id: id.clone(), ..v1::PodRef::default() },
            None => v1::PodRef {
                id: String::new(),
                name: self.name.clone().unwrap_or_default(),
                namespace: self.namespace.clone(),
            },
        }
    }
}

/// Prints the pod.
pub async fn run(which: &Which) -> Result<ExitCode> {
    let request = v1::GetPodRequest { pod: Some(which.name.reference()) };
    let answer = which.asking.connect().await?.get_pod(request).await?;
    let pod = answer.pod.unwrap_or_default();
    print(which.asking.output, || json::value(&pod), |wide| description(&pod, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn description(pod: &v1::Pod, wide: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            text += &format!("{:<12}{value}\n", format!("{name}:"));
        }
    };
    line("Name", &pod.name);
    line("Namespace", &pod.namespace);
    line("Id", &pod.id);
    line("Uid", &pod.uid);
    line("Isolation", &isolation(pod));
    line("Age", &words::age(pod.since.as_ref(), SystemTime::now()));
    line("Ready", words::yes_no(pod.readiness.as_ref().is_some_and(|readiness| readiness.ready)));
    for complaint in pod.readiness.iter().flat_map(|readiness| words::complaints(&readiness.conditions)) {
        line("Problem", &complaint);
    }
    line("Labels", &pairs(&pod.labels));
    if wide {
        line("Annotations", &pairs(&pod.annotations));
    }
    let dns = pod.dns.clone().unwrap_or_default();
    line("DNS", &dns.servers.join(" "));
    line("Search", &dns.searches.join(" "));
    line("Options", &dns.options.join(" "));
    if pod.interfaces.is_empty() {
        line("Interfaces", "none");
    } else {
        text += "Interfaces:\n";
        text.extend(pod.interfaces.iter().map(|interface| described(interface, wide)));
    }
    if !pod.extensions.is_empty() {
        text += "Extensions:\n";
        text.extend(pod.extensions.iter().map(|receipt| {
            let on = if receipt.interface.is_empty() { "" } else { " on " };
            let (name, phase, generation) = (&receipt.extension, &receipt.phase, receipt.generation);
            format!("  {name} {phase}{on}{}, generation {generation}\n", receipt.interface)
        }));
    }
    text
}

fn isolation(pod: &v1::Pod) -> String {
    match pod.isolation() {
        v1::IsolationKind::Tap => "virtual machine, tap".to_owned(),
        _ if pod.netns_made => format!("{} (made by the agent)", pod.netns_path),
        _ => pod.netns_path.clone(),
    }
}

fn described(interface: &v1::Interface, wide: bool) -> String {
    let mut head = format!("  {}: {}", interface.name, interface.kind);
    for (before, word) in [
        (" on network ", words::titled(&interface.network_namespace, &interface.network)),
        (", on the node ", interface.host_link.clone()),
        (", port of ", interface.master.clone()),
    ] {
        if !word.is_empty() {
            head += &format!("{before}{word}");
        }
    }
    let mut lines = vec![format!("mac {}, mtu {}", interface.mac, interface.mtu)];
    lines.extend(interface.addresses.iter().map(|address| format!("address {}", words::address(address))));
    lines.extend(interface.routes.iter().map(route));
    lines.extend(interface.port_mappings.iter().map(port));
    lines.extend(interface.bandwidth.iter().flat_map(limits));
    if wide {
        lines.extend(interface.sysctls.iter().map(|(name, value)| format!("sysctl {name} = {value}")));
    }
    if interface.foreign {
        lines.push("made by others, changed by Knit".to_owned());
    }
    lines.extend(interface.provenance.iter().map(|origin| format!("asked by {}", words::provenance(origin))));
    lines.extend(words::complaints(&interface.problems).map(|complaint| format!("problem: {complaint}")));
    lines.iter().fold(head + "\n", |text, line| text + "    " + line + "\n")
}

fn route(route: &v1::Route) -> String {
    let mut text = format!("route {}", route.destination);
    if !route.gateway.is_empty() {
        text += &format!(" via {}", route.gateway);
    }
    for (name, value) in [("metric", route.metric), ("table", route.table), ("mtu", route.mtu)] {
        if value != 0 {
            text += &format!(" {name} {value}");
        }
    }
    if !route.source.is_empty() {
        text += &format!(" from {}", route.source);
    }
    text
}

fn port(port: &v1::PortMapping) -> String {
    let protocol = match port.protocol() {
        v1::Protocol::Tcp => "tcp",
        v1::Protocol::Udp => "udp",
        v1::Protocol::Sctp => "sctp",
    };
    let host = if port.host_ip.is_empty() { "*" } else { &port.host_ip };
    format!("port {host}:{}/{protocol} leads to {}", port.host_port, port.container_port)
}

fn limits(bandwidth: &v1::Bandwidth) -> Vec<String> {
    let ways = [("into the pod", bandwidth.ingress_bits), ("out of the pod", bandwidth.egress_bits)];
    let limited = ways.iter().filter(|(_, bits)| *bits != 0);
    limited.map(|(way, bits)| format!("at most {} {way}", words::rate(*bits))).collect()
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
