//! The rules of the packet filter on one node.
//!
//! A packet is judged by its connection and not by its own addresses: the source is the initiator before translation, the
//! destination is the end that answers, after translation. So packets in both directions, and ICMP errors about them, get
//! the same verdict, and a changed policy also applies to connections that exist.
//!
//! Maps lead from the address of a pod to the chain of its policies. Pods with the same policies share a chain.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::filter::field::{DataType, Field, IpFamily, ct_state, tcp_flags};
use knit_model::filter::rule::{Expression, FilterRule, Verdict};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, ElementKey, FilterChain, FilterSet, FilterTable, Hook, KeyPart,
    TableFamily, outermost,
};
use serde::{Deserialize, Serialize};

use crate::index::{PodKey, PolicyIndex, PolicyPod};
use crate::labels::LabelSelector;
use crate::members::{PeerSet, PeerSets, short_hash};
use crate::policy::{
    Direction, Namespaces, Peer, PodSelector, Policy, PolicyId, PortMatch, PortNumber, Protocol, Rule,
};
use crate::ranges;

/// The chain of pods about which nothing is known yet in a namespace with policies: nothing is allowed.
pub const CLOSED: &str = "policy_closed";
/// The maps from the addresses of pods to the chains of their policies about connections to them.
const INGRESS: &str = "policy_ingress";
/// The maps from the addresses of pods to the chains of their policies about connections from them.
const EGRESS: &str = "policy_egress";
/// The addresses of pods with policies.
const PODS: &str = "policy_pods";
/// Each of these addresses, twice.
const SELF: &str = "policy_self";
const BASE: &str = "policy";
/// The prefix of the sets of pods that rules refer to.
pub(crate) const PEERS: &str = "policy_peers_";
/// The usual priority of filter chains: after DNAT.
const PRIORITY: i32 = 0;
/// The longest comment that the kernel stores.
const MAX_COMMENT: usize = 127;

const TCP: u8 = 6;
const ICMPV6: u8 = 58;
/// From here to [`REDIRECT`]: multicast listener discovery, neighbour discovery.
const MLD_QUERY: u8 = 130;
const REDIRECT: u8 = 137;
const MLD_V2_REPORT: u8 = 143;

/// A pod of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPod<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// The chains of a pod; `None`: not restricted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodChains {
    /// For connections to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// For connections from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
}

/// Chains of policies, and the sets that they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyTables {
    /// The chains.
    pub chains: BTreeMap<String, Vec<FilterRule>>,
    /// The sets.
    pub sets: BTreeMap<String, FilterSet>,
}

/// The policies of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicies {
    /// The chains of each pod, in the order of the request.
    pub pods: Vec<PodChains>,
    /// The chains and sets of all pods.
    pub tables: PolicyTables,
    /// Elements that do not change with pods: ranges and ports.
    pub elements: Vec<ElementKey>,
}

impl PolicyIndex {
    /// The policies of the given pods.
    pub fn compile<'a>(&mut self, local: impl IntoIterator<Item = LocalPod<'a>>) -> NodePolicies {
        let mut compiler =
            Compiler { index: self, result: NodePolicies::default(), peer_sets: PeerSets::default() };
        for pod in local {
            let [ingress, egress] = Direction::ALL.map(|direction| compiler.chain_of(pod, direction));
            compiler.result.pods.push(PodChains { ingress, egress });
        }
        let Compiler { result, peer_sets, .. } = compiler;
        self.retain_peer_sets(peer_sets);
        result
    }

    /// The addresses of pods that the compiled rules refer to.
    pub fn peer_elements(&self) -> Vec<ElementKey> {
        let mut all = Vec::new();
        for (name, _, members) in self.peer_sets.all() {
            all.extend(members.map(|(address, port)| {
                let port = port.map(KeyPart::from);
                let key = [KeyPart::from(*address)].into_iter().chain(port).collect();
                element(IpFamily::of(*address).suffixed(name), key)
            }));
        }
        all
    }
}

/// The base chain and the maps to the chains of pods.
pub fn dispatch(table: &mut FilterTable, policies: &PolicyTables) {
    let (mut guards, mut tracked) = (Vec::new(), Vec::new());
    for family in IpFamily::ALL {
        let rule = || FilterRule::new().family(family);
        let pods = family.suffixed(PODS);
        // Connection tracking ignores messages about the link itself.
        let on_link = || rule().any_bit(Field::CtState, ct_state::UNTRACKED).is(Field::L4Protocol, ICMPV6);
        if family == IpFamily::V6 {
            guards.push(on_link().between(Field::IcmpType, MLD_QUERY, REDIRECT).accept());
            guards.push(on_link().is(Field::IcmpType, MLD_V2_REPORT).accept());
        }
        for end in [Field::Source(family), Field::Destination(family)] {
            // Which connection such a packet belongs to is not known.
            let untracked = ct_state::INVALID | ct_state::UNTRACKED;
            guards.push(rule().any_bit(Field::CtState, untracked).in_set(&[end], &pods).drop());
            // Nor which end opened a connection whose first packet was not seen.
            let midway = rule().any_bit(Field::CtState, ct_state::NEW).is(Field::L4Protocol, TCP);
            let midway = midway.no_flag(tcp_flags::SYN);
            guards.push(midway.in_set(&[end], &pods).drop());
        }
        let (from, to) = (Field::CtOriginalSource(family), Field::CtReplySource(family));
        tracked.push(rule().verdict_map(&[from], &family.suffixed(EGRESS)));
        tracked.push(rule().verdict_map(&[to], &family.suffixed(INGRESS)));
        let address = family.data_type();
        table.sets.insert(pods, FilterSet::keys(&[address]));
        table.sets.insert(family.suffixed(SELF), FilterSet::keys(&[address, address]));
        for map in [EGRESS, INGRESS] {
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

impl PodChains {
    /// Whether no policy restricts the pod.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The elements of an address of the pod.
    pub fn elements(&self, address: IpAddr) -> Vec<(ElementKey, ElementData)> {
        let family = IpFamily::of(address);
        let named = |set: &str, parts: usize| element(family.suffixed(set), vec![address.into(); parts]);
        if self.is_empty() {
            return Vec::new();
        }
        let to = |set: &str, chain: &Option<String>| {
            let chain = chain.clone()?;
            Some((named(set, 1), ElementData::Verdict(Verdict::Jump(chain))))
        };
        let maps = [to(INGRESS, &self.ingress), to(EGRESS, &self.egress)].into_iter().flatten();
        let keys = [(named(PODS, 1), ElementData::Key), (named(SELF, 2), ElementData::Key)];
        keys.into_iter().chain(maps).collect()
    }
}

/// Whether an element leads from a pod to its policies.
pub fn is_pod_element(key: &ElementKey) -> bool {
    let sets = [PODS, SELF, INGRESS, EGRESS];
    sets.iter().any(|set| IpFamily::ALL.iter().any(|family| key.set == family.suffixed(set)))
}

/// Whether a chain or set of the table `inet knit` belongs to policies.
pub fn is_policy_name(name: &str) -> bool {
    name.starts_with(BASE)
}

/// Whether a set contains pods of other nodes: no single pod of this node owns its elements.
pub fn is_peer_set(name: &str) -> bool {
    name.starts_with(PEERS)
}

impl PolicyTables {
    /// Chains with these names that allow nothing.
    pub fn closed(names: impl IntoIterator<Item = String>) -> Self {
        let chains = names.into_iter().map(|name| (name, vec![denied()])).collect();
        Self { chains, sets: BTreeMap::new() }
    }

    /// Adds chains of other tables, and the sets that they refer to. Those that are here already stay as they are.
    pub fn retain(&mut self, names: impl IntoIterator<Item = String>, from: &Self) {
        for name in names {
            let Some(rules) = from.chains.get(&name).filter(|_| !self.chains.contains_key(&name)) else {
                continue;
            };
            for expression in rules.iter().flat_map(|rule| &rule.expressions) {
                if let Expression::Lookup { set, .. } = expression
                    && let Some(declaration) = from.sets.get(set)
                {
                    self.sets.entry(set.clone()).or_insert_with(|| declaration.clone());
                }
            }
            self.chains.insert(name, rules.clone());
        }
    }
}

/// The end of every chain of policies.
fn denied() -> FilterRule {
    FilterRule::new().then(Expression::Count).drop().comment("allowed by no policy")
}

fn element(set: String, key: Vec<KeyPart>) -> ElementKey {
    TableFamily::Inet.table().element(set, key)
}

struct Compiler<'a> {
    index: &'a PolicyIndex,
    result: NodePolicies,
    peer_sets: PeerSets,
}

/// Protocols and ports of a rule: a match of the connection's protocol and destination port.
#[derive(Clone)]
enum Ports {
    Any,
    Range(Protocol, u16, u16),
    /// A set of protocols with ranges.
    Set(String),
    /// The port that the destination declares.
    Named(Protocol, String),
}

impl Compiler<'_> {
    /// The chain of a pod's policies about a direction.
    fn chain_of(&mut self, local: LocalPod<'_>, direction: Direction) -> Option<String> {
        let LocalPod { namespace, name, uid } = local;
        let key = PodKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let Some(pod) = self.index.pod(&key).filter(|pod| pod.uid == uid) else {
            let is_restricted = self.index.restricting(namespace, direction).next().is_some();
            return is_restricted.then(|| CLOSED.to_owned());
        };
        let policies: Vec<&Policy> = self.index.about(namespace, pod, direction).collect();
        if policies.is_empty() {
            return None;
        }
        let chain = chain_name(namespace, &policies, pod, direction);
        if !self.result.tables.chains.contains_key(&chain) {
            let mut rules = Vec::new();
            for policy in policies {
                for (at, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
                    let comment = comment(&policy.id, direction, at);
                    self.rule(rule, pod, direction, &comment, &mut rules);
                }
            }
            for family in IpFamily::ALL {
                let both = [Field::CtOriginalSource(family), Field::CtReplySource(family)];
                let own = FilterRule::new().family(family).in_set(&both, &family.suffixed(SELF));
                rules.push(own.return_().comment("a pod reaches itself"));
            }
            rules.push(denied());
            self.result.tables.chains.insert(chain.clone(), rules);
        }
        Some(chain)
    }

    fn rule(
        &mut self,
        rule: &Rule,
        pod: &PolicyPod,
        direction: Direction,
        comment: &str,
        rules: &mut Vec<FilterRule>,
    ) {
        for ports in self.ports(rule, pod, direction) {
            let selected = match &rule.peers {
                None => vec![self.anyone(&ports)],
                Some(peers) => self.peers(peers, &ports, direction),
            };
            rules.extend(selected.into_iter().flatten().map(|rule| rule.return_().comment(comment)));
        }
    }

    /// The ports of a rule. All ports that are known by number are one match.
    fn ports(&mut self, rule: &Rule, pod: &PolicyPod, direction: Direction) -> Vec<Ports> {
        let Some(ports) = &rule.ports else { return vec![Ports::Any] };
        let mut ranges: Vec<(Protocol, u16, u16)> = Vec::new();
        let mut all = Vec::new();
        for PortMatch { protocol, port } in ports {
            match port {
                None => ranges.push((*protocol, 0, u16::MAX)),
                Some(PortNumber::Range(first, last)) => ranges.push((*protocol, *first, *last)),
                // The destination is the pod itself.
                Some(PortNumber::Named(name)) if direction == Direction::Ingress => {
                    let declared =
                        pod.ports.iter().filter(|one| one.protocol == *protocol && one.name == *name);
                    ranges.extend(declared.map(|one| (*protocol, one.port, one.port)));
                }
                Some(PortNumber::Named(name)) => all.push(Ports::Named(*protocol, name.clone())),
            }
        }
        match &merged(ranges)[..] {
            [] => {}
            [(protocol, first, last)] => all.push(Ports::Range(*protocol, *first, *last)),
            several => all.push(Ports::Set(self.port_set(several))),
        }
        all
    }

    fn port_set(&mut self, ranges: &[(Protocol, u16, u16)]) -> String {
        let keys: Vec<Vec<KeyPart>> = ranges
            .iter()
            .map(|(protocol, first, last)| {
                vec![KeyPart::only(protocol.number()), KeyPart::Range((*first).into(), (*last).into())]
            })
            .collect();
        let set = FilterSet { intervals: true, ..FilterSet::keys(&[DataType::Protocol, DataType::Port]) };
        self.constant_set("policy_ports_", "", set, keys)
    }

    fn address_set(&mut self, family: IpFamily, ranges: &[IpNet]) -> String {
        let keys = ranges.iter().map(|range| vec![KeyPart::range(*range)]).collect();
        self.constant_set("policy_ranges_", &family.suffixed(""), FilterSet::ranges(family), keys)
    }

    /// A set whose elements are known. Its name follows from them.
    fn constant_set(
        &mut self,
        prefix: &str,
        suffix: &str,
        set: FilterSet,
        keys: Vec<Vec<KeyPart>>,
    ) -> String {
        let content = serde_json::to_vec(&keys).unwrap_or_default();
        let name = format!("{prefix}{}{suffix}", short_hash(&content));
        if self.result.tables.sets.insert(name.clone(), set).is_none() {
            self.result.elements.extend(keys.into_iter().map(|key| element(name.clone(), key)));
        }
        name
    }

    /// Matches any peer.
    fn anyone(&mut self, ports: &Ports) -> Vec<FilterRule> {
        match ports {
            Ports::Named(protocol, name) => {
                let all = PodSelector {
                    namespaces: Namespaces::Labelled(LabelSelector::default()),
                    pods: LabelSelector::default(),
                };
                self.selected(&all, Direction::Egress, Some((*protocol, name.clone())))
            }
            ports => vec![with_ports(FilterRule::new(), ports)],
        }
    }

    fn peers(&mut self, peers: &[Peer], ports: &Ports, direction: Direction) -> Vec<Vec<FilterRule>> {
        let mut all = Vec::new();
        let mut addresses: Vec<IpNet> = Vec::new();
        for peer in peers {
            match (peer, ports) {
                (Peer::Pods(selector), Ports::Named(protocol, name)) => {
                    all.push(self.selected(selector, direction, Some((*protocol, name.clone()))));
                }
                (Peer::Pods(selector), ports) => {
                    let rules = self.selected(selector, direction, None);
                    all.push(rules.into_iter().map(|rule| with_ports(rule, ports)).collect());
                }
                (Peer::Range { range, except }, _) => addresses.extend(ranges::without(*range, except)),
            }
        }
        let addresses = outermost(addresses);
        for family in IpFamily::ALL {
            let of_family = addresses.iter().filter(|range| IpFamily::of(range.addr()) == family);
            let of_family: Vec<IpNet> = of_family.copied().collect();
            let field = peer_field(family, direction);
            let rule = FilterRule::new().family(family);
            let rule = match &of_family[..] {
                [] => continue,
                [range] => rule.within(field, *range),
                several => rule.in_set(&[field], &self.address_set(family, several)),
            };
            match ports {
                // Only a pod declares ports: it has to be in the range, too.
                Ports::Named(..) => {
                    let declared = self.anyone(ports).into_iter();
                    let of_family = declared.filter(|one| {
                        one.expressions.starts_with(&FilterRule::new().family(family).expressions)
                    });
                    all.push(of_family.map(|one| joined(rule.clone(), one)).collect());
                }
                ports => all.push(vec![with_ports(rule, ports)]),
            }
        }
        all
    }

    /// Matches the peers that a selector selects: one rule for each family.
    fn selected(
        &mut self,
        selector: &PodSelector,
        direction: Direction,
        named_port: Option<(Protocol, String)>,
    ) -> Vec<FilterRule> {
        let set = PeerSet { selector: selector.clone(), named_port: named_port.clone() };
        let name = self.peer_sets.declare(set);
        let rule = |family: IpFamily| {
            let set = family.suffixed(&name);
            let rule = FilterRule::new().family(family);
            let field = peer_field(family, direction);
            match &named_port {
                Some((protocol, _)) => {
                    let rule = rule.is(Field::CtProtocol, protocol.number());
                    rule.in_set(&[field, Field::CtReplySourcePort], &set)
                }
                None => rule.in_set(&[field], &set),
            }
        };
        let rules = IpFamily::ALL.map(rule).to_vec();
        for family in IpFamily::ALL {
            let port = named_port.as_ref().map(|_| DataType::Port);
            let key: Vec<DataType> = [family.data_type()].into_iter().chain(port).collect();
            self.result.tables.sets.insert(family.suffixed(&name), FilterSet::keys(&key));
        }
        rules
    }
}

/// The address of the other end.
fn peer_field(family: IpFamily, direction: Direction) -> Field {
    match direction {
        Direction::Ingress => Field::CtOriginalSource(family),
        Direction::Egress => Field::CtReplySource(family),
    }
}

fn with_ports(rule: FilterRule, ports: &Ports) -> FilterRule {
    match ports {
        Ports::Any | Ports::Named(..) => rule,
        Ports::Range(protocol, 0, u16::MAX) => rule.is(Field::CtProtocol, protocol.number()),
        Ports::Range(protocol, first, last) if first == last => {
            rule.is(Field::CtProtocol, protocol.number()).is(Field::CtReplySourcePort, *first)
        }
        Ports::Range(protocol, first, last) => {
            let rule = rule.is(Field::CtProtocol, protocol.number());
            rule.between(Field::CtReplySourcePort, *first, *last)
        }
        Ports::Set(name) => rule.in_set(&[Field::CtProtocol, Field::CtReplySourcePort], name),
    }
}

/// A rule with the matches of both.
fn joined(mut rule: FilterRule, other: FilterRule) -> FilterRule {
    rule.expressions.extend(other.expressions);
    rule
}

/// The ranges of each protocol without overlaps, sorted: a set of ranges accepts none.
fn merged(mut ranges: Vec<(Protocol, u16, u16)>) -> Vec<(Protocol, u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(Protocol, u16, u16)> = Vec::new();
    for (protocol, first, last) in ranges {
        match merged.last_mut() {
            Some((same, _, end)) if *same == protocol && u32::from(first) <= u32::from(*end) + 1 => {
                *end = last.max(*end);
            }
            _ => merged.push((protocol, first, last)),
        }
    }
    merged
}

/// The name of the chain of these policies. Named ports of ingress rules are numbers in it, so it depends on the pod's ports.
fn chain_name(namespace: &str, policies: &[&Policy], pod: &PolicyPod, direction: Direction) -> String {
    let ids: Vec<&PolicyId> = policies.iter().map(|policy| &policy.id).collect();
    let rules = policies.iter().flat_map(|policy| policy.rules(direction).unwrap_or_default());
    let names = rules.flat_map(|rule| rule.ports.iter().flatten()).filter_map(|port| match &port.port {
        Some(PortNumber::Named(name)) if direction == Direction::Ingress => Some(name),
        _ => None,
    });
    let names: Vec<&String> = names.collect();
    let ports: Vec<_> = pod.ports.iter().filter(|port| names.contains(&&port.name)).collect();
    let content = serde_json::to_vec(&(ids, ports)).unwrap_or_default();
    format!("policy_{}_{namespace}_{}", direction.name(), short_hash(&content))
}

fn comment(id: &PolicyId, direction: Direction, rule: usize) -> String {
    let mut text = format!("NetworkPolicy {id} {}[{rule}]", direction.name());
    text.truncate(MAX_COMMENT);
    text
}
