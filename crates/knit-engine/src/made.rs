//! What the units have in the kernel, and whose each link of the host is.
//!
//! Two units never have the same link of the host. So that nobody has to walk through all units to know whether a name
//! is free, the names are kept beside the units; only this module changes either.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use knit_model::report::{BridgeReport, InterfaceReport, ItemReport};
use knit_model::state::AddressKey;
use knit_model::{IfName, PublicKey, Rule};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::event::Unit;
use crate::spans::Tunnel;
use crate::state::{BridgeKey, ObjectKey};

/// What a unit has in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its links on the host.
    pub host_links: BTreeSet<IfName>,
    /// Its rules on the host.
    pub rules: BTreeSet<Rule>,
    /// Links of the host that its routes to other nodes leave by.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ways: BTreeSet<IfName>,
    /// The public key of the encrypted ways to other nodes: what those have to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<PublicKey>,
    /// Addresses that it has on links of others. Kernels before Linux 5.18 do not keep the mark of an address.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub addresses: BTreeSet<AddressKey>,
    /// Bridges that its interfaces are ports of.
    pub uses: BTreeSet<BridgeKey>,
    /// Its interfaces, each with the object that asked.
    pub interfaces: Vec<(ObjectKey, InterfaceReport)>,
    /// What it has beside interfaces, each with the object that asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<(ObjectKey, ItemReport)>,
    /// Sysctls of its interfaces, by path.
    #[serde(default)]
    pub sysctls: BTreeSet<String>,
    /// The bridge itself, for a bridge's unit.
    pub bridge: Option<BridgeReport>,
    /// The tunnel to other nodes, for the unit of a bridge whose network is one on all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// What works, but not as a person would expect.
    pub warnings: Vec<(ObjectKey, String)>,
}

impl Made {
    /// The objects that asked for what a sandbox has.
    pub(crate) fn askers(&self) -> impl Iterator<Item = &ObjectKey> {
        let interfaces = self.interfaces.iter().map(|(object, _)| object);
        interfaces.chain(self.items.iter().map(|(object, _)| object))
    }
}

/// What each unit has. Reads as a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllMade {
    units: BTreeMap<Unit, Made>,
    host_links: BTreeMap<IfName, Unit>,
}

impl AllMade {
    /// A unit has this now, and nothing else.
    pub(crate) fn insert(&mut self, unit: Unit, made: Made) {
        self.remove(&unit);
        for name in &made.host_links {
            self.host_links.entry(name.clone()).or_insert_with(|| unit.clone());
        }
        self.units.insert(unit, made);
    }

    /// A unit has nothing any more.
    pub(crate) fn remove(&mut self, unit: &Unit) {
        let Some(made) = self.units.remove(unit) else { return };
        for name in made.host_links {
            if self.host_links.get(&name) == Some(unit) {
                self.host_links.remove(&name);
            }
        }
    }

    /// The unit that has this link of the host.
    pub fn holder(&self, host_link: &IfName) -> Option<&Unit> {
        self.host_links.get(host_link)
    }
}

impl Deref for AllMade {
    type Target = BTreeMap<Unit, Made>;

    fn deref(&self) -> &Self::Target {
        &self.units
    }
}

impl<'a> IntoIterator for &'a AllMade {
    type Item = (&'a Unit, &'a Made);
    type IntoIter = std::collections::btree_map::Iter<'a, Unit, Made>;

    fn into_iter(self) -> Self::IntoIter {
        self.units.iter()
    }
}

impl FromIterator<(Unit, Made)> for AllMade {
    fn from_iter<I: IntoIterator<Item = (Unit, Made)>>(all: I) -> Self {
        let mut made = Self::default();
        all.into_iter().for_each(|(unit, of_unit)| made.insert(unit, of_unit));
        made
    }
}

/// Written as a list of pairs; the names follow from it.
impl Serialize for AllMade {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(&self.units)
    }
}

impl<'de> Deserialize<'de> for AllMade {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<(Unit, Made)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use knit_model::SandboxId;

    use super::*;

    fn unit(name: &str) -> Unit {
        Unit::Sandbox(SandboxId(name.to_owned()))
    }

    fn having(links: &[&str]) -> Made {
        Made { host_links: links.iter().map(|name| name.parse().unwrap()).collect(), ..Made::default() }
    }

    #[test]
    fn a_name_is_held_from_insert_to_remove_and_after_a_restart() {
        let mut made = AllMade::default();
        made.insert(unit("a"), having(&["h1", "h2"]));
        made.insert(unit("a"), having(&["h2"]));
        assert_eq!(made.holder(&"h1".parse().unwrap()), None);
        let read: AllMade = serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap();
        assert_eq!(read, made);
        assert_eq!(read.holder(&"h2".parse().unwrap()), Some(&unit("a")));
        made.remove(&unit("a"));
        assert_eq!(made, AllMade::default());
    }

    #[test]
    fn the_first_holder_of_a_name_keeps_it() {
        let mut made: AllMade =
            [(unit("a"), having(&["h1"])), (unit("b"), having(&["h1"]))].into_iter().collect();
        assert_eq!(made.holder(&"h1".parse().unwrap()), Some(&unit("a")));
        made.remove(&unit("b"));
        assert_eq!(made.holder(&"h1".parse().unwrap()), Some(&unit("a")));
    }
}
