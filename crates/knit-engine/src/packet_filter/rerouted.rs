//! Pods whose connections have to be routed again because their egress path changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::filter::{ElementData, ElementKey};

use super::tables::{EGRESS_BLOCKED, EGRESS_PODS, EGRESS_SNAT, EGRESS_SNAT_PODS};

/// The pods whose SNAT moved to this node or away from it.
pub(super) fn rerouted(
    old: &BTreeMap<ElementKey, ElementData>,
    new: &BTreeMap<ElementKey, ElementData>,
) -> BTreeSet<IpAddr> {
    let paths = |elements: &BTreeMap<ElementKey, ElementData>| {
        let mut paths: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
        for (key, data) in elements {
            let sets = [EGRESS_BLOCKED, EGRESS_SNAT_PODS, EGRESS_SNAT, EGRESS_PODS];
            if let Some(address) = key.address().filter(|_| sets.iter().any(|set| key.set.starts_with(set))) {
                paths.entry(address).or_default().insert(format!("{}{data}", key.set));
            }
        }
        paths
    };
    let (before, now) = (paths(old), paths(new));
    let none = BTreeSet::new();
    let is_local = |path: &BTreeSet<String>| path.iter().any(|set| set.starts_with(EGRESS_SNAT));
    let is_rerouted = |address: &IpAddr, path: &BTreeSet<String>| {
        let other = now.get(address).unwrap_or(&none);
        other != path && (is_local(path) || is_local(other) || other.is_empty())
    };
    before.iter().filter(|(address, path)| is_rerouted(address, path)).map(|(address, _)| *address).collect()
}
