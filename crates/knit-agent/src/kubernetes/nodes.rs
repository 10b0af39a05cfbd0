//! The cluster's nodes, where Knit is the cluster's network: this node's pod ranges, and the ways to the other nodes' pods.

mod brief;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brief::{Brief, Known};
use ipnet::IpNet;
use knit_engine::pools::Ranges;
use knit_engine::{Event, blocks};
use knit_kernel::Netns;
use knit_kernel::ways::{Links, link_with};
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use knit_model::IfName;
use knit_model::intent::{LocalNode, NodeRoutesIntent, PeerNode, TunnelEndpoint};
use knit_model::problem::Problem;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;

use super::{Shared, room, told_key};
use crate::config::ClusterNetworkConfig;
use crate::daemon::{Cluster, Outside};

/// The ways are looked at again this often: a link of the node may be another by now.
const LOOK: Duration = Duration::from_secs(30);
/// So many nodes are listed with one answer: an answer is in memory as a whole, and nodes are large.
const PAGE: u32 = 100;
/// What is in the way of pods while the node has no range.
const RANGE: &str = "PodRangeGiven";

/// All nodes that there are, while they are watched.
pub(super) type All = Arc<Mutex<BTreeMap<String, Known>>>;

/// News of what the ranges of the cluster's network follow from: nodes, pools, and blocks of them.
#[derive(Default)]
pub(super) struct News {
    pub(super) changed: Notify,
    are_pools_known: AtomicBool,
}

impl News {
    /// The loop has heard which pools there are.
    pub(super) fn pools_are_known(&self) {
        self.are_pools_known.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// Watches all nodes, and has the cluster's network as they say.
pub(super) async fn follow(shared: Shared, config: ClusterNetworkConfig) {
    missing(&shared, "the API server has not told of this node yet");
    tokio::spawn(keep(shared.clone(), config));
    let (saying, said) = watch::channel(None);
    tokio::spawn(room::follow(shared.clone(), said));
    let (telling_key, told_key) = watch::channel(None);
    tokio::spawn(told_key::follow(shared.clone(), told_key));
    let tell = |seen: Seen<Brief>| {
        let told = match &seen {
            Seen::Listed(nodes) => &nodes[..],
            Seen::Applied(node) => std::slice::from_ref(node),
            Seen::Deleted(_) => &[],
        };
        if let Some(own) = told.iter().find(|node| *node.name() == *shared.node) {
            saying.send_replace(Some(own.said()));
            telling_key.send_replace(Some(own.told_key().map(str::to_owned)));
        }
        if take_in(&shared.nodes, seen) {
            shared.ranges.changed.notify_one();
            shared.spans.notify_one();
        }
    };
    watch_all(&shared, tell).await;
}

/// Watches all nodes where nothing but their addresses is of interest.
pub(super) async fn watch_addresses(shared: Shared) {
    let tell = |seen: Seen<Brief>| {
        if take_in(&shared.nodes, seen) {
            shared.spans.notify_one();
        }
    };
    watch_all(&shared, tell).await;
}

async fn watch_all(shared: &Shared, tell: impl FnMut(Seen<Brief>)) {
    let config = watcher::Config::default().page_size(PAGE);
    knit_kube::follow("nodes", Api::<Brief>::all(shared.client.clone()), config, tell).await;
}

/// Says whether it is news: nodes tell how they are all the time.
fn take_in(all: &All, seen: Seen<Brief>) -> bool {
    let mut known = all.lock().unwrap_or_else(PoisonError::into_inner);
    match seen {
        Seen::Listed(nodes) => {
            let listed = nodes.into_iter().map(Brief::split).collect();
            std::mem::replace(&mut *known, listed) != *known
        }
        Seen::Applied(node) => {
            let (name, now) = node.split();
            let before = known.insert(name.clone(), now);
            before.as_ref() != known.get(&name)
        }
        Seen::Deleted(node) => known.remove(&node.split().0).is_some(),
    }
}

/// Has the cluster's network as nodes and links are now, whenever they change.
async fn keep(shared: Shared, config: ClusterNetworkConfig) {
    let mut told = None;
    loop {
        let _ = tokio::time::timeout(LOOK, shared.ranges.changed.notified()).await;
        let mut nodes = shared.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ready: BTreeSet<String> =
            nodes.iter().filter(|(_, known)| known.is_ready).map(|(name, _)| name.clone()).collect();
        let Some(mut own) = nodes.remove(&*shared.node) else { continue };
        // The loop hears it each time: one that began anew does not know it.
        shared.handle.feed(move |_| vec![Event::Nodes(ready)]);
        if !shared.ranges.are_pools_known.load(Ordering::Relaxed) {
            missing(&shared, "the API server has not told yet which pools of addresses there are");
            continue;
        }
        let Ok(ranges) = ranges(&shared, own.ranges.clone()).await else { continue };
        if let Some(pool) = ranges.waits.first() {
            missing(&shared, &format!("this node waits for a block of the pool {pool}"));
            continue;
        }
        if ranges.own.is_empty() {
            let why = "the cluster gave this node no pod range (spec.podCIDRs is empty), and there is no PodAddressPool";
            missing(&shared, why);
            continue;
        }
        let mut config = config.clone();
        // What is of no pool may have pods all the same: those that another network made, or this one before it had pools.
        config.inside.append(&mut own.ranges);
        own.ranges = ranges.own;
        for (name, mut blocks) in ranges.others {
            if let Some(peer) = nodes.get_mut(&name) {
                peer.ranges.append(&mut blocks);
            }
        }
        let node = Arc::clone(&shared.node);
        let find = move || network(&node, &own, &nodes, &config, ranges.pools);
        let Ok(found) = spawn_blocking(find).await else { continue };
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

/// The ranges as pools and blocks are now.
async fn ranges(shared: &Shared, given: Vec<IpNet>) -> Result<Ranges, Problem> {
    let node = shared.node.to_string();
    // A loop that began anew does not know it.
    shared.handle.feed(move |_| vec![Event::Blocks(blocks::News::Pooled { node })]);
    shared.handle.ask(move |node| node.state().ranges(&given)).await
}

/// Pods cannot come yet.
fn missing(shared: &Shared, why: &str) {
    let outside = Outside { what: RANGE, reason: "NotReady", message: why.to_owned() };
    shared.handle.set_outside(RANGE, Some(outside));
}

/// The cluster's network of this node. Asks the kernel for links; which way each node is reached is decided elsewhere.
fn network(
    node: &str,
    own: &Known,
    others: &BTreeMap<String, Known>,
    config: &ClusterNetworkConfig,
    pools: Vec<IpNet>,
) -> Result<Cluster, String> {
    let host = Netns::current().map_err(|why| why.to_string())?;
    let bridge = IfName::new(config.bridge.as_str()).map_err(|why| why.to_string())?;
    let links = Links::read(&host).map_err(|why| why.to_string())?;
    let others = others.iter().filter(|(_, peer)| !peer.ranges.is_empty());
    let peers = others.map(|(name, peer)| {
        // A router on the way would know nothing of pods.
        let (near, far): (Vec<_>, Vec<_>) = peer
            .addresses
            .iter()
            .map(|address| (*address, links.with(*address)))
            .partition(|(_, link)| link.is_some());
        let near = near.into_iter().filter_map(|(address, link)| Some((address, link?.clone())));
        PeerNode {
            name: name.clone(),
            ranges: peer.ranges.clone(),
            addresses: near.collect(),
            far: far.into_iter().map(|(address, _)| address).collect(),
            key: peer.key,
        }
    });
    let ends = ends(&own.addresses, |address| mtu_at(&host, address));
    let mtu = config.mtu_over(&ends);
    let own_links =
        own_links(node, &own.addresses, &links, &bridge, |address| link_with(&host, address).ok().flatten());
    let ways = NodeRoutesIntent { pools, own: Some(own_links), ..config.ways(peers.collect(), node, ends) };
    Ok(Cluster::new(&own.ranges, &bridge, mtu, &ways))
}

/// This node as gateways need it: its own addresses, and what is on its links. Pods are not: they are on its bridge.
fn own_links(
    node: &str,
    own: &[IpAddr],
    links: &Links,
    bridge: &IfName,
    link_at: impl Fn(IpAddr) -> Option<IfName>,
) -> LocalNode {
    let addresses = own.iter().filter_map(|address| Some((*address, link_at(*address)?)));
    let links = links.ranges().filter(|(_, link)| *link != bridge);
    LocalNode {
        name: node.to_owned(),
        addresses: addresses.collect(),
        links: links.map(|(range, link)| (range, link.clone())).collect(),
    }
}

/// Where tunnels of this node begin: asks the kernel for links.
pub(super) fn ends_at(own: &[IpAddr]) -> Result<Vec<TunnelEndpoint>, String> {
    let host = Netns::current().map_err(|why| why.to_string())?;
    Ok(ends(own, |address| mtu_at(&host, address)))
}

/// The first address of each family that a link of this node has.
fn ends(own: &[IpAddr], mtu_at: impl Fn(IpAddr) -> Option<u32>) -> Vec<TunnelEndpoint> {
    let mut ends: Vec<TunnelEndpoint> = Vec::new();
    for address in own {
        if ends.iter().all(|end| end.address.is_ipv4() != address.is_ipv4())
            && let Some(mtu) = mtu_at(*address)
        {
            ends.push(TunnelEndpoint { address: *address, mtu });
        }
    }
    ends
}

/// The MTU of the link that has an address of the node.
fn mtu_at(host: &Netns, address: IpAddr) -> Option<u32> {
    let link = link_with(host, address).ok().flatten()?;
    std::fs::read_to_string(format!("/sys/class/net/{link}/mtu")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_begins_at_the_first_address_of_each_family() {
        let own: Vec<IpAddr> = ["2001:db8::1", "192.0.2.1", "192.0.2.9", "2001:db8::9"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        // No link has the first IPv4 address.
        let found = ends(&own, |address| (address != own[1]).then_some(1500));
        let found: Vec<String> = found.iter().map(|end| end.address.to_string()).collect();
        assert_eq!(found, ["2001:db8::1", "192.0.2.9"]);
    }
}
