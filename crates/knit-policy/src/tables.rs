//! The chains and maps of policies in the table `inet knit`.
//!
//! A packet is judged by its connection and not by its own addresses: the source is the initiator before translation, the
//! destination is the end that answers, after translation. So packets in both directions, and ICMP errors about them, get
//! the same verdict, and a changed policy also applies to connections that exist.
//!
//! Maps lead from the address of a pod to the chain of its policies. Pods with the same policies share a chain.
//!
//! Isolation is about packets of the node's own pods only: Services are translated on the node of the client, so only there it
//! is known whether a connection goes through a Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::filter::field::{Field, IpFamily, ct_state, tcp_flags};
use knit_model::filter::rule::{Expression, FilterRule, Verdict};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, ElementKey, FilterChain, FilterSet, FilterTable, Hook, KeyPart,
    TableFamily,
};
use serde::{Deserialize, Serialize};

use crate::members::PEERS;

/// The chain of pods about which nothing is known yet in a namespace with policies: nothing is allowed.
pub const CLOSED: &str = "policy_closed";
/// The maps from the addresses of pods to the chains of their policies about connections to them.
const INGRESS: &str = "policy_ingress";
/// The maps from the addresses of pods to the chains of their policies about connections from them.
const EGRESS: &str = "policy_egress";
/// The addresses of pods with policies.
const PODS: &str = "policy_pods";
/// Each of these addresses, twice.
pub(crate) const SELF: &str = "policy_self";
/// The addresses of this node's own pods, while anything is isolated.
const LOCAL: &str = "policy_local";
/// The maps from the addresses of this node's isolated pods to the chains of their segments.
const ISOLATED: &str = "policy_isolated";
/// The same for pods of other nodes.
pub(crate) const ISOLATED_REMOTE: &str = "policy_remote_isolated";
/// The prefix of sets of ports.
pub(crate) const PORTS: &str = "policy_ports_";
/// The prefix of sets of ranges.
pub(crate) const RANGES: &str = "policy_ranges_";
const BASE: &str = "policy";
/// The usual priority of filter chains: after DNAT.
const PRIORITY: i32 = 0;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
/// From here to [`REDIRECT`]: multicast listener discovery, neighbour discovery.
const MLD_QUERY: u8 = 130;
const REDIRECT: u8 = 137;
const MLD_V2_REPORT: u8 = 143;

/// An element of a set or map, with its data.
pub type Element = (ElementKey, ElementData);

/// The chains of a pod; `None`: not restricted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodChains {
    /// For connections to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// For connections from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// That of its segment, if it is isolated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<String>,
    /// Whether its connections to isolated pods are restricted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confined: bool,
}

/// Chains of policies, and the sets that they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTables {
    /// The chains.
    pub chains: BTreeMap<String, Vec<FilterRule>>,
    /// The sets.
    pub sets: BTreeMap<String, FilterSet>,
}

/// The base chain and the maps to the chains of pods.
pub fn dispatch(table: &mut FilterTable, policies: &PolicyTables) {
    let (mut guards, mut tracked) = (Vec::new(), Vec::new());
    guards.extend(on_link());
    for family in IpFamily::ALL {
        let rule = || FilterRule::new().family(family);
        let pods = family.suffixed(PODS);
        for end in [Field::Source(family), Field::Destination(family)] {
            guards.extend(
                unknown_connections().map(|unknown| rule().and(unknown).in_set(&[end], &pods).drop()),
            );
        }
        let local = family.suffixed(LOCAL);
        let (from, to) = (Field::CtOriginalSource(family), Field::CtReplySource(family));
        for map in [ISOLATED, ISOLATED_REMOTE].map(|map| family.suffixed(map)) {
            tracked.push(rule().in_set(&[from], &local).verdict_map(&[to], &map));
            // Without a known connection no rule of the segment matches.
            let untracked = rule().any_bit(Field::CtState, ct_state::INVALID | ct_state::UNTRACKED);
            let untracked = untracked.in_set(&[Field::Source(family)], &local);
            tracked.push(untracked.verdict_map(&[Field::Destination(family)], &map));
        }
        tracked.push(rule().verdict_map(&[from], &family.suffixed(EGRESS)));
        tracked.push(rule().verdict_map(&[to], &family.suffixed(INGRESS)));
        let address = family.data_type();
        table.sets.insert(pods, FilterSet::keys(&[address]));
        table.sets.insert(family.suffixed(SELF), FilterSet::keys(&[address, address]));
        table.sets.insert(local, FilterSet::keys(&[address]));
        for map in [EGRESS, INGRESS, ISOLATED, ISOLATED_REMOTE] {
            table.sets.insert(family.suffixed(map), FilterSet::verdicts(&[address]));
        }
    }
    let base = BaseChain { chain_type: ChainType::Filter, hook: Hook::Forward, priority: PRIORITY };
    let rules = guards.into_iter().chain(tracked).collect();
    table.chains.insert(BASE.to_owned(), FilterChain { base: Some(base), rules });
    table.chains.insert(CLOSED.to_owned(), FilterChain { base: None, rules: vec![denied()] });
    for (name, rules) in &policies.chains {
        table.chains.insert(name.clone(), FilterChain { base: None, rules: rules.clone() });
    }
    table.sets.extend(policies.sets.iter().map(|(name, set)| (name.clone(), set.clone())));
}

/// Accepts IPv6 messages about the link itself, which connection tracking ignores.
pub(crate) fn on_link() -> [FilterRule; 2] {
    let untracked = FilterRule::new().family(IpFamily::V6).any_bit(Field::CtState, ct_state::UNTRACKED);
    let on_link = untracked.is(Field::L4Protocol, ICMPV6);
    [
        on_link.clone().between(Field::IcmpType, MLD_QUERY, REDIRECT).accept(),
        on_link.is(Field::IcmpType, MLD_V2_REPORT).accept(),
    ]
}

/// Match packets of which it is not known which connection they belong to, or which end opened it, because its first packet
/// was not seen.
pub(crate) fn unknown_connections() -> [FilterRule; 2] {
    let untracked = ct_state::INVALID | ct_state::UNTRACKED;
    let midway = FilterRule::new().any_bit(Field::CtState, ct_state::NEW).is(Field::L4Protocol, TCP);
    [FilterRule::new().any_bit(Field::CtState, untracked), midway.no_flag(tcp_flags::SYN)]
}

impl PodChains {
    /// Whether no policy restricts the pod.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The elements of an address of the pod.
    pub fn elements(&self, address: IpAddr) -> Vec<Element> {
        let family = IpFamily::of(address);
        let named = |set: &str, parts: usize| element(family.suffixed(set), vec![address.into(); parts]);
        let to = |set: &str, chain: &Option<String>| {
            let chain = chain.clone()?;
            Some((named(set, 1), ElementData::Verdict(Verdict::Jump(chain))))
        };
        let maps = [to(INGRESS, &self.ingress), to(EGRESS, &self.egress), to(ISOLATED, &self.segment)];
        let is_restricted = self.ingress.is_some() || self.egress.is_some();
        let keys = [(PODS, 1, is_restricted), (SELF, 2, is_restricted), (LOCAL, 1, self.confined)];
        let keys = keys.into_iter().filter(|(_, _, applies)| *applies);
        let keys = keys.map(|(set, parts, _)| (named(set, parts), ElementData::Key));
        keys.chain(maps.into_iter().flatten()).collect()
    }
}

/// Whether an element is about the policies of one pod.
pub fn is_pod_element(key: &ElementKey) -> bool {
    let sets = [PODS, SELF, INGRESS, EGRESS, LOCAL, ISOLATED];
    IpFamily::without_suffix(&key.set).is_some_and(|name| sets.contains(&name))
}

/// Whether a chain or set of the table `inet knit` belongs to policies.
pub fn is_policy_name(name: &str) -> bool {
    name.starts_with(BASE)
}

/// Whether a chain or set of the table `inet knit` follows from policies: it is not one of those that [`dispatch`] always adds.
pub fn is_rule_name(name: &str) -> bool {
    let prefixes = ["policy_ingress_", "policy_egress_", "policy_segment_", PEERS, PORTS, RANGES];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a set contains pods of other nodes: no single pod of this node owns its elements.
pub fn is_peer_set(name: &str) -> bool {
    name.starts_with(PEERS) || name.starts_with(ISOLATED_REMOTE)
}

impl PolicyTables {
    /// Chains with these names that allow nothing.
    pub fn closed(names: impl IntoIterator<Item = String>) -> Self {
        let chains = names.into_iter().map(|name| (name, vec![denied()])).collect();
        Self { chains, sets: BTreeMap::new() }
    }

    /// Adds chains of other tables, and the chains and sets that they refer to. Those that are here already stay as they are.
    pub fn retain(&mut self, names: impl IntoIterator<Item = String>, from: &Self) {
        let mut names: Vec<String> = names.into_iter().collect();
        while let Some(name) = names.pop() {
            let Some(rules) = from.chains.get(&name).filter(|_| !self.chains.contains_key(&name)) else {
                continue;
            };
            for expression in rules.iter().flat_map(|rule| &rule.expressions) {
                if let Expression::Lookup { set, .. } = expression
                    && let Some(declaration) = from.sets.get(set)
                {
                    self.sets.entry(set.clone()).or_insert_with(|| declaration.clone());
                }
                if let Expression::Verdict(Verdict::Goto(rest)) = expression {
                    names.push(rest.clone());
                }
            }
            self.chains.insert(name, rules.clone());
        }
    }
}

/// The end of chains in which what no rule allows is denied.
pub(crate) fn denied() -> FilterRule {
    FilterRule::new().then(Expression::Count).drop().comment("allowed by no policy")
}

pub(crate) fn element(set: String, key: Vec<KeyPart>) -> ElementKey {
    TableFamily::Inet.table().element(set, key)
}
