//! The cluster's nodes, where Knit is the cluster's network: this node's pod ranges, and the ways to the other nodes' pods.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as ApiNode;
use knit_kernel::Netns;
use knit_kernel::ways::{Way, link_with, way_to};
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use knit_model::IfName;
use knit_model::intent::PeerWant;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::Shared;
use crate::config::{ClusterNetworkConfig, Profile};
use crate::daemon::{Cluster, Outside};

/// The ways are looked at again this often: a link of the node may be another by now.
const LOOK: Duration = Duration::from_secs(30);
/// What is in the way of pods while the node has no range.
const RANGE: &str = "PodRangeGiven";

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    ranges: Vec<IpNet>,
    addresses: Vec<IpAddr>,
}

type All = Arc<Mutex<BTreeMap<String, Known>>>;

/// Watches all nodes, and has the cluster's network as they say.
pub(super) async fn follow(shared: Shared, config: ClusterNetworkConfig) {
    let (all, changed) = (All::default(), Arc::new(Notify::new()));
    missing(&shared, "the API server has not told of this node yet");
    tokio::spawn(keep(shared.clone(), config, Arc::clone(&all), Arc::clone(&changed)));
    let api: Api<ApiNode> = Api::all(shared.client.clone());
    let tell = |seen: Seen<ApiNode>| {
        let mut known = all.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.clone();
        match seen {
            Seen::Listed(nodes) => *known = nodes.iter().map(read).collect(),
            Seen::Applied(node) => known.extend([read(&node)]),
            Seen::Deleted(node) => {
                known.remove(&node.metadata.name.unwrap_or_default());
            }
        }
        // Nodes tell how they are all the time.
        if *known != before {
            changed.notify_one();
        }
    };
    knit_kube::follow("nodes", api, watcher::Config::default(), tell).await;
}

fn read(node: &ApiNode) -> (String, Known) {
    let spec = node.spec.clone().unwrap_or_default();
    let ranges = spec.pod_cidrs.unwrap_or_default();
    let addresses = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
    let own = addresses.iter().filter(|address| address.type_ == "InternalIP");
    let known = Known {
        ranges: ranges.iter().filter_map(|range| range.parse().ok()).collect(),
        addresses: own.filter_map(|address| address.address.parse().ok()).collect(),
    };
    (node.metadata.name.clone().unwrap_or_default(), known)
}

/// Has the cluster's network as nodes and links are now, whenever they change.
async fn keep(shared: Shared, config: ClusterNetworkConfig, all: All, changed: Arc<Notify>) {
    let mut told = None;
    loop {
        let _ = tokio::time::timeout(LOOK, changed.notified()).await;
        let nodes = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(own) = nodes.get(&*shared.node).cloned() else { continue };
        if own.ranges.is_empty() {
            missing(&shared, "the cluster gave this node no pod range (spec.podCIDRs is empty)");
            continue;
        }
        let (node, config) = (Arc::clone(&shared.node), config.clone());
        let Ok(found) = spawn_blocking(move || network(&node, &own, &nodes, &config)).await else { continue };
        let cluster = match found {
            Ok(cluster) => cluster,
            Err(why) => {
                tracing::warn!(%why, "the ways to other nodes cannot be found: they stay as they are");
                continue;
            }
        };
        if told.as_ref() == Some(&cluster) {
            continue;
        }
        match shared.handle.set_cluster(Some(cluster.clone())).await {
            Ok(()) => {
                shared.handle.set_outside(RANGE, None);
                told = Some(cluster);
            }
            Err(why) => {
                tracing::error!(%why, "the cluster's network stays as it is");
                missing(&shared, &why);
            }
        }
    }
}

/// Pods cannot come yet.
fn missing(shared: &Shared, why: &str) {
    let outside = Outside { what: RANGE, reason: "NotReady", message: why.to_owned() };
    shared.handle.set_outside(RANGE, Some(outside));
}

/// The cluster's network of this node. Asks the kernel for the ways.
fn network(
    node: &str,
    own: &Known,
    nodes: &BTreeMap<String, Known>,
    config: &ClusterNetworkConfig,
) -> Result<Cluster, String> {
    let host = Netns::current().map_err(|why| why.to_string())?;
    let bridge = IfName::new(config.bridge.as_str()).map_err(|why| why.to_string())?;
    let mut peers = Vec::new();
    for (name, peer) in nodes.iter().filter(|(name, peer)| *name != node && !peer.ranges.is_empty()) {
        let mut addresses = Vec::new();
        for address in &peer.addresses {
            // A router on the way would know nothing of pods.
            if let Some(Way { link, gateway: None }) =
                way_to(&host, *address).map_err(|why| why.to_string())?
            {
                addresses.push((*address, link));
            }
        }
        peers.push(PeerWant { name: name.clone(), ranges: peer.ranges.clone(), addresses });
    }
    let mtu = config.mtu.or_else(|| own.addresses.iter().find_map(|address| mtu_at(&host, *address)));
    Ok(Cluster::new(&own.ranges, &bridge, mtu, &config.ways(Profile::Primary, peers)))
}

/// The MTU of the link that has an address of the node.
fn mtu_at(host: &Netns, address: IpAddr) -> Option<u32> {
    let link = link_with(host, address).ok().flatten()?;
    std::fs::read_to_string(format!("/sys/class/net/{link}/mtu")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_its_ranges_and_its_own_addresses() {
        let node: ApiNode = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"podCIDRs": ["10.1.0.0/24", "fd01::/64", "nonsense"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "a"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "2001:db8::1"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
            ]},
        }))
        .unwrap();
        let (name, known) = read(&node);
        assert_eq!(name, "a");
        assert_eq!(known.ranges, ["10.1.0.0/24".parse::<IpNet>().unwrap(), "fd01::/64".parse().unwrap()]);
        let addresses: Vec<String> = known.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
    }
}
