//! The desired packet filter of the node: host port mappings (DNAT), masquerading (SNAT) and egress gateway rules, and
//! anti-spoofing on the ports of the cluster bridge. Admins configure it per namespace and pool
//! ([`crate::namespaces`]).
//!
//! The host applies the filter as a whole, so only one change is in flight; later changes are combined into the next
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_model::intent::NodeRoutesIntent;
use knit_model::link::{LinkKind, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::report::InterfaceReport;
use knit_model::route::GatewayRoute;
use knit_model::{IfName, Mac, SandboxId};

use crate::call::{ATTACHMENT_KIND, Attachment, PortMapping};
use crate::cluster::{self, ClusterNetwork};
use crate::egress::{self, EgressPath};
use crate::event::{Effect, Unit};
pub use crate::overlay::OverlayPort;
use crate::pools;
use crate::resolve;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// A host port that is mapped (DNAT) to one pod address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPortMapping {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// Restricts the mapping to this address of the node.
    pub host_ip: Option<IpAddr>,
    /// The host port.
    pub host_port: u16,
    /// The pod's address.
    pub to: IpAddr,
    /// The pod's port.
    pub port: u16,
}

/// A port of the cluster bridge with anti-spoofing: its pod may send only from these addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuardedPort {
    /// The host link.
    pub link: IfName,
    /// The MAC addresses that the pod may use.
    pub macs: BTreeSet<Mac>,
    /// The IP addresses that the pod may use.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether the eBPF fast path may bypass the bridge for this port: it is one end of a veth pair with a single MAC
    /// address, and nothing on the slow path (bandwidth limits, VLANs) would be skipped.
    pub fast_path: bool,
}

/// The desired packet filter of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// All host port mappings.
    pub host_ports: Vec<HostPortMapping>,
    /// The bridge of the cluster network, if there is one: mapped connections from the node's loopback leave through
    /// it.
    pub bridge: Option<IfName>,
    /// Pods whose traffic to external networks is masqueraded with the node's address.
    pub masquerade: Option<Masquerade>,
    /// Pods whose egress uses a gateway.
    pub egress: Option<EgressRules>,
    /// Bridge ports with anti-spoofing.
    pub guarded_ports: Vec<GuardedPort>,
    /// Overlay tunnels that are bridge ports.
    pub overlay_ports: Vec<OverlayPort>,
    /// Routes to pods of other nodes that need no tunnel, where ports are guarded. A large list that rarely changes.
    pub node_routes: Arc<[GatewayRoute]>,
    /// Apply even if nothing changed: the tables may have been modified by another program.
    pub force: bool,
}

/// Egress of pods through gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRules {
    /// Destinations that are reached with the pod's own address. Sorted, without duplicates.
    pub no_masquerade_ranges: Vec<IpNet>,
    /// Local pods whose egress goes through another node.
    pub marks: Vec<EgressMark>,
    /// SNAT on this node: the pod address (local or remote) and the source address to use.
    pub snat: BTreeMap<IpAddr, IpAddr>,
    /// Pods that must not leave through this node: their gateway is another node, or has none.
    pub blocked: BTreeSet<IpAddr>,
    /// Pods whose egress path changed: their external connections must be re-routed.
    pub rerouted: BTreeSet<IpAddr>,
}

/// Local pods of one family whose egress goes through the same remote node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressMark {
    /// The mark of their packets.
    pub mark: u32,
    /// The next hop to the gateway node, the only one allowed.
    pub via: IpAddr,
    /// The pods' addresses.
    pub pods: Vec<IpAddr>,
}

/// Pods whose external traffic is masqueraded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Pod ranges, and single addresses for which an admin enabled it.
    pub pods: Vec<IpNet>,
    /// Addresses within those ranges that an admin excluded by namespace.
    pub excluded: Vec<IpAddr>,
    /// Destinations that are reached with the pod's own address: pods, nodes, and configured ranges. Sorted, without
    /// duplicates.
    pub no_masquerade_ranges: Vec<IpNet>,
}

/// The number of a version of the filter.
pub(crate) type Generation = u64;

/// The filter that the host was asked to apply. Not persistent: it is rebuilt after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketFilterState {
    by_sandbox: BTreeMap<SandboxId, SandboxRules>,
    cluster_wide: ClusterWide,
    /// The latest version.
    last: Generation,
    /// The version that the host is applying.
    applying: Option<Generation>,
    /// The egress state of the last request.
    last_egress: EgressSnapshot,
    /// Whether the next request must be applied even if nothing changed.
    force: bool,
}

/// Egress paths at the time of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EgressSnapshot {
    /// The path of each pod.
    pods: BTreeMap<IpAddr, EgressPath>,
    /// The paths by namespace: a pod that disappeared may be gone, or may have lost its gateway.
    namespaces: egress::EgressPaths,
    no_masquerade_ranges: Vec<IpNet>,
}

impl EgressSnapshot {
    fn of(filter: &PacketFilterState) -> Self {
        let own = filter.by_sandbox.values().flat_map(|rules| &rules.egress_paths);
        let pods = filter.cluster_wide.remote_egress_paths.iter().chain(own);
        Self {
            pods: pods.map(|(address, path)| (*address, path.clone())).collect(),
            namespaces: filter.cluster_wide.egress_paths.clone(),
            no_masquerade_ranges: filter.cluster_wide.no_masquerade_ranges.clone(),
        }
    }

    /// Pods whose egress path changed, so that SNAT of their connections moves to another node.
    fn rerouted_since(&self, before: &Self) -> BTreeSet<IpAddr> {
        let is_here = |path: &EgressPath| matches!(path, EgressPath::Local(_));
        let is_rerouted = |address: &IpAddr, old: &EgressPath| match self.pods.get(address) {
            Some(path) => path != old && (is_here(old) || is_here(path)),
            None => self.namespaces != before.namespaces,
        };
        let rerouted = before.pods.iter().filter(|(address, old)| is_rerouted(address, old));
        rerouted.map(|(address, _)| *address).collect()
    }
}

/// The rules of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SandboxRules {
    host_ports: BTreeSet<HostPortMapping>,
    guarded_ports: BTreeSet<GuardedPort>,
    /// Addresses with an explicit masquerade option of their namespace.
    masquerade: BTreeMap<IpAddr, bool>,
    /// Addresses whose egress uses a gateway.
    egress_paths: BTreeMap<IpAddr, EgressPath>,
}

/// Rules that do not depend on a single sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClusterWide {
    masquerade: Option<Masquerade>,
    /// The bridge with anti-spoofing.
    guarded_bridge: Option<IfName>,
    node_routes: Arc<[GatewayRoute]>,
    /// Destinations without SNAT, if there is an egress gateway.
    no_masquerade_ranges: Vec<IpNet>,
    /// Egress paths by namespace and by whether they are for IPv6.
    egress_paths: egress::EgressPaths,
    /// Egress paths of pods of other nodes.
    remote_egress_paths: BTreeMap<IpAddr, EgressPath>,
    /// Overlay tunnels that are bridge ports.
    overlay_ports: Vec<OverlayPort>,
}

impl SandboxRules {
    fn is_empty(&self) -> bool {
        self.host_ports.is_empty()
            && self.guarded_ports.is_empty()
            && self.masquerade.is_empty()
            && self.egress_paths.is_empty()
    }
}

impl PacketFilterState {
    /// The version that a sandbox has to wait for; `None` if the filter is up to date or does not concern it.
    pub(crate) fn pending_generation(&self, id: &SandboxId) -> Option<Generation> {
        (self.applying.is_some() && self.by_sandbox.contains_key(id)).then_some(self.last)
    }
}

fn cluster_wide(state: &State) -> ClusterWide {
    let overlay_ports = state.overlay_ports();
    let Some(cluster) = state.cluster() else {
        return ClusterWide { overlay_ports, ..ClusterWide::default() };
    };
    let guarded_ports = cluster.node_routes.filter(|node_routes| node_routes.anti_spoofing);
    let guarded_bridge = guarded_ports.map(|_| cluster.bridge.clone());
    let node_routes = guarded_ports
        .map(|node_routes| resolve::native_routes(cluster.network, node_routes).into())
        .unwrap_or_default();
    let egress_paths = state.egress_paths();
    let no_masquerade_ranges =
        if egress_paths.is_empty() { Vec::new() } else { no_masquerade_ranges(cluster) };
    let remote_egress_paths = state.remote_egress_paths(&egress_paths);
    ClusterWide {
        masquerade: masquerade(state, cluster),
        guarded_bridge,
        node_routes,
        no_masquerade_ranges,
        egress_paths,
        remote_egress_paths,
        overlay_ports,
    }
}

/// Requests an apply, now or when the one in flight has finished.
fn request_apply(state: &mut State, effects: &mut Effects) {
    state.packet_filter.last += 1;
    apply_next(state, effects);
}

fn apply_next(state: &mut State, effects: &mut Effects) {
    let bridge = state.cluster().map(|cluster| cluster.bridge.clone());
    let filter = &mut state.packet_filter;
    if filter.applying.is_some() {
        return;
    }
    filter.applying = Some(filter.last);
    let now = EgressSnapshot::of(filter);
    let before = mem::replace(&mut filter.last_egress, now);
    effects.list.push(Effect::ApplyPacketFilter(PacketFilter {
        host_ports: filter.by_sandbox.values().flat_map(|rules| &rules.host_ports).cloned().collect(),
        bridge,
        masquerade: effective_masquerade(filter),
        egress: egress_rules(&filter.last_egress, &before),
        guarded_ports: filter.by_sandbox.values().flat_map(|rules| &rules.guarded_ports).cloned().collect(),
        overlay_ports: filter.cluster_wide.overlay_ports.clone(),
        node_routes: filter.cluster_wide.node_routes.clone(),
        force: mem::take(&mut filter.force),
    }));
}

/// Masquerading of this node's ranges as configured by their pools; `None` if no pod is masqueraded.
fn masquerade(state: &State, cluster: ClusterNetwork<'_>) -> Option<Masquerade> {
    let none = NodeRoutesIntent::default();
    let node_routes = cluster.node_routes.unwrap_or(&none);
    let own = &cluster.network.ranges;
    let is_masqueraded = |range: &&IpNet| state.pool_masquerade(**range).unwrap_or(node_routes.masquerade);
    let pods: Vec<IpNet> = own.iter().filter(is_masqueraded).copied().collect();
    let is_chosen = state.namespaces.values().any(|options| options.masquerade == Some(true));
    if pods.is_empty() && !is_chosen {
        return None;
    }
    Some(Masquerade { pods, excluded: Vec::new(), no_masquerade_ranges: no_masquerade_ranges(cluster) })
}

/// Destinations that pods reach with their own address: pods, nodes, and configured ranges. Sorted, without
/// duplicates.
fn no_masquerade_ranges(cluster: ClusterNetwork<'_>) -> Vec<IpNet> {
    let none = NodeRoutesIntent::default();
    let node_routes = cluster.node_routes.unwrap_or(&none);
    let addresses = node_routes.nodes.iter().flat_map(|node| node.all_addresses()).map(IpNet::from);
    let theirs = resolve::remote_pod_ranges(cluster.network, node_routes).into_iter().chain(addresses);
    let stated = node_routes.no_masquerade_ranges.iter().chain(&node_routes.pools);
    let own = &cluster.network.ranges;
    let no_masquerade_ranges: BTreeSet<IpNet> = own.iter().chain(stated).copied().chain(theirs).collect();
    no_masquerade_ranges.into_iter().collect()
}

/// The egress rules, with the changes since the last request.
fn egress_rules(now: &EgressSnapshot, before: &EgressSnapshot) -> Option<EgressRules> {
    let no_masquerade_ranges = if now.no_masquerade_ranges.is_empty() {
        &before.no_masquerade_ranges
    } else {
        &now.no_masquerade_ranges
    };
    let rerouted = now.rerouted_since(before);
    let mut rules = EgressRules {
        no_masquerade_ranges: no_masquerade_ranges.clone(),
        rerouted,
        ..EgressRules::default()
    };
    let mut marks: BTreeMap<(u32, IpAddr), Vec<IpAddr>> = BTreeMap::new();
    for (address, path) in &now.pods {
        match path {
            EgressPath::Local(source) => drop(rules.snat.insert(*address, *source)),
            EgressPath::ViaNode { mark, via } => marks.entry((*mark, *via)).or_default().push(*address),
            EgressPath::Blocked => drop(rules.blocked.insert(*address)),
        }
    }
    let marks = marks.into_iter().map(|((mark, via), pods)| EgressMark { mark, via, pods });
    rules.marks = marks.collect();
    let is_any = !now.pods.is_empty() || !rules.rerouted.is_empty();
    is_any.then_some(rules)
}

/// Masquerading including the options of namespaces.
fn effective_masquerade(filter: &PacketFilterState) -> Option<Masquerade> {
    let cluster_wide = filter.cluster_wide.masquerade.as_ref()?;
    let in_range = |address: &IpAddr| cluster_wide.pods.iter().any(|range| range.contains(address));
    let chosen = filter.by_sandbox.values().flat_map(|rules| &rules.masquerade);
    let others: BTreeMap<IpAddr, bool> = chosen
        .map(|(address, is)| (*address, *is))
        .filter(|(address, is)| in_range(address) != *is)
        .collect();
    let with = |is: bool| others.iter().filter(move |(_, other)| **other == is).map(|(address, _)| *address);
    let pods: Vec<IpNet> = cluster_wide.pods.iter().copied().chain(with(true).map(IpNet::from)).collect();
    let excluded = with(false).collect();
    (!pods.is_empty()).then(|| Masquerade {
        pods,
        excluded,
        no_masquerade_ranges: cluster_wide.no_masquerade_ranges.clone(),
    })
}

/// The cluster network or a pool changed.
pub(crate) fn on_object_change(state: &mut State, object: &ObjectKey, effects: &mut Effects) {
    let is_about = *object == cluster::key() || object.kind == pools::KIND;
    if is_about && cluster_wide(state) != state.packet_filter.cluster_wide {
        refresh_all(state, effects);
    }
}

/// Gateways, their active nodes, or their remote pods changed.
pub(crate) fn on_egress_change(state: &mut State, effects: &mut Effects) {
    if cluster_wide(state) != state.packet_filter.cluster_wide {
        refresh_all(state, effects);
    }
}

/// A bridge may have gained or lost its overlay tunnel.
pub(crate) fn on_tunnel_change(state: &mut State, effects: &mut Effects) {
    let overlay_ports = state.overlay_ports();
    if state.packet_filter.cluster_wide.overlay_ports != overlay_ports {
        state.packet_filter.cluster_wide.overlay_ports = overlay_ports;
        request_apply(state, effects);
    }
}

/// Namespace options changed: they apply to running pods at once.
pub(crate) fn on_namespace_change(state: &mut State, effects: &mut Effects) {
    let before =
        (mem::take(&mut state.packet_filter.cluster_wide), mem::take(&mut state.packet_filter.by_sandbox));
    rebuild(state);
    if (&state.packet_filter.cluster_wide, &state.packet_filter.by_sandbox) != (&before.0, &before.1) {
        request_apply(state, effects);
    }
}

/// The host finished an apply. Returns the version that was applied.
pub(crate) fn applied(state: &mut State, effects: &mut Effects) -> Generation {
    let applied = state.packet_filter.applying.take().unwrap_or_default();
    if state.packet_filter.last > applied {
        apply_next(state, effects);
    }
    applied
}

/// Requests an apply if the rules of one sandbox changed.
pub(crate) fn refresh(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    let now = sandbox_rules(state, id);
    if state.packet_filter.by_sandbox.get(id).map_or(now.is_empty(), |before| *before == now) {
        return;
    }
    if now.is_empty() {
        state.packet_filter.by_sandbox.remove(id);
    } else {
        state.packet_filter.by_sandbox.insert(id.clone(), now);
    }
    request_apply(state, effects);
}

/// After a start the journalled state is what the kernel has. Rebuilding pod by pod would drop the rules of the
/// others.
pub(crate) fn rebuild(state: &mut State) {
    state.packet_filter.cluster_wide = cluster_wide(state);
    let ids = state.units.keys().filter_map(|unit| match unit {
        Unit::Sandbox(id) => Some(id),
        _ => None,
    });
    let all = ids.map(|id| (id.clone(), sandbox_rules(state, id)));
    let all = all.filter(|(_, rules)| !rules.is_empty()).collect();
    state.packet_filter.by_sandbox = all;
}

/// Rebuilds all rules and requests an apply.
fn refresh_all(state: &mut State, effects: &mut Effects) {
    rebuild(state);
    request_apply(state, effects);
}

/// Rebuilds all rules and requests an apply even if nothing changed.
pub(crate) fn resync(state: &mut State, effects: &mut Effects) {
    state.packet_filter.force = true;
    refresh_all(state, effects);
}

fn sandbox_rules(state: &State, id: &SandboxId) -> SandboxRules {
    let options = state.namespace_options(id);
    let guarded_ports = if options.allow_spoofing { BTreeSet::new() } else { guarded_ports(state, id) };
    let masquerade =
        options.masquerade.map(|is| cluster_addresses(state, id).map(|address| (address, is)).collect());
    let masquerade = masquerade.unwrap_or_default();
    SandboxRules {
        host_ports: host_ports(state, id),
        guarded_ports,
        masquerade,
        egress_paths: egress_paths(state, id),
    }
}

/// The egress paths of the sandbox's addresses.
fn egress_paths(state: &State, id: &SandboxId) -> BTreeMap<IpAddr, EgressPath> {
    let namespace = state.sandboxes.get(id).map(|sandbox| &sandbox.namespace);
    let Some(egress_paths) =
        namespace.and_then(|namespace| state.packet_filter.cluster_wide.egress_paths.get(namespace))
    else {
        return BTreeMap::new();
    };
    cluster_addresses(state, id)
        .filter_map(|address| Some((address, egress_paths.get(&address.is_ipv6())?.clone())))
        .collect()
}

/// The sandbox's addresses on the cluster network.
fn cluster_addresses<'a>(state: &'a State, id: &'a SandboxId) -> impl Iterator<Item = IpAddr> + 'a {
    let bridge = state.cluster().map(|cluster| cluster.bridge);
    let is_on_it = move |master: &IfName| Some(master) == bridge;
    let on_it =
        interfaces(state, id).filter(move |(_, report)| report.master.as_ref().is_some_and(&is_on_it));
    on_it.flat_map(|(_, report)| &report.addresses).map(IpNet::addr)
}

fn interfaces<'a>(
    state: &'a State,
    id: &SandboxId,
) -> impl Iterator<Item = &'a (ObjectKey, InterfaceReport)> {
    state.units.get(&Unit::Sandbox(id.clone())).into_iter().flat_map(|unit_state| &unit_state.interfaces)
}

fn host_ports(state: &State, id: &SandboxId) -> BTreeSet<HostPortMapping> {
    let mut all = BTreeSet::new();
    for attachment in state.attachments.of(id).filter(|attachment| !attachment.request.ports.is_empty()) {
        let mine = interfaces(state, id)
            .filter(|(object, report)| object.kind == ATTACHMENT_KIND && report.name == attachment.interface);
        for address in mine.flat_map(|(_, report)| &report.addresses).map(|address| address.addr()) {
            let fits =
                |port: &&PortMapping| port.host_ip.is_none_or(|host| host.is_ipv4() == address.is_ipv4());
            all.extend(attachment.request.ports.iter().filter(fits).map(|port| HostPortMapping {
                protocol: port.protocol.clone(),
                host_ip: port.host_ip,
                host_port: port.host_port,
                to: address,
                port: port.container_port,
            }));
        }
    }
    all
}

/// The sandbox's ports of the guarded bridge. Interfaces without a host end are stacked on such a port or share it, so
/// their addresses are allowed on each port.
fn guarded_ports(state: &State, id: &SandboxId) -> BTreeSet<GuardedPort> {
    let Some(bridge) = &state.packet_filter.cluster_wide.guarded_bridge else { return BTreeSet::new() };
    let is_internal = |report: &&InterfaceReport| report.peer.is_none();
    let internal: Vec<&InterfaceReport> =
        interfaces(state, id).map(|(_, report)| report).filter(is_internal).collect();
    let ports = interfaces(state, id).filter(|(_, report)| report.master.as_ref() == Some(bridge));
    ports
        .filter_map(|(_, report)| {
            let own = || internal.iter().copied().chain([report]);
            let macs: BTreeSet<Mac> = own().filter_map(|report| report.mac).collect();
            let misses_nothing = !report.limited && report.vlans.is_none();
            Some(GuardedPort {
                link: report.peer.clone()?,
                fast_path: report.kind == Veth::NAME && macs.len() == 1 && misses_nothing,
                macs,
                addresses: own().flat_map(|report| &report.addresses).map(IpNet::addr).collect(),
            })
        })
        .collect()
}

/// Rejects host ports that another attachment uses.
pub(crate) fn check<'a>(
    state: &State,
    id: &SandboxId,
    ports: impl Iterator<Item = (&'a IfName, &'a PortMapping)>,
) -> Result<(), Problem> {
    let ports: Vec<(&IfName, &PortMapping)> = ports.collect();
    let clash = |one: &PortMapping, other: &PortMapping| {
        let same_address = one.host_ip.is_none() || other.host_ip.is_none() || one.host_ip == other.host_ip;
        one.protocol == other.protocol && one.host_port == other.host_port && same_address
    };
    for (at, (interface, port)) in ports.iter().enumerate() {
        // A repeated request for the same interface keeps its ports.
        let is_same =
            |attachment: &Attachment| attachment.sandbox == *id && attachment.interface == **interface;
        let mut others = state.attachments.all().filter(|attachment| !is_same(attachment));
        let taken = others.find(|attachment| attachment.request.ports.iter().any(|other| clash(port, other)));
        let twice = ports[..at].iter().any(|(_, other)| clash(port, other));
        let state = match (taken, twice) {
            (Some(attachment), _) => format!("already used by sandbox {}", attachment.sandbox),
            (None, true) => "requested twice".to_owned(),
            (None, false) => continue,
        };
        let message = format!("{} host port {} is {state}", port.protocol, port.host_port);
        let field = format!("port_mappings[{at}].host_port");
        return Err(Problem::new(field, Reason::Conflict, message));
    }
    Ok(())
}
