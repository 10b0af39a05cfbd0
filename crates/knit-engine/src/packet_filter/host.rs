//! What the host's tables are derived from: the features in use, and elements that no single pod owns.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::NodeRoutesIntent;
use knit_model::route::GatewayRoute;
use serde::{Deserialize, Serialize};

use super::elements::{self, Element};
use super::tables::{EgressNextHop, Features, NO_MASQUERADE, POD_RANGES, TUNNEL_PEERS};
use crate::cluster::ClusterNetwork;
use crate::egress::{EgressPath, EgressPaths};
use crate::event::Unit;
use crate::resolve;
use crate::state::State;

/// The desired tables, and elements that no single pod owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostFilter {
    pub(super) features: Features,
    /// Whether packets of the node's loopback may leave through the cluster bridge, for host ports.
    pub(super) loopback: bool,
    /// Ranges of pods that are masqueraded.
    pub(super) pod_ranges: Vec<IpNet>,
    /// Destinations that are reached with the pod's own address. Sorted and aggregated.
    pub(super) no_masquerade_ranges: Vec<IpNet>,
    /// Egress paths by namespace and by whether they are for IPv6.
    pub(super) egress_paths: EgressPaths,
    /// Egress paths of pods of other nodes.
    pub(super) remote_egress_paths: BTreeMap<IpAddr, EgressPath>,
    /// The bridge whose ports may use the fast path.
    pub(super) fast_path_bridge: Option<IfName>,
    pub(super) node_routes: Arc<[GatewayRoute]>,
    /// The addresses of other nodes with tunnels to this one. Sorted and aggregated.
    #[serde(default)]
    pub(super) tunnel_peers: Vec<IpNet>,
    /// The ranges of all pods of the cluster, for Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cluster_pod_ranges: Vec<IpNet>,
}

impl HostFilter {
    pub(super) fn of(state: &State) -> Self {
        let features = Features {
            guarded_ports: has_guarded_bridges(state),
            overlay: state.has_overlay_networks(),
            host_ports: !state.packet_filter.with_host_ports.is_empty(),
            tunnel_ports: tunnel_ports(state),
            policies: state.needs_policy_tables(),
            services: state.service_chains(),
            ..Features::default()
        };
        let tunnel_peers = if features.tunnel_ports.is_empty() { Vec::new() } else { tunnel_peers(state) };
        let Some(cluster) = state.cluster() else {
            return Self { features, tunnel_peers, ..Self::default() };
        };
        let guarded = cluster.node_routes.filter(|_| is_cluster_guarded(cluster));
        let egress_paths = state.egress_paths();
        let remote_egress_paths = state.remote_egress_paths(&egress_paths);
        let next_hops = egress_paths.values().flat_map(BTreeMap::values).filter_map(|path| match path {
            EgressPath::ViaNode { mark, via } => Some(EgressNextHop { mark: *mark, via: *via }),
            EgressPath::Local(_) | EgressPath::Blocked => None,
        });
        let egress = (!egress_paths.is_empty()).then(|| next_hops.collect());
        let pod_ranges = masqueraded_ranges(state, cluster);
        let is_chosen = state.namespaces.values().any(|options| options.masquerade == Some(true));
        let masquerade = !pod_ranges.is_empty() || is_chosen;
        let no_masquerade_ranges =
            if masquerade || egress.is_some() { no_masquerade_ranges(cluster) } else { Vec::new() };
        let has_bridge = state.units.contains_key(&Unit::Bridge(cluster.bridge_key()));
        let native = |node_routes| resolve::native_routes(cluster, node_routes).into();
        Self {
            loopback: has_bridge && features.host_ports,
            features: Features { bridge: Some(cluster.bridge.clone()), masquerade, egress, ..features },
            pod_ranges,
            no_masquerade_ranges,
            egress_paths,
            remote_egress_paths,
            fast_path_bridge: guarded.map(|_| cluster.bridge.clone()),
            node_routes: guarded.map(native).unwrap_or_default(),
            tunnel_peers,
            cluster_pod_ranges: if state.translates_services() {
                all_pod_ranges(cluster)
            } else {
                Vec::new()
            },
        }
    }

    /// The elements that no single pod owns.
    pub(super) fn elements(&self) -> Vec<Element> {
        let mut all = Vec::new();
        if self.features.masquerade {
            all.extend(elements::of_ranges(POD_RANGES, &self.pod_ranges));
        }
        if self.features.masquerade || self.features.egress.is_some() {
            all.extend(elements::of_ranges(NO_MASQUERADE, &self.no_masquerade_ranges));
        }
        all.extend(elements::of_ranges(TUNNEL_PEERS, &self.tunnel_peers));
        if let Some(chains) = &self.features.services {
            all.extend(elements::of_service_pods(&self.cluster_pod_ranges));
            all.extend(knit_service::chain_elements(chains));
        }
        let remote = self.remote_egress_paths.iter();
        all.extend(remote.flat_map(|(address, path)| elements::of_egress(*address, path)));
        all
    }
}

/// The UDP ports of this node's tunnels to other nodes.
fn tunnel_ports(state: &State) -> BTreeSet<u16> {
    let node_routes = state.cluster().and_then(|cluster| cluster.node_routes);
    let to_nodes = node_routes.and_then(|node_routes| node_routes.tunnel.as_ref()).map(|tunnel| tunnel.port);
    let encrypted = node_routes.and_then(|node_routes| node_routes.encryption.as_ref());
    let encrypted = encrypted.map(|encryption| encryption.port);
    let overlay = state.underlay.as_ref().filter(|_| state.has_overlay_networks());
    [to_nodes, encrypted, overlay.map(|underlay| underlay.local.port)].into_iter().flatten().collect()
}

/// The addresses from which other nodes send to them.
fn tunnel_peers(state: &State) -> Vec<IpNet> {
    let cluster = state.cluster().filter(|cluster| cluster.node_routes.is_some());
    let peers = cluster.into_iter().flat_map(|cluster| cluster.peers.values());
    let members = state.underlay.iter().flat_map(|underlay| underlay.nodes.values().flatten().copied());
    let all = peers.flat_map(|peer| peer.all_addresses()).chain(members).map(IpNet::from);
    IpNet::aggregate(&all.collect())
}

/// Whether a bridge with anti-spoofing exists, is about to, or could not be created. Bridges sort before all other units.
pub(super) fn has_guarded_bridges(state: &State) -> bool {
    let is_guarded = |unit: &Unit| {
        matches!(unit, Unit::Bridge(key) if state.cluster().is_none_or(|cluster| {
            cluster.bridge_key() != *key || is_cluster_guarded(cluster)
        }))
    };
    let is_bridge = |unit: &Unit| matches!(unit, Unit::Bridge(_));
    let applied = state.units.keys().take_while(|unit| is_bridge(unit));
    let failed = state.problems.keys().take_while(|unit| is_bridge(unit));
    let in_flight = state.in_flight.iter().take_while(|(unit, _)| is_bridge(unit));
    let in_flight = in_flight.filter(|(_, change)| change.resolved.unit_state.bridge.is_some());
    let queued = state.dirty.iter().take_while(|unit| is_bridge(unit));
    let queued = queued.filter(|unit| matches!(unit, Unit::Bridge(key) if resolve::is_needed(state, key)));
    applied.chain(failed).chain(in_flight.map(|(unit, _)| unit)).chain(queued).any(is_guarded)
}

/// Whether the ports of the cluster bridge have anti-spoofing.
pub(super) fn is_cluster_guarded(cluster: ClusterNetwork<'_>) -> bool {
    cluster.node_routes.is_some_and(|node_routes| node_routes.anti_spoofing)
}

/// The pod ranges of this node that are masqueraded, as configured by their pools.
pub(super) fn masqueraded_ranges(state: &State, cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let default = cluster.node_routes.is_some_and(|node_routes| node_routes.masquerade);
    let is_masqueraded = |range: &&IpNet| state.pool_masquerade(**range).unwrap_or(default);
    cluster.network.ranges.iter().filter(is_masqueraded).copied().collect()
}

/// The ranges of all pods of the cluster. Sorted and aggregated.
pub(crate) fn all_pod_ranges(cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let pools = cluster.node_routes.into_iter().flat_map(|node_routes| &node_routes.pools);
    let own = cluster.network.ranges.iter().chain(pools).copied();
    IpNet::aggregate(&own.chain(resolve::remote_pod_ranges(cluster)).collect())
}

/// Destinations that pods reach with their own address: pods, nodes, and configured ranges. Sorted and aggregated.
pub(super) fn no_masquerade_ranges(cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let none = NodeRoutesIntent::default();
    let node_routes = cluster.node_routes.unwrap_or(&none);
    let addresses = cluster.peers.values().flat_map(|node| node.all_addresses()).map(IpNet::from);
    let theirs = resolve::remote_pod_ranges(cluster).into_iter().chain(addresses);
    let stated = node_routes.no_masquerade_ranges.iter().chain(&node_routes.pools);
    let own = &cluster.network.ranges;
    let all: Vec<IpNet> = own.iter().chain(stated).copied().chain(theirs).collect();
    // Ranges and addresses of nodes are mostly adjacent: the set does not grow with the nodes.
    IpNet::aggregate(&all)
}
