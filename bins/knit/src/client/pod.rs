//! `knit pod`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{ClientArgs, format, print};
use crate::node_args::DEFAULT_NAMESPACE;

/// The arguments of `knit pod`.
#[derive(Debug, Args)]
pub struct PodArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    pod: PodSelector,
}

/// A pod by its name or sandbox id.
#[derive(Debug, Args)]
pub struct PodSelector {
    /// Name of the pod
    #[arg(required_unless_present = "id")]
    name: Option<String>,
    /// Namespace of the pod
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Sandbox id, instead of the name
    #[arg(long, conflicts_with = "name")]
    id: Option<String>,
}

impl PodSelector {
    /// The reference in a request.
    fn reference(&self) -> v1::PodRef {
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
pub async fn run(args: &PodArgs) -> Result<ExitCode> {
    let request = v1::GetPodRequest { pod: Some(args.pod.reference()) };
    let response = args.client.connect().await?.get_pod(request).await?;
    let pod = response.pod.unwrap_or_default();
    print(args.client.output, || json::value(&pod), |wide| description(&pod, wide))?;
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
    line("Age", &format::age(pod.since.as_ref(), SystemTime::now()));
    line("Ready", format::yes_no(pod.readiness.as_ref().is_some_and(|readiness| readiness.ready)));
    for failure in pod.readiness.iter().flat_map(|readiness| format::failures(&readiness.conditions)) {
        line("Problem", &failure);
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
        text.extend(pod.interfaces.iter().map(|interface| interface_description(interface, wide)));
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
        _ if pod.netns_made => format!("{} (created by the agent)", pod.netns_path),
        _ => pod.netns_path.clone(),
    }
}

fn interface_description(interface: &v1::Interface, wide: bool) -> String {
    let mut head = format!("  {}: {}", interface.name, interface.kind);
    for (separator, part) in [
        (" on network ", format::qualified_name(&interface.network_namespace, &interface.network)),
        (", host side ", interface.host_link.clone()),
        (", port of ", interface.master.clone()),
    ] {
        if !part.is_empty() {
            head += &format!("{separator}{part}");
        }
    }
    let mut lines = vec![format!("mac {}, mtu {}", interface.mac, interface.mtu)];
    lines.extend(interface.addresses.iter().map(|address| format!("address {}", format::address(address))));
    lines.extend(interface.routes.iter().map(route));
    lines.extend(interface.port_mappings.iter().map(port));
    lines.extend(interface.bandwidth.iter().flat_map(limits));
    if wide {
        lines.extend(interface.sysctls.iter().map(|(name, value)| format!("sysctl {name} = {value}")));
    }
    if interface.foreign {
        lines.push("not created by Knit, but configured by it".to_owned());
    }
    lines.extend(interface.provenance.iter().map(|origin| format!("origin {}", format::provenance(origin))));
    lines.extend(format::failures(&interface.problems).map(|failure| format!("problem: {failure}")));
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
    format!("port {host}:{}/{protocol} -> {}", port.host_port, port.container_port)
}

fn limits(bandwidth: &v1::Bandwidth) -> Vec<String> {
    let limits = [("ingress", bandwidth.ingress_bits), ("egress", bandwidth.egress_bits)];
    let limits = limits.iter().filter(|(_, bits)| *bits != 0);
    limits.map(|(direction, bits)| format!("{direction} limit {}", format::rate(*bits))).collect()
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}
