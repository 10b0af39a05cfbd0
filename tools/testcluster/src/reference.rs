//! The reference network that Knit is compared with: Debian's bridge, host-local and portmap plugins, static routes
//! between the nodes, kube-proxy in nftables mode, and CoreDNS.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::api::{self, NodeSummary};
use super::daemon::{self, Daemon, Readiness};
use super::images::COREDNS;
use super::layout::{DNS_SERVICE, DNS_SERVICE_V6, DOMAIN, node_name};
use super::state::{Cluster, Network, ServiceProxy};
use super::{node, pki};
use crate::go_tools::Tool;
use knit_dev::process;

/// Debian's directory of CNI plugins, and the plugins that are used.
const PLUGINS: &str = "/usr/lib/cni";
const USED_PLUGINS: [&str; 3] = ["bridge", "host-local", "portmap"];

/// The component name of a node's kube-proxy.
pub fn proxy_component(node: u8) -> String {
    format!("kube-proxy-{}", node_name(node))
}

/// Installs plugins and their configuration on each node, routes between the nodes' pod ranges, and kube-proxy.
pub fn install(cluster: &Cluster, nodes: &[NodeSummary]) -> Result<()> {
    for number in cluster.node_numbers() {
        install_plugins(cluster, number, pod_ranges(nodes, number)?)?;
    }
    install_routes_and_proxy(cluster, nodes)
}

/// Adds routes to each node's pods on the host and, unless Knit manages node routes, on the other nodes; starts kube-proxy.
pub fn install_routes_and_proxy(cluster: &Cluster, nodes: &[NodeSummary]) -> Result<()> {
    for number in cluster.node_numbers() {
        let ranges = pod_ranges(nodes, number)?;
        let addresses = cluster.addresses();
        for (range, next_hop) in
            ranges.iter().zip([addresses.node(number).to_string(), addresses.node_v6(number).to_string()])
        {
            // The API server connects to pods too.
            process::output(Command::new("ip").args(["route", "add", range, "via", &next_hop]))?;
            let others = cluster.node_numbers().filter(|other| *other != number);
            for other in others.filter(|_| cluster.network != Network::Knit) {
                let mut enter = daemon::enter(node::init(cluster, other)?);
                process::output(enter.args(["ip", "route", "add", range, "via", &next_hop]))?;
            }
        }
        start_proxy(cluster, number)?;
    }
    Ok(())
}

/// Restores the routes of a rebooted node to the pods of the others, unless Knit manages node routes, and its kube-proxy.
pub fn reconnect_node(cluster: &Cluster, nodes: &[NodeSummary], number: u8) -> Result<()> {
    let addresses = cluster.addresses();
    let others = cluster.node_numbers().filter(|other| *other != number);
    for other in others.filter(|_| cluster.network != Network::Knit) {
        let next_hops = [addresses.node(other).to_string(), addresses.node_v6(other).to_string()];
        for (range, next_hop) in pod_ranges(nodes, other)?.iter().zip(next_hops) {
            let mut enter = daemon::enter(node::init(cluster, number)?);
            process::output(enter.args(["ip", "route", "add", range, "via", &next_hop]))?;
        }
    }
    start_proxy(cluster, number)
}

/// The pod ranges of a node.
pub fn pod_ranges(nodes: &[NodeSummary], number: u8) -> Result<&[String]> {
    let name = node_name(number);
    let view =
        nodes.iter().find(|node| node.name == name).with_context(|| format!("{name} is not registered"))?;
    ensure!(
        view.pod_ranges.len() == 2,
        "{name} has the pod ranges {:?} instead of one per family",
        view.pod_ranges
    );
    Ok(&view.pod_ranges)
}

/// Installs the plugins and their configuration on a node.
pub fn install_plugins(cluster: &Cluster, number: u8, ranges: &[String]) -> Result<()> {
    let programs = cluster.node_folder(number, "opt/cni/bin");
    fs::create_dir_all(&programs)?;
    for plugin in USED_PLUGINS {
        symlink(format!("{PLUGINS}/{plugin}"), programs.join(plugin))
            .with_context(|| format!("cannot install the plugin {plugin} on {}", node_name(number)))?;
    }
    let folder = cluster.node_folder(number, "etc/cni/net.d");
    fs::create_dir_all(&folder)?;
    let ranges: Vec<_> = ranges.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    let list = json!({
        "cniVersion": "1.0.0",
        "name": "reference",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    });
    // The runtime watches the directory: it must never read a partial file.
    let unfinished = folder.join(".reference");
    fs::write(&unfinished, serde_json::to_vec_pretty(&list)?)?;
    fs::rename(unfinished, folder.join("10-reference.conflist"))?;
    Ok(())
}

/// Starts kube-proxy on a node, unless Knit is in its place.
fn start_proxy(cluster: &Cluster, number: u8) -> Result<()> {
    match cluster.service_proxy {
        ServiceProxy::KubeProxy => start_kube_proxy(cluster, number),
        ServiceProxy::Knit => Ok(()),
    }
}

/// Starts kube-proxy on a node.
pub fn start_kube_proxy(cluster: &Cluster, number: u8) -> Result<()> {
    let (v4, v6) = cluster.addresses().pods();
    let config = cluster.node_folder(number, "kube-proxy.json");
    let settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": pki::kubeconfig(cluster, pki::PROXY)},
        "hostnameOverride": node_name(number),
        "clusterCIDR": format!("{v4},{v6}"),
        // The conntrack limit is global to the machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "oomScoreAdj": 0,
    });
    fs::write(&config, serde_json::to_vec_pretty(&settings)?)?;
    Daemon::new(proxy_component(number), cluster.tool(Tool::KubeProxy)?)
        .flag("config", &config)
        .in_node(node::init(cluster, number)?)
        .start(cluster)?;
    Ok(())
}

/// Installs CoreDNS, without waiting for it.
pub fn install_dns(cluster: &Cluster) -> Result<()> {
    let file = cluster.folder("coredns.yaml");
    let manifest = include_str!("coredns.yaml")
        .replace("@IMAGE@", COREDNS)
        .replace("@DOMAIN@", DOMAIN)
        .replace("@ADDRESS@", &DNS_SERVICE.to_string())
        .replace("@ADDRESS_V6@", &DNS_SERVICE_V6.to_string());
    fs::write(&file, manifest).with_context(|| format!("cannot write {}", file.display()))?;
    let mut apply = cluster.kubectl()?;
    apply.args(["create", "--request-timeout=60s", "-f"]).arg(&file).stdout(Stdio::null());
    process::output(&mut apply)?;
    Ok(())
}

/// Waits until the DNS Service answers every node, in both families.
pub fn wait_for_dns(cluster: &Cluster) -> Result<()> {
    let name = format!("kubernetes.default.svc.{DOMAIN}");
    for number in cluster.node_numbers() {
        let init = node::init(cluster, number)?;
        let proxy = (cluster.service_proxy == ServiceProxy::KubeProxy).then(|| proxy_component(number));
        let components: Vec<String> = proxy.into_iter().chain([node::kubelet_component(number)]).collect();
        for server in [DNS_SERVICE.to_string(), DNS_SERVICE_V6.to_string()] {
            let what = format!("CoreDNS answers {} at {server}", node_name(number));
            daemon::wait(cluster, &what, Duration::from_secs(120), &components, || {
                let mut dig = daemon::enter(init);
                dig.args(["dig", "+short", "+time=1", "+tries=1", &format!("@{server}"), &name]);
                let answer = process::output(&mut dig).unwrap_or_default();
                Ok(if answer.trim().parse::<std::net::Ipv4Addr>().is_ok() {
                    Readiness::Ready(())
                } else {
                    Readiness::NotYet(format!("no answer for {name}; pods: {}", api::dns_pod_status(cluster)))
                })
            })?;
        }
    }
    Ok(())
}
