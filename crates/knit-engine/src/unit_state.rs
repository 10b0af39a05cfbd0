//! The applied state of each unit, the owner of each host link, and the users of each bridge, MAC and IP address.
//!
//! The state of a unit never changes, it is replaced, so it is shared instead of copied. No two units own the same host link. Indexes by link name, bridge and address avoid scans over all units; only this module
//! changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Index;
use std::sync::Arc;

use knit_model::filter::{ElementData, ElementKey};
use knit_model::report::{BridgeReport, InterfaceReport, ItemReport};
use knit_model::state::AddressKey;
use knit_model::{IfName, Mac, PublicKey, Rule};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::event::Unit;
use crate::overlay::OverlayTunnel;
use crate::state::{BridgeKey, ObjectKey};

/// The applied state of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitState {
    /// Its host links.
    pub host_links: BTreeSet<IfName>,
    /// Its routing rules on the host.
    pub rules: BTreeSet<Rule>,
    /// Host links used by its routes to other nodes.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub route_links: BTreeSet<IfName>,
    /// The WireGuard public key of this node, to be published to the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<PublicKey>,
    /// Addresses that it added to foreign links. Kernels before Linux 5.18 do not keep the protocol of an address.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<AddressKey>,
    /// Bridges that its interfaces are ports of.
    pub used_bridges: BTreeSet<BridgeKey>,
    /// Its interfaces, each with the requesting object.
    pub interfaces: Vec<(ObjectKey, InterfaceReport)>,
    /// Its other items, each with the requesting object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<(ObjectKey, ItemReport)>,
    /// Sysctls of its interfaces, by path.
    #[serde(default)]
    pub sysctls: BTreeSet<String>,
    /// Its elements of the packet filter on the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "knit_model::serde_pairs")]
    pub filter: BTreeMap<ElementKey, ElementData>,
    /// Whether it has tables of the packet filter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_tables: bool,
    /// Interfaces of the pod with policies: the pod has a table of the packet filter.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub policy_interfaces: BTreeSet<IfName>,
    /// The bridge itself, for a bridge unit.
    pub bridge: Option<BridgeReport>,
    /// The tunnel to other nodes, for the bridge of an overlay network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<OverlayTunnel>,
    /// Warnings by object.
    pub warnings: Vec<(ObjectKey, String)>,
}

/// A source address of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A MAC address.
    Mac(Mac),
    /// An IP address.
    Address(IpAddr),
}

/// The source addresses of an interface.
pub(crate) fn sources(interface: &InterfaceReport) -> impl Iterator<Item = Source> {
    let addresses = interface.addresses.iter().map(|address| Source::Address(address.addr()));
    interface.mac.map(Source::Mac).into_iter().chain(addresses)
}

impl UnitState {
    /// The source addresses of its interfaces.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source> {
        self.interfaces.iter().flat_map(|(_, interface)| sources(interface))
    }

    /// The objects that requested interfaces or items.
    pub(crate) fn requesters(&self) -> impl Iterator<Item = &ObjectKey> {
        let interfaces = self.interfaces.iter().map(|(object, _)| object);
        interfaces.chain(self.items.iter().map(|(object, _)| object))
    }
}

/// The state of each unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitStates {
    units: BTreeMap<Unit, Arc<UnitState>>,
    host_links: BTreeMap<IfName, Unit>,
    bridge_users: BTreeMap<BridgeKey, BTreeSet<Unit>>,
    source_users: BTreeMap<Source, BTreeSet<Unit>>,
}

impl UnitStates {
    /// The state of a unit.
    pub fn get(&self, unit: &Unit) -> Option<&UnitState> {
        self.units.get(unit).map(Arc::as_ref)
    }

    /// The state of a unit, to be kept while it is replaced. A unit without state has an empty one.
    pub(crate) fn shared(&self, unit: &Unit) -> Arc<UnitState> {
        self.units.get(unit).cloned().unwrap_or_default()
    }

    /// Whether a unit has a state.
    pub fn contains_key(&self, unit: &Unit) -> bool {
        self.units.contains_key(unit)
    }

    /// The units, each with its state.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Unit, &UnitState)> + ExactSizeIterator + Clone {
        self.units.iter().map(|(unit, states)| (unit, states.as_ref()))
    }

    /// The units.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Unit> + ExactSizeIterator + Clone {
        self.units.keys()
    }

    /// The state of each unit.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &UnitState> + ExactSizeIterator + Clone {
        self.units.values().map(Arc::as_ref)
    }

    /// How many units have a state.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Whether no unit has a state.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Replaces the state of a unit.
    pub(crate) fn insert(&mut self, unit: Unit, states: Arc<UnitState>) {
        self.remove(&unit);
        for name in &states.host_links {
            self.host_links.entry(name.clone()).or_insert_with(|| unit.clone());
        }
        for bridge in &states.used_bridges {
            self.bridge_users.entry(bridge.clone()).or_default().insert(unit.clone());
        }
        for source in states.sources() {
            self.source_users.entry(source).or_default().insert(unit.clone());
        }
        self.units.insert(unit, states);
    }

    /// Removes a unit.
    pub(crate) fn remove(&mut self, unit: &Unit) {
        let Some(states) = self.units.remove(unit) else { return };
        for source in states.sources() {
            if let Some(users) = self.source_users.get_mut(&source) {
                users.remove(unit);
                if users.is_empty() {
                    self.source_users.remove(&source);
                }
            }
        }
        for name in &states.host_links {
            if self.host_links.get(name) == Some(unit) {
                self.host_links.remove(name);
            }
        }
        for bridge in &states.used_bridges {
            if let Some(users) = self.bridge_users.get_mut(bridge) {
                users.remove(unit);
                if users.is_empty() {
                    self.bridge_users.remove(bridge);
                }
            }
        }
    }

    /// The units with a port of this bridge.
    pub fn users_of(&self, bridge: &BridgeKey) -> impl Iterator<Item = &Unit> {
        self.bridge_users.get(bridge).into_iter().flatten()
    }

    /// The units with an interface that has this address, on any bridge.
    pub(crate) fn users_of_source(&self, source: Source) -> impl Iterator<Item = &Unit> {
        self.source_users.get(&source).into_iter().flatten()
    }

    /// The unit that owns this host link.
    pub fn holder(&self, host_link: &IfName) -> Option<&Unit> {
        self.host_links.get(host_link)
    }
}

impl Index<&Unit> for UnitStates {
    type Output = UnitState;

    fn index(&self, unit: &Unit) -> &UnitState {
        &self.units[unit]
    }
}

impl FromIterator<(Unit, UnitState)> for UnitStates {
    fn from_iter<I: IntoIterator<Item = (Unit, UnitState)>>(all: I) -> Self {
        let mut states = Self::default();
        all.into_iter().for_each(|(unit, of_unit)| states.insert(unit, Arc::new(of_unit)));
        states
    }
}

/// Serialised as a list of pairs; the index is derived.
impl Serialize for UnitStates {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(&self.units)
    }
}

impl<'de> Deserialize<'de> for UnitStates {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<(Unit, UnitState)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use knit_model::SandboxId;

    use super::*;

    fn unit(name: &str) -> Unit {
        Unit::Sandbox(SandboxId(name.to_owned()))
    }

    fn having(links: &[&str]) -> UnitState {
        UnitState {
            host_links: links.iter().map(|name| name.parse().unwrap()).collect(),
            ..UnitState::default()
        }
    }

    #[test]
    fn a_name_is_held_from_insert_to_remove_and_after_a_restart() {
        let mut states = UnitStates::default();
        states.insert(unit("a"), Arc::new(having(&["h1", "h2"])));
        states.insert(unit("a"), Arc::new(having(&["h2"])));
        assert_eq!(states.holder(&"h1".parse().unwrap()), None);
        let read: UnitStates = serde_json::from_str(&serde_json::to_string(&states).unwrap()).unwrap();
        assert_eq!(read, states);
        assert_eq!(read.holder(&"h2".parse().unwrap()), Some(&unit("a")));
        states.remove(&unit("a"));
        assert_eq!(states, UnitStates::default());
    }

    #[test]
    fn the_first_holder_of_a_name_keeps_it() {
        let mut states: UnitStates =
            [(unit("a"), having(&["h1"])), (unit("b"), having(&["h1"]))].into_iter().collect();
        assert_eq!(states.holder(&"h1".parse().unwrap()), Some(&unit("a")));
        states.remove(&unit("b"));
        assert_eq!(states.holder(&"h1".parse().unwrap()), Some(&unit("a")));
    }
}
