//! Which source addresses a port accepts from its pod. A MAC or IP address is accepted from one pod of a bridge only: objects
//! choose addresses of interfaces freely, and could choose those of another pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{AttachmentId, LeaseKey};
use knit_model::report::InterfaceReport;
use knit_model::{IfName, Sandbox};

use super::elements;
use crate::event::Unit;
use crate::resolve;
use crate::state::{BridgeKey, State, UnitState};
use crate::unit_state::{Source, sources};

/// A port of a pod.
pub(super) struct PortSources<'a> {
    pub(super) state: &'a State,
    pub(super) sandbox: &'a Sandbox,
    /// The bridge.
    pub(super) bridge: &'a IfName,
    /// The interface whose host end is the port.
    pub(super) port: &'a InterfaceReport,
}

impl PortSources<'_> {
    /// Why the port drops packets with this source address of an interface that sends through it.
    pub(super) fn check(&self, interface: &InterfaceReport, source: Source) -> Result<(), String> {
        let bridge = self.bridge;
        let is_assigned = match source {
            Source::Mac(mac) => {
                let mut of_bridge =
                    self.bridge_key().into_iter().flat_map(|key| resolve::bridge_macs(self.state, key));
                if of_bridge.any(|one| one == mac) {
                    return Err(format!("MAC address {mac} is that of bridge {bridge}"));
                }
                mac == resolve::default_mac(self.sandbox, &interface.name)
            }
            Source::Address(address) => self.check_address(interface, address)?,
        };
        let mut neighbours = self.neighbours(source);
        if neighbours
            .any(|(sandbox, unit_state)| self.takes_precedence(sandbox, unit_state, source, is_assigned))
        {
            let source = match source {
                Source::Mac(mac) => format!("MAC address {mac}"),
                Source::Address(address) => format!("address {address}"),
            };
            return Err(format!("{source} is in use by another pod on bridge {bridge}"));
        }
        Ok(())
    }

    fn bridge_key(&self) -> Option<&BridgeKey> {
        match self.state.units.holder(self.bridge)? {
            Unit::Bridge(key) => Some(key),
            _ => None,
        }
    }

    /// Checks what does not depend on other pods. Returns whether the address is assigned to the interface: leased to it on the
    /// network of the port.
    fn check_address(&self, interface: &InterfaceReport, address: IpAddr) -> Result<bool, String> {
        let bridge_key = self.bridge_key();
        let unit_state = bridge_key.and_then(|key| self.state.units.get(&Unit::Bridge(key.clone())));
        let gateways = unit_state.and_then(|unit_state| unit_state.bridge.as_ref());
        let gateways = gateways.map_or(&[][..], |bridge| &bridge.addresses);
        if gateways.iter().any(|gateway| gateway.addr() == address) {
            return Err(format!("address {address} is that of bridge {}", self.bridge));
        }
        let networks: BTreeSet<&str> = self.leases(self.port).map(|key| key.network.as_str()).collect();
        let mut leases = self.leases(interface);
        let lease = leases.find(|key| key.address == address && networks.contains(key.network.as_str()));
        let is_cluster = self.state.cluster().is_some_and(|cluster| cluster.bridge == self.bridge);
        if let Some(key) = lease {
            let is_fixed = self.state.leases.get(&key.network, address).is_some_and(|lease| lease.fixed);
            let is_inside = gateways.iter().any(|gateway| gateway.contains(&address));
            // The node has no address on an isolated network, whose addresses may be those of another network.
            if !is_fixed || is_cluster || is_inside || gateways.is_empty() {
                return Ok(true);
            }
        }
        // Policies of all namespaces decide by the addresses of the cluster network, those of hosts outside among them.
        if is_cluster && lease.is_none() {
            return Err(format!("address {address} is not assigned on the cluster network"));
        }
        let single = IpNet::from(address);
        let overlap = resolve::overlap_with_others(self.state, single).or_else(|| {
            // Pods on other nodes have addresses of an overlay network, too.
            let overlay = self.state.overlay_on_bridge(bridge_key?)?;
            let ranges: Vec<(&str, IpNet)> =
                overlay.network.ranges.iter().map(|range| ("range of the network", *range)).collect();
            knit_ipam::overlap_message(single, &ranges).filter(|_| lease.is_none())
        });
        if let Some(overlap) = overlap {
            return Err(format!("address {overlap}"));
        }
        let of_other = |network: &&str| {
            let lease = self.state.leases.get(network, address).filter(|lease| lease.is_live());
            lease.is_some_and(|lease| lease.owner.sandbox != self.sandbox.id)
        };
        if networks.iter().any(of_other) {
            return Err(format!("address {address} is leased to another pod on bridge {}", self.bridge));
        }
        Ok(lease.is_some())
    }

    fn leases(&self, interface: &InterfaceReport) -> impl Iterator<Item = &LeaseKey> {
        let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: interface.name.clone() };
        let held: Vec<&LeaseKey> = self.state.leases.held_by(&owner).collect();
        held.into_iter()
    }

    /// Other pods with this source address and a port of the bridge, as applied and in flight. Another sandbox of the same pod
    /// has its addresses while it ends.
    fn neighbours(&self, source: Source) -> impl Iterator<Item = (&Sandbox, &UnitState)> {
        let applied = self.state.units.users_of_source(source);
        let applied = applied.filter_map(|unit| Some((unit, self.state.units.get(unit)?)));
        let in_flight = self.state.in_flight.iter().map(|(unit, change)| (unit, &change.resolved.unit_state));
        let in_flight =
            in_flight.filter(move |(_, unit_state)| unit_state.sources().any(|one| one == source));
        applied.chain(in_flight).filter_map(|(unit, unit_state)| {
            let Unit::Sandbox(id) = unit else { return None };
            let sandbox = self.state.sandboxes.get(id)?;
            let is_same = (&sandbox.namespace, &sandbox.pod) == (&self.sandbox.namespace, &self.sandbox.pod);
            let is_neighbour = ports_on(unit_state, self.bridge).next().is_some();
            (!is_same && is_neighbour).then_some((sandbox, unit_state))
        })
    }

    /// Whether a neighbour's use of a source address precludes this pod's. An address that Knit assigned takes precedence over
    /// one that an object chose; otherwise the first pod keeps it.
    fn takes_precedence(
        &self,
        neighbour: &Sandbox,
        unit_state: &UnitState,
        source: Source,
        is_assigned: bool,
    ) -> bool {
        let has_it = |report: &InterfaceReport| sources(report).any(|one| one == source);
        let may_spoof = self.state.namespace_options(&neighbour.id).allow_spoofing;
        let holds_it = ports_on(unit_state, self.bridge).any(|port| {
            let link = port.peer.as_ref();
            let mut accepted =
                link.into_iter().flat_map(|link| elements::sources_of(&unit_state.filter, link));
            accepted.any(|one| one == source) || may_spoof && has_it(port)
        });
        let reports = unit_state.interfaces.iter().map(|(_, report)| report);
        let is_theirs = match source {
            Source::Mac(mac) => {
                let is_sender = |report: &InterfaceReport| holds_it || is_port_of(report, self.bridge);
                let mut reports = reports.filter(|report| report.mac == Some(mac) && is_sender(report));
                reports.any(|report| resolve::default_mac(neighbour, &report.name) == mac)
            }
            Source::Address(_) => ports_on(unit_state, self.bridge).any(has_it),
        };
        if is_assigned { is_theirs && holds_it } else { is_theirs || holds_it }
    }
}

/// The interfaces of a unit whose host end is a port of the bridge.
fn ports_on<'a>(unit_state: &'a UnitState, bridge: &'a IfName) -> impl Iterator<Item = &'a InterfaceReport> {
    let reports = unit_state.interfaces.iter().map(|(_, report)| report);
    reports.filter(move |report| is_port_of(report, bridge))
}

fn is_port_of(report: &InterfaceReport, bridge: &IfName) -> bool {
    report.peer.is_some() && report.master.as_ref() == Some(bridge)
}

/// Queues the other pods with source addresses that differ between two states of a unit: they may lose or get them.
pub(super) fn requeue_neighbours(state: &mut State, unit: &Unit, old: &UnitState, new: &UnitState) {
    let used: BTreeSet<&BridgeKey> = old.used_bridges.iter().chain(&new.used_bridges).collect();
    if used.is_empty() {
        return;
    }
    let (old, new) = (unit_sources(old), unit_sources(new));
    let missing = |from: &[(Source, bool)], one: &&(Source, bool)| from.binary_search(one).is_err();
    let lost = old.iter().filter(|one| missing(&new, one));
    let gained = new.iter().filter(|one| missing(&old, one));
    let mut changed: Vec<Source> = lost.chain(gained).map(|(source, _)| *source).collect();
    changed.sort_unstable();
    changed.dedup();
    let in_flight = state.in_flight.iter().map(|(unit, change)| (unit, &change.resolved.unit_state));
    let in_flight =
        in_flight.filter(|(_, unit_state)| unit_state.sources().any(|source| changed.contains(&source)));
    let applied = changed.iter().flat_map(|source| state.units.users_of_source(*source));
    let applied = applied.filter_map(|unit| Some((unit, state.units.get(unit)?)));
    let is_neighbour = |unit_state: &UnitState| unit_state.used_bridges.iter().any(|key| used.contains(key));
    let others =
        applied.chain(in_flight).filter(|(other, unit_state)| *other != unit && is_neighbour(unit_state));
    let others: Vec<Unit> = others.map(|(other, _)| other.clone()).collect();
    state.dirty.extend(others);
}

/// The source addresses of a unit's interfaces, and those that its ports accept; sorted.
fn unit_sources(unit_state: &UnitState) -> Vec<(Source, bool)> {
    let links = unit_state.interfaces.iter().filter_map(|(_, report)| report.peer.as_ref());
    let accepted = links.flat_map(|link| elements::sources_of(&unit_state.filter, link));
    let all = unit_state.sources().map(|source| (source, false)).chain(accepted.map(|source| (source, true)));
    let mut all: Vec<(Source, bool)> = all.collect();
    all.sort_unstable();
    all
}

/// Queues pods with an address that became one of their bridge.
pub(super) fn requeue_ports_with_gateway(state: &mut State, key: &BridgeKey, old: &UnitState) {
    let addresses = |unit_state: &UnitState| -> BTreeSet<IpAddr> {
        let bridge = unit_state.bridge.iter();
        bridge.flat_map(|bridge| &bridge.addresses).map(IpNet::addr).collect()
    };
    let now = state.units.get(&Unit::Bridge(key.clone())).map(addresses).unwrap_or_default();
    let changed: Vec<IpAddr> = now.symmetric_difference(&addresses(old)).copied().collect();
    let users = changed.iter().flat_map(|address| state.units.users_of_source(Source::Address(*address)));
    let users: Vec<Unit> = users.cloned().collect();
    state.dirty.extend(users);
}

/// Queues pods with addresses in ranges that became reserved, except addresses that the cluster network leased.
pub(super) fn requeue_in_ranges(state: &mut State, ranges: &[IpNet]) {
    let cluster = state.cluster().map(|cluster| cluster.bridge);
    let is_affected = |report: &InterfaceReport| {
        let mut addresses = report.addresses.iter().map(IpNet::addr);
        (cluster.is_none() || report.master.as_ref() != cluster)
            && addresses.any(|address| ranges.iter().any(|range| range.contains(&address)))
    };
    let units = state
        .units
        .iter()
        .filter(|(_, unit_state)| unit_state.interfaces.iter().any(|(_, one)| is_affected(one)));
    let units: Vec<Unit> = units.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(units);
}
