//! Policies about the additional interfaces of a pod: a table in the pod's own network namespace.
//!
//! There it is known which end opened a connection: it was either received on the interface or sent from it. So addresses that
//! several networks or tenants use do not matter, and it works for every kind of interface. What the pod itself can change in
//! its namespace is not prevented: with the capability `NET_ADMIN` it can remove the table, with `NET_RAW` it can send packets
//! that no rule sees.

use std::collections::BTreeMap;

use knit_model::IfName;
use knit_model::filter::field::{DataType, Field, IpFamily};
use knit_model::filter::rule::{FilterRule, Verdict};
use knit_model::filter::{BaseChain, ChainType, ElementData, FilterChain, FilterSet, FilterTable, Hook};
use serde::{Deserialize, Serialize};

use crate::compile::{Compiler, LocalPod, peer_element};
use crate::index::{PodKey, PolicyIndex};
use crate::policy::Direction;
use crate::tables::{CLOSED, Element, PolicyTables, SELF, denied, element, on_link, unknown_connections};

/// The interfaces with policies.
const INTERFACES: &str = "policy_interfaces";
/// The chains of interfaces for connections to the pod.
const INGRESS: &str = "policy_ingress";
/// The chains of interfaces for connections from the pod.
const EGRESS: &str = "policy_egress";
const PRIORITY: i32 = 0;
const ORIGINAL: u8 = 0;
const REPLY: u8 = 1;

/// An additional interface of a pod, with the networks that policies can select it by, as `Kind/namespace/name`.
pub type PodInterface = (IfName, Vec<String>);

/// The table of a pod with its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfacePolicies {
    /// The table `inet knit` of the pod.
    pub table: FilterTable,
    /// Its elements.
    pub elements: Vec<Element>,
    /// The interfaces that it restricts.
    pub interfaces: Vec<IfName>,
}

/// The chains of an interface by direction.
type InterfaceChains = (IfName, BTreeMap<Direction, String>);

impl PolicyIndex {
    /// The policies about additional interfaces of a pod; `None` without any. The sets of peers that they refer to are kept up
    /// to date until [`PolicyIndex::forget_network_peers`].
    pub fn compile_interfaces(
        &mut self,
        local: LocalPod<'_>,
        interfaces: &[PodInterface],
    ) -> Option<InterfacePolicies> {
        let mut compiler = Compiler::new(self);
        let chains: Vec<InterfaceChains> = interfaces
            .iter()
            .map(|(name, networks)| (name.clone(), compiler.interface_chains(local, networks)))
            .filter(|(_, chains)| !chains.is_empty())
            .collect();
        let Compiler { tables, mut elements, peer_sets, .. } = compiler;
        if chains.is_empty() {
            return None;
        }
        let names: Vec<String> = peer_sets.names().map(str::to_owned).collect();
        self.network_peer_sets.add_missing(peer_sets, &self.pods, &self.namespaces);
        for name in &names {
            let members = self.network_peer_sets.members_of(name);
            elements.extend(members.map(|member| peer_element(name, member)));
        }
        Some(InterfacePolicies::of(&chains, &tables, elements))
    }

    /// Drops the sets of peers on additional networks. The next compilations declare those that are still used.
    pub fn forget_network_peers(&mut self) {
        self.network_peer_sets = Default::default();
    }
}

impl Compiler<'_> {
    /// The chains of an interface. A pod that is not known yet is closed if any policy could be about it.
    fn interface_chains(&mut self, local: LocalPod<'_>, networks: &[String]) -> BTreeMap<Direction, String> {
        let index = self.index;
        let key = PodKey { namespace: local.namespace.to_owned(), name: local.name.to_owned() };
        let known = index.pod(&key).filter(|pod| pod.has_uid(local.uid));
        let chain = |direction| match known {
            None => {
                let mut all = index.restricting_on(local.namespace, networks, direction);
                all.next().map(|_| CLOSED.to_owned())
            }
            Some(pod) => {
                let all = index.about_on(pod, networks, direction);
                (!all.is_empty()).then(|| self.chain(local.namespace, &all, None, pod.ports(), direction))
            }
        };
        let chains = Direction::ALL.map(chain);
        Direction::ALL
            .into_iter()
            .zip(chains)
            .filter_map(|(direction, chain)| Some((direction, chain?)))
            .collect()
    }
}

impl InterfacePolicies {
    /// The table of a pod of which nothing is known yet: nothing is allowed on these interfaces.
    pub fn closed(interfaces: impl IntoIterator<Item = IfName>) -> Self {
        let both = || Direction::ALL.map(|direction| (direction, CLOSED.to_owned())).into();
        let chains: Vec<InterfaceChains> = interfaces.into_iter().map(|name| (name, both())).collect();
        Self::of(&chains, &PolicyTables::default(), Vec::new())
    }

    fn of(chains: &[InterfaceChains], tables: &PolicyTables, mut elements: Vec<Element>) -> Self {
        for (interface, of_interface) in chains {
            let key = || vec![interface.into()];
            elements.push((element(INTERFACES.to_owned(), key()), ElementData::Key));
            elements.extend(of_interface.iter().map(|(direction, chain)| {
                let map = element(map_of(*direction).to_owned(), key());
                (map, ElementData::Verdict(Verdict::Jump(chain.clone())))
            }));
        }
        let interfaces = chains.iter().map(|(name, _)| name.clone()).collect();
        Self { table: table(tables), elements, interfaces }
    }
}

fn map_of(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => INGRESS,
        Direction::Egress => EGRESS,
    }
}

fn table(policies: &PolicyTables) -> FilterTable {
    let mut table = FilterTable { sets: policies.sets.clone(), ..FilterTable::default() };
    table.sets.insert(INTERFACES.to_owned(), FilterSet::keys(&[DataType::Name]));
    for map in [INGRESS, EGRESS] {
        table.sets.insert(map.to_owned(), FilterSet::verdicts(&[DataType::Name]));
    }
    for family in IpFamily::ALL {
        // A pod reaches itself through `lo`, which has no policy.
        let address = family.data_type();
        table.sets.insert(family.suffixed(SELF), FilterSet::keys(&[address, address]));
    }
    let received = base(Hook::Input, Field::IifName, [(ORIGINAL, INGRESS), (REPLY, EGRESS)]);
    let sent = base(Hook::Output, Field::OifName, [(ORIGINAL, EGRESS), (REPLY, INGRESS)]);
    table.chains.insert("policy_input".to_owned(), received);
    table.chains.insert("policy_output".to_owned(), sent);
    let mut chain = |name: &str, rules: Vec<FilterRule>| {
        table.chains.insert(name.to_owned(), FilterChain { base: None, rules });
    };
    chain(CLOSED, vec![denied()]);
    policies.chains.iter().for_each(|(name, rules)| chain(name, rules.clone()));
    table
}

/// The rules of a hook: packets in each direction of their connection lead to the chain of one map.
fn base(hook: Hook, interface: Field, maps: [(u8, &str); 2]) -> FilterChain {
    let unknown = unknown_connections().map(|unknown| unknown.in_set(&[interface], INTERFACES).drop());
    let known = maps.map(|(direction, map)| {
        FilterRule::new().is(Field::CtDirection, direction).verdict_map(&[interface], map)
    });
    let rules = on_link().into_iter().chain(unknown).chain(known).collect();
    let base = BaseChain { chain_type: ChainType::Filter, hook, priority: PRIORITY };
    FilterChain { base: Some(base), rules }
}
