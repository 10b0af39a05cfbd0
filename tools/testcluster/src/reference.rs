//! The reference network that Knit is compared with: Debian's bridge, host-local and portmap plugins, static routes
//! between the nodes, kube-proxy in nftables mode, and CoreDNS.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::api::{self, NodeView};
use super::daemon::{self, Daemon, Look};
use super::images::COREDNS;
use super::layout::{DNS_SERVICE, DNS_SERVICE_V6, DOMAIN, node_name};
use super::state::{Cluster, Network};
use super::{keys, node};
use crate::go_tools::Tool;
use knit_dev::process;

/// Where Debian keeps the reference plugins, and which of them are used.
const PLUGINS: &str = "/usr/lib/cni";
const USED_PLUGINS: [&str; 3] = ["bridge", "host-local", "portmap"];

/// The part that turns Services into rules on a node.
pub fn proxy_part(node: u8) -> String {
    format!("kube-proxy-{}", node_name(node))
}

/// Connects pods: plugins and their settings on each node, routes to every node's pods from everywhere else.
pub fn install(cluster: &Cluster, nodes: &[NodeView]) -> Result<()> {
    for number in cluster.node_numbers() {
        install_plugins(cluster, number, pod_ranges(nodes, number)?)?;
    }
    install_services(cluster, nodes)
}

/// Routes to every node's pods from everywhere else, unless Knit makes those of the nodes, and kube-proxy.
pub fn install_services(cluster: &Cluster, nodes: &[NodeView]) -> Result<()> {
    for number in cluster.node_numbers() {
        let ranges = pod_ranges(nodes, number)?;
        let addresses = cluster.addresses();
        for (range, by) in
            ranges.iter().zip([addresses.node(number).to_string(), addresses.node_v6(number).to_string()])
        {
            // The API server reaches pods too.
            process::output(Command::new("ip").args(["route", "add", range, "via", &by]))?;
            let others = cluster.node_numbers().filter(|other| *other != number);
            for other in others.filter(|_| cluster.network != Network::Knit) {
                let mut enter = daemon::enter(node::holder(cluster, other)?);
                process::output(enter.args(["ip", "route", "add", range, "via", &by]))?;
            }
        }
        start_proxy(cluster, number)?;
    }
    Ok(())
}

/// Routes from a node that has rebooted to the pods of all others, unless Knit makes them, and its kube-proxy.
pub fn connect_again(cluster: &Cluster, nodes: &[NodeView], number: u8) -> Result<()> {
    let addresses = cluster.addresses();
    let others = cluster.node_numbers().filter(|other| *other != number);
    for other in others.filter(|_| cluster.network != Network::Knit) {
        let by = [addresses.node(other).to_string(), addresses.node_v6(other).to_string()];
        for (range, by) in pod_ranges(nodes, other)?.iter().zip(by) {
            let mut enter = daemon::enter(node::holder(cluster, number)?);
            process::output(enter.args(["ip", "route", "add", range, "via", &by]))?;
        }
    }
    start_proxy(cluster, number)
}

/// The ranges that a node gives its pods addresses from.
pub fn pod_ranges(nodes: &[NodeView], number: u8) -> Result<&[String]> {
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

/// Gives a node the plugins and their settings.
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
    // The runtime watches the folder: it must never see half a file.
    let unfinished = folder.join(".reference");
    fs::write(&unfinished, serde_json::to_vec_pretty(&list)?)?;
    fs::rename(unfinished, folder.join("10-reference.conflist"))?;
    Ok(())
}

fn start_proxy(cluster: &Cluster, number: u8) -> Result<()> {
    let (v4, v6) = cluster.addresses().pods();
    let config = cluster.node_folder(number, "kube-proxy.json");
    let settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": keys::kubeconfig(cluster, keys::PROXY)},
        "hostnameOverride": node_name(number),
        "clusterCIDR": format!("{v4},{v6}"),
        // The limit of connections is the machine's, not the node's.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "oomScoreAdj": 0,
    });
    fs::write(&config, serde_json::to_vec_pretty(&settings)?)?;
    Daemon::new(proxy_part(number), cluster.tool(Tool::KubeProxy)?)
        .flag("config", &config)
        .inside(node::holder(cluster, number)?)
        .start(cluster)?;
    Ok(())
}

/// Hands CoreDNS to the cluster, without waiting for it.
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

/// Waits until every node gets an answer from the DNS Service, over both families.
pub fn wait_for_dns(cluster: &Cluster) -> Result<()> {
    let name = format!("kubernetes.default.svc.{DOMAIN}");
    for number in cluster.node_numbers() {
        let holder = node::holder(cluster, number)?;
        let parts = [proxy_part(number), node::kubelet_part(number)];
        for server in [DNS_SERVICE.to_string(), DNS_SERVICE_V6.to_string()] {
            let what = format!("CoreDNS answers {} at {server}", node_name(number));
            daemon::wait(cluster, &what, Duration::from_secs(120), &parts, || {
                let mut dig = daemon::enter(holder);
                dig.args(["dig", "+short", "+time=1", "+tries=1", &format!("@{server}"), &name]);
                let answer = process::output(&mut dig).unwrap_or_default();
                Ok(if answer.trim().parse::<std::net::Ipv4Addr>().is_ok() {
                    Look::Done(())
                } else {
                    Look::NotYet(format!("no answer for {name}; pods: {}", api::pods_of_dns(cluster)))
                })
            })?;
        }
    }
    Ok(())
}
