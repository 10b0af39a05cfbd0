//! The cluster's nodes: all of them for the loop, and with the profile `primary` this node's pod ranges and links, from which the
//! cluster network follows.

mod node_summary;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::pools::PodRanges;
use knit_engine::services::ServiceEvent;
use knit_engine::{Event, blocks};
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use knit_model::IfName;
use knit_model::intent::{LocalNode, NodeRoutesIntent, TunnelEndpoint};
use knit_model::problem::Problem;
use node_summary::NodeSummary;
use tokio::sync::{Notify, watch};

use super::{Context, address_capacity, informers, published_key};
use crate::config::ClusterNetworkConfig;
use crate::daemon::{ClusterNetworkObject, ReadinessBlocker};
use crate::host::{HostLinks, NodeAddresses};

/// How often the node's links are read again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Page size of lists: a page is in memory as a whole, and Node objects are large.
const PAGE_SIZE: u32 = 100;
/// The readiness condition of a node without a pod range.
const POD_RANGE_CONDITION: &str = "PodRangeGiven";

/// Notifies about changes of the cluster network's inputs: this node, pools and blocks.
#[derive(Default)]
pub(super) struct NetworkInputs {
    pub(super) changed: Notify,
    are_pools_known: AtomicBool,
    own_node: Mutex<Option<NodeInfo>>,
}

impl NetworkInputs {
    /// This node.
    pub(super) fn own_node(&self) -> Option<NodeInfo> {
        self.own_node.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores this node. Returns whether it changed.
    fn set_own_node(&self, own: NodeInfo) -> bool {
        let mut known = self.own_node.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = known.as_ref() != Some(&own);
        *known = Some(own);
        is_new
    }

    /// The loop knows all pools.
    pub(super) fn set_pools_known(&self) {
        self.are_pools_known.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// Watches all nodes and keeps the cluster network up to date.
pub(super) async fn run(context: Context, config: ClusterNetworkConfig) {
    not_ready(&context, "waiting for this node's Node object");
    tokio::spawn(reconcile(context.clone(), config));
    tokio::spawn(read_own_node(context.clone()));
    let (capacity_sender, published_capacity) = watch::channel(None);
    tokio::spawn(address_capacity::run(context.clone(), published_capacity));
    let (key_sender, published_key) = watch::channel(None);
    tokio::spawn(published_key::run(context.clone(), published_key));
    let submit_topology = {
        let context = context.clone();
        move |own: &NodeSummary| {
            let node = own.service_facts();
            context.handle.submit(Event::Services(ServiceEvent::Node(node)));
        }
    };
    let on_own = |own: &NodeSummary| {
        capacity_sender.send_replace(Some(own.capacity()));
        key_sender.send_replace(Some(own.published_key().map(str::to_owned)));
        submit_topology(own);
    };
    watch_nodes(context, on_own).await;
}

/// Reads this node alone: a list of thousands of nodes takes seconds, and readiness must not depend on it. If that fails, the
/// list contains it.
async fn read_own_node(context: Context) {
    let api = Api::<NodeSummary>::all(context.client.clone());
    match api.get(&context.node).await {
        Ok(own) => {
            context.network_inputs.set_own_node(own.into_info(&context.node));
            context.network_inputs.changed.notify_one();
        }
        Err(why) => {
            tracing::debug!(error = %why, "cannot read this node's Node object; waiting for the list")
        }
    }
}

/// Submits all nodes and their changes to the loop, and calls `on_own` with each update of this node.
pub(super) async fn watch_nodes(context: Context, on_own: impl Fn(&NodeSummary)) {
    let handle = |seen: WatchUpdate<NodeSummary>| {
        let read = |node: NodeSummary| {
            let is_own = node.name() == &*context.node;
            if is_own {
                on_own(&node);
            }
            let info = node.into_info(&context.node);
            if is_own && context.network_inputs.set_own_node(info.clone()) {
                context.network_inputs.changed.notify_one();
                context.overlay_changed.notify_one();
            }
            info
        };
        let event = match seen {
            WatchUpdate::Listed(nodes) => NodeEvent::Listed(nodes.into_iter().map(read).collect()),
            WatchUpdate::Applied(node) => NodeEvent::Applied(read(node)),
            WatchUpdate::Deleted(node) => NodeEvent::Deleted(node.name().to_owned()),
        };
        context.handle.submit(Event::Nodes(event));
    };
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    let api = Api::<NodeSummary>::all(context.client.clone());
    informers::watch(&context.handle, "nodes", api, config, handle).await;
}

/// Reconciles the cluster network whenever this node, pools, blocks or links change.
async fn reconcile(context: Context, config: ClusterNetworkConfig) {
    let mut applied = None;
    loop {
        let _ = tokio::time::timeout(RESYNC_INTERVAL, context.network_inputs.changed.notified()).await;
        let Some(mut own) = context.network_inputs.own_node() else { continue };
        if !context.network_inputs.are_pools_known.load(Ordering::Relaxed) {
            not_ready(&context, "waiting for the list of address pools");
            continue;
        }
        let Ok(ranges) = ranges(&context, own.ranges.clone()).await else { continue };
        if let Some(pool) = ranges.pending_pools.first() {
            not_ready(&context, &format!("waiting for a block of address pool {pool}"));
            continue;
        }
        if ranges.own.is_empty() {
            let why = "the node has no pod range: spec.podCIDRs is empty and there is no PodAddressPool";
            not_ready(&context, why);
            continue;
        }
        let mut config = config.clone();
        // Ranges outside of all pools may still have pods: of another network, or from before there were pools.
        config.no_masquerade_ranges.append(&mut own.ranges);
        own.ranges = ranges.own;
        let links = match HostLinks::read(own.addresses.clone()).await {
            Ok(links) => links,
            Err(why) => {
                tracing::warn!(error = %why, "cannot read the node's links; routes to other nodes stay unchanged");
                continue;
            }
        };
        // The loop may have reopened its state, and compares them with what it knows.
        context.handle.submit(Event::Nodes(NodeEvent::Connected(links.routes.clone())));
        let found = network(&context.node, &own, &config, ranges.pools, &links);
        let cluster = match found {
            Ok(cluster) => cluster,
            Err(why) => {
                tracing::warn!(error = %why, "cannot compute the cluster network; it stays unchanged");
                continue;
            }
        };
        if applied.as_ref() == Some(&cluster) {
            continue;
        }
        match context.handle.set_cluster_network(Some(cluster.clone())).await {
            Ok(()) => {
                context.handle.set_readiness_blocker(POD_RANGE_CONDITION, None);
                applied = Some(cluster);
            }
            Err(why) => {
                tracing::error!(error = %why, "cannot change the cluster network");
                not_ready(&context, &why);
            }
        }
    }
}

/// The ranges as pools and blocks are now.
async fn ranges(context: &Context, given: Vec<IpNet>) -> Result<PodRanges, Problem> {
    let node = context.node.to_string();
    // The loop may have reopened its state.
    context.handle.submit(Event::Blocks(blocks::BlockEvent::UsePools { node }));
    context.handle.query(move |node| node.state().ranges(&given)).await
}

/// Reports that the node is not ready for pods.
fn not_ready(context: &Context, why: &str) {
    let blocker =
        ReadinessBlocker { condition: POD_RANGE_CONDITION, reason: "NotReady", message: why.to_owned() };
    context.handle.set_readiness_blocker(POD_RANGE_CONDITION, Some(blocker));
}

/// The cluster network of this node.
fn network(
    node: &str,
    own: &NodeInfo,
    config: &ClusterNetworkConfig,
    pools: Vec<IpNet>,
    links: &HostLinks,
) -> Result<ClusterNetworkObject, String> {
    let bridge = IfName::new(config.bridge.as_str()).map_err(|why| why.to_string())?;
    let endpoints = tunnel_endpoints(&own.addresses, &links.addresses);
    let mtu = config.mtu_over(&endpoints);
    let local_node = local_node(node, &own.addresses, links, &bridge);
    let routes =
        NodeRoutesIntent { pools, local_node: Some(local_node), ..config.node_routes(node, endpoints) };
    Ok(ClusterNetworkObject::new(&own.ranges, &bridge, mtu, Some(&routes)))
}

/// This node as egress gateways need it: its addresses, and the ranges on its links except the pod bridge.
fn local_node(node: &str, own: &[IpAddr], links: &HostLinks, bridge: &IfName) -> LocalNode {
    let link_of = |address: &IpAddr| Some((*address, links.addresses.get(address)?.name.clone()));
    let addresses = own.iter().filter_map(link_of);
    let links = links.routes.ranges().filter(|(_, link)| *link != bridge);
    LocalNode {
        name: node.to_owned(),
        addresses: addresses.collect(),
        links: links.map(|(range, link)| (range, link.clone())).collect(),
    }
}

/// The tunnel endpoints of this node: the first address of each family that one of its links has.
pub(super) fn tunnel_endpoints(own: &[IpAddr], on_links: &NodeAddresses) -> Vec<TunnelEndpoint> {
    let mut endpoints: Vec<TunnelEndpoint> = Vec::new();
    for address in own {
        if endpoints.iter().all(|endpoint| endpoint.address.is_ipv4() != address.is_ipv4())
            && let Some(mtu) = on_links.get(address).and_then(|link| link.mtu)
        {
            endpoints.push(TunnelEndpoint { address: *address, mtu });
        }
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use knit_model::connected_routes::ConnectedRoutes;
    use knit_model::intent::IntentSpec;

    use super::*;
    use crate::host::AddressedLink;

    #[test]
    fn the_cluster_network_has_the_addresses_and_links_of_this_node() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let eth0: IfName = "eth0".parse().unwrap();
        let own = NodeInfo {
            addresses: vec![address("192.0.2.1")],
            ranges: vec!["10.1.0.0/24".parse().unwrap()],
            ..NodeInfo::default()
        };
        let link = AddressedLink { name: eth0.clone(), mtu: Some(9000) };
        let links = HostLinks {
            addresses: [(own.addresses[0], link)].into(),
            routes: ConnectedRoutes::new([("192.0.2.0/24".parse().unwrap(), 0, Some(eth0.clone()))]),
        };
        let found = network("me", &own, &ClusterNetworkConfig::default(), Vec::new(), &links).unwrap();
        let routes = found.0.intents.iter().find_map(|intent| match &intent.spec {
            IntentSpec::NodeRoutes(routes) => Some(routes),
            _ => None,
        });
        let local = routes.unwrap().local_node.as_ref().unwrap();
        assert_eq!(local.addresses, [(own.addresses[0], eth0.clone())]);
        assert_eq!(local.links, [("192.0.2.0/24".parse().unwrap(), eth0)]);
    }

    #[test]
    fn tunnel_endpoints_are_the_first_address_of_each_family() {
        let own: Vec<IpAddr> = ["2001:db8::1", "192.0.2.1", "192.0.2.9", "2001:db8::9"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        // No link has the first IPv4 address.
        let link = |name: &str| AddressedLink { name: name.parse().unwrap(), mtu: Some(1500) };
        let on_links = [own[0], own[2], own[3]].map(|address| (address, link("eth0")));
        let found = tunnel_endpoints(&own, &on_links.into());
        let found: Vec<String> = found.iter().map(|endpoint| endpoint.address.to_string()).collect();
        assert_eq!(found, ["2001:db8::1", "192.0.2.9"]);
    }
}
