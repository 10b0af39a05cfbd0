//! Overlay networks, which span all nodes: the VNI of each, and its member nodes.
//!
//! Every node derives the same result from the same API objects: networks, address blocks and node addresses. A node
//! becomes a member as soon as it holds a block of the network, which is before any of its pods can send a packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, last_quarter};
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent, TunnelEndpoint};
use knit_model::link::Vxlan;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::{IfName, Mac};
use serde::{Deserialize, Serialize};

use crate::event::{Record, Unit};
use crate::object_index::Feature;
use crate::packet_filter;
use crate::state::{BridgeKey, ObjectKey, State};
use crate::step::Effects;

/// The overlay tunnels of this node, as configured and as its links are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelConfig {
    /// The VNI of the cluster network's own tunnels, which no overlay network may use.
    pub reserved_vni: u32,
    /// The UDP port of all tunnels.
    pub port: u16,
    /// Addresses of this node, at most one per family.
    pub endpoints: Vec<TunnelEndpoint>,
}

/// The addresses that overlay tunnels run over. Persistent: without an API server a restart changes nothing for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underlay {
    /// This node.
    #[serde(flatten)]
    pub local: TunnelConfig,
    /// Addresses of the other member nodes.
    pub nodes: BTreeMap<String, Vec<IpAddr>>,
}

impl Underlay {
    /// The local endpoint of tunnels.
    pub(crate) fn end(&self) -> Option<&TunnelEndpoint> {
        let of_family =
            |ipv4: bool| self.local.endpoints.iter().find(move |end| end.address.is_ipv4() == ipv4);
        of_family(true).or_else(|| of_family(false))
    }

    /// The MTU inside the tunnels.
    fn mtu(&self) -> Option<u32> {
        let end = self.end()?;
        Some(end.mtu.saturating_sub(Vxlan::overhead_over(end.address.is_ipv6())))
    }
}

/// The tunnel of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayTunnel {
    /// The link, a port of the bridge.
    pub link: IfName,
    /// The MAC address of the bridge, the same on all nodes.
    pub mac: Mac,
    /// The gateway address of each range, which the bridge has on every member node.
    pub gateway_addresses: BTreeSet<IpAddr>,
    /// The other member nodes.
    pub members: BTreeSet<String>,
}

/// An overlay network.
#[derive(Clone, Copy)]
pub(crate) struct OverlayNetwork<'a> {
    pub(crate) object: &'a ObjectKey,
    pub(crate) origin: &'a Provenance,
    pub(crate) network: &'a NetworkIntent,
    spec: &'a OverlayIntent,
}

impl OverlayNetwork<'_> {
    /// The bridge of its pods.
    pub(crate) fn bridge(&self) -> Option<BridgeKey> {
        let name = IfName::new(NetworkIntent::bridge_name(&self.network.name)).ok()?;
        Some(BridgeKey { namespace: self.object.namespace.clone(), name })
    }

    /// Its id in leases and blocks.
    pub(crate) fn id(&self) -> String {
        format!("{}/network/{}", self.object.namespace, self.network.name)
    }

    fn vni(&self, reserved_vni: u32) -> u32 {
        self.spec.vni(&self.object.namespace, &self.network.name, reserved_vni)
    }
}

impl<'a> OverlayNetwork<'a> {
    /// Of two networks with the same VNI the one with the smaller key has it.
    fn age(&self) -> (&'a str, &'a ObjectKey) {
        (&self.spec.created, self.object)
    }
}

impl State {
    /// All overlay networks.
    pub(crate) fn overlay_networks(&self) -> impl Iterator<Item = OverlayNetwork<'_>> {
        self.objects.with(Feature::Network).flat_map(|(object, stored)| {
            stored.intents.iter().filter_map(move |intent| match &intent.spec {
                // Objects from an API server apply to all nodes.
                IntentSpec::Network(network) if intent.origin.dialect == Dialect::Kubernetes => {
                    let (origin, spec) = (&intent.origin, network.overlay.as_ref()?);
                    Some(OverlayNetwork { object, origin, network, spec })
                }
                _ => None,
            })
        })
    }

    /// Whether there is an overlay network.
    pub fn has_overlay_networks(&self) -> bool {
        self.overlay_networks().next().is_some()
    }

    /// The overlay network of this bridge.
    pub(crate) fn overlay_on_bridge(&self, key: &BridgeKey) -> Option<OverlayNetwork<'_>> {
        let mut mine = self.overlay_networks().filter(|one| one.object.namespace == key.namespace);
        mine.find(|one| one.bridge().as_ref() == Some(key))
    }

    /// The overlay network with this id.
    pub(crate) fn overlay_by_id(&self, id: &str) -> Option<OverlayNetwork<'_>> {
        self.overlay_networks().find(|one| one.id() == id)
    }

    /// The VNI of an overlay network, or why it has none.
    pub(crate) fn vni_of(&self, overlay: OverlayNetwork<'_>, reserved_vni: u32) -> Result<u32, String> {
        let vni = overlay.vni(reserved_vni);
        if vni == reserved_vni {
            return Err(format!("VNI {vni} is used by the cluster network: choose another `vni`"));
        }
        let older = self
            .overlay_networks()
            .filter(|other| other.vni(reserved_vni) == vni)
            .min_by_key(|one| one.age());
        match older.filter(|older| older.object != overlay.object) {
            None => Ok(vni),
            Some(older) => {
                let holder = if older.object.namespace == overlay.object.namespace {
                    older.object.to_string()
                } else {
                    "a network of another namespace".to_owned()
                };
                Err(format!("VNI {vni} is used by {holder}, which is older: choose another `vni`"))
            }
        }
    }

    /// The part of a range from which this node can lease or claim addresses, without addresses reserved for fixed
    /// requests.
    pub fn reachable(&self, pool: &Pool) -> Pool {
        let mut pool = pool.clone();
        if self.overlay_by_id(&pool.network).is_some() {
            pool.reserved.extend(last_quarter(pool.range));
        }
        self.blocks.reachable(&pool)
    }

    /// The MTU of interfaces on an overlay bridge: as configured, or what fits into the tunnels.
    pub(crate) fn overlay_mtu(&self, key: &BridgeKey) -> Option<u32> {
        let overlay = self.overlay_on_bridge(key)?;
        overlay.network.mtu.or_else(|| self.underlay.as_ref()?.mtu())
    }

    /// The MTU inside the tunnels.
    pub(crate) fn tunnel_mtu(&self) -> Option<u32> {
        self.underlay.as_ref()?.mtu()
    }

    /// The other nodes that hold a block of the network. Before the block watch has synced, the last known members.
    pub(crate) fn members(&self, overlay: OverlayNetwork<'_>) -> BTreeSet<String> {
        if !self.blocks.has_synced {
            let unit_state = overlay.bridge().and_then(|key| self.units.get(&Unit::Bridge(key)));
            let tunnel = unit_state.and_then(|unit_state| unit_state.tunnel.as_ref());
            return tunnel.map(|tunnel| tunnel.members.clone()).unwrap_or_default();
        }
        let id = overlay.id();
        let held = self.blocks.remote.values().filter(|block| {
            // A block is valid only for the network that its name encodes.
            block.pool.starts_with(&id) && block.pool_key().is_some_and(|pool| pool.network == id)
        });
        held.map(|block| block.node.clone()).collect()
    }

    /// The addresses to apply, if they differ. Only addresses of member nodes are kept.
    fn changed_underlay(&self) -> Option<Underlay> {
        let local = self.nodes.tunnels.clone()?;
        if !self.has_overlay_networks() || !self.nodes.has_synced() {
            return None;
        }
        let members: BTreeSet<String> = self.overlay_networks().flat_map(|one| self.members(one)).collect();
        let nodes = members.into_iter().filter_map(|name| {
            // A node that disappeared keeps its address until its blocks are gone.
            let last = || self.underlay.as_ref()?.nodes.get(&name);
            let addresses = self.nodes.get(&name).map(|node| &node.addresses).or_else(last)?.clone();
            Some((name, addresses))
        });
        let underlay = Underlay { local, nodes: nodes.collect() };
        (self.underlay.as_ref() != Some(&underlay)).then_some(underlay)
    }
}

/// The endpoints of this node, or the networks.
pub(crate) fn on_tunnel_endpoints(state: &mut State, config: TunnelConfig, effects: &mut Effects) {
    state.nodes.tunnels = Some(config);
    update_underlay(state, effects);
}

/// Endpoints of this node, member nodes or their addresses may have changed.
pub(crate) fn update_underlay(state: &mut State, effects: &mut Effects) {
    let Some(underlay) = state.changed_underlay() else { return };
    let before = state.tunnel_mtu();
    effects.record(state, Record::Underlay(underlay));
    packet_filter::on_underlay_change(state);
    let keys: BTreeSet<BridgeKey> = state.overlay_networks().filter_map(|one| one.bridge()).collect();
    let bridges = keys.iter().map(|key| Unit::Bridge(key.clone())).filter(|unit| is_there(state, unit));
    let bridges: Vec<Unit> = bridges.collect();
    state.dirty.extend(bridges);
    if state.tunnel_mtu() != before {
        let users = state.units.iter().filter(|(_, unit_state)| !unit_state.used_bridges.is_disjoint(&keys));
        let users: Vec<Unit> = users.map(|(unit, _)| unit.clone()).collect();
        state.dirty.extend(users);
    }
}

/// Blocks changed: tunnels follow the member nodes.
pub(crate) fn on_block_change(state: &mut State) {
    let others = state.overlay_networks().filter_map(|overlay| {
        let unit = Unit::Bridge(overlay.bridge()?);
        let tunnel = state.units.get(&unit)?.tunnel.as_ref()?;
        (tunnel.members != state.members(overlay)).then_some(unit)
    });
    let others: Vec<Unit> = others.collect();
    state.dirty.extend(others);
}

/// Bridges whose tunnel may change with this network, because their network has the same VNI.
pub(crate) fn bridges_with_same_vni(state: &State, namespace: &str, network: &NetworkIntent) -> Vec<Unit> {
    let Some(span) = &network.overlay else { return Vec::new() };
    let reserved_vni = state.underlay.as_ref().map_or(0, |underlay| underlay.local.reserved_vni);
    let vni = span.vni(namespace, &network.name, reserved_vni);
    let same = state.overlay_networks().filter(|other| other.vni(reserved_vni) == vni);
    let bridges = same.filter_map(|other| other.bridge()).map(Unit::Bridge);
    bridges.filter(|unit| is_there(state, unit)).collect()
}

fn is_there(state: &State, unit: &Unit) -> bool {
    state.units.contains_key(unit) || state.in_flight.contains_key(unit)
}

/// The gateway address of each range.
pub(crate) fn gateway_addresses(ranges: &[IpNet]) -> BTreeSet<IpAddr> {
    let pools = ranges.iter().map(|range| Pool::with_gateway("", *range));
    pools.filter_map(|pool| pool.gateway_address()).map(|address| address.addr()).collect()
}
