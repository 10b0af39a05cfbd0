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
use knit_model::intent::{PeerWant, WaysWant};
use knit_model::problem::Problem;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;

use super::{Shared, room};
use crate::config::ClusterNetworkConfig;
use crate::daemon::{Cluster, Outside};

/// The ways are looked at again this often: a link of the node may be another by now.
const LOOK: Duration = Duration::from_secs(30);
/// So many nodes are listed with one answer: an answer is in memory as a whole, and nodes are large.
const PAGE: u32 = 100;
/// What is in the way of pods while the node has no range.
const RANGE: &str = "PodRangeGiven";

/// A range of pods whose node shares no link with this one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Apart {
    peer: String,
    range: IpNet,
}

type All = Arc<Mutex<BTreeMap<String, Known>>>;

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
    let all = All::default();
    missing(&shared, "the API server has not told of this node yet");
    tokio::spawn(keep(shared.clone(), config, Arc::clone(&all)));
    let (saying, said) = watch::channel(None);
    tokio::spawn(room::follow(shared.clone(), said));
    let tell = |seen: Seen<Brief>| {
        let told = match &seen {
            Seen::Listed(nodes) => &nodes[..],
            Seen::Applied(node) => std::slice::from_ref(node),
            Seen::Deleted(_) => &[],
        };
        if let Some(own) = told.iter().find(|node| *node.name() == *shared.node) {
            saying.send_replace(Some(own.said()));
        }
        let mut known = all.lock().unwrap_or_else(PoisonError::into_inner);
        // Nodes tell how they are all the time.
        let is_news = match seen {
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
        };
        if is_news {
            shared.ranges.changed.notify_one();
        }
    };
    let config = watcher::Config::default().page_size(PAGE);
    knit_kube::follow("nodes", Api::<Brief>::all(shared.client.clone()), config, tell).await;
}

/// Has the cluster's network as nodes and links are now, whenever they change.
async fn keep(shared: Shared, config: ClusterNetworkConfig, all: All) {
    let mut told = None;
    let mut apart = BTreeSet::new();
    loop {
        let _ = tokio::time::timeout(LOOK, shared.ranges.changed.notified()).await;
        let mut nodes = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(mut own) = nodes.remove(&*shared.node) else { continue };
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
            let why =
                "the cluster gave this node no pod range (spec.podCIDRs is empty), and there is no IpPool";
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
        let find = move || network(&own, &nodes, &config, ranges.pools);
        let Ok(found) = spawn_blocking(find).await else { continue };
        let cluster = match found {
            Ok((cluster, now)) => {
                tell_apart(&apart, &now);
                apart = now;
                cluster
            }
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

/// Says which nodes are not reached, and which are again.
fn tell_apart(before: &BTreeSet<Apart>, now: &BTreeSet<Apart>) {
    for Apart { peer, range } in now.difference(before) {
        let family = if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
        tracing::warn!(
            peer,
            %range,
            "pods of a node are not reached: none of its {family} addresses is on a link of this node"
        );
    }
    for Apart { peer, range } in before.difference(now) {
        tracing::info!(peer, %range, "a node is on a link of this one by now, or has gone");
    }
}

/// The ranges of nodes that share no link with this one.
fn apart(peers: &[PeerWant]) -> BTreeSet<Apart> {
    let of_peer = |peer: &PeerWant| {
        let is_apart = |range: &&IpNet| {
            peer.addresses.iter().all(|(address, _)| address.is_ipv4() != range.addr().is_ipv4())
        };
        let apart = |range: &IpNet| Apart { peer: peer.name.clone(), range: *range };
        peer.ranges.iter().filter(is_apart).map(apart).collect::<Vec<_>>()
    };
    peers.iter().flat_map(of_peer).collect()
}

/// The cluster's network of this node, and what of it is not reached. Asks the kernel for the ways.
fn network(
    own: &Known,
    others: &BTreeMap<String, Known>,
    config: &ClusterNetworkConfig,
    pools: Vec<IpNet>,
) -> Result<(Cluster, BTreeSet<Apart>), String> {
    let host = Netns::current().map_err(|why| why.to_string())?;
    let bridge = IfName::new(config.bridge.as_str()).map_err(|why| why.to_string())?;
    let links = Links::read(&host).map_err(|why| why.to_string())?;
    let others = others.iter().filter(|(_, peer)| !peer.ranges.is_empty());
    let peers = others.map(|(name, peer)| {
        // A router on the way would know nothing of pods.
        let on_link = |address: &IpAddr| Some((*address, links.with(*address)?.clone()));
        let addresses = peer.addresses.iter().filter_map(on_link).collect();
        PeerWant { name: name.clone(), ranges: peer.ranges.clone(), addresses }
    });
    let peers: Vec<PeerWant> = peers.collect();
    let mtu = config.mtu.or_else(|| own.addresses.iter().find_map(|address| mtu_at(&host, *address)));
    let apart = apart(&peers);
    let ways = WaysWant { pools, ..config.ways(peers) };
    Ok((Cluster::new(&own.ranges, &bridge, mtu, &ways), apart))
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
    fn a_range_is_apart_unless_an_address_of_its_family_is_on_a_link() {
        let peer = |name: &str, addresses: &[&str]| PeerWant {
            name: name.to_owned(),
            ranges: vec!["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
            addresses: addresses
                .iter()
                .map(|address| (address.parse().unwrap(), IfName::new("eth0").unwrap()))
                .collect(),
        };
        let peers = [peer("both", &["192.0.2.1", "2001:db8::1"]), peer("half", &["192.0.2.2"])];
        let found = apart(&peers);
        let words: Vec<_> = found.iter().map(|one| (one.peer.as_str(), one.range.to_string())).collect();
        assert_eq!(words, [("half", "fd01::/64".to_owned())]);
    }
}
