//! Compiles policies to the rules of one node.
//!
//! A chain contains the rules of all policies about a pod and a direction, tier by tier. Pods with the same policies share it.
//! Where a rule of an admin passes a connection on, the rest is a chain of its own.

use std::collections::BTreeSet;

use ipnet::IpNet;
use knit_model::filter::field::{DataType, Field, IpFamily};
use knit_model::filter::rule::{Expression, FilterRule};
use knit_model::filter::{ElementData, FilterSet, KeyPart, outermost};

use crate::index::PolicyIndex;
use crate::isolation::Segment;
use crate::members::{Member, PeerSet, PeerSets, short_hash};
use crate::policy::{
    Action, Direction, NamedPort, Peer, PodSelector, Policy, PolicyId, PortMatch, PortNumber, Protocol, Rule,
    Tier,
};
use crate::ranges;
use crate::tables::{Element, PORTS, PodChains, PolicyTables, RANGES, SELF, denied, element};

/// The longest comment that the kernel stores.
const MAX_COMMENT: usize = 127;

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

/// The policies of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicies {
    /// The chains of each pod, in the order of the request.
    pub pods: Vec<PodChains>,
    /// The chains and sets of all pods.
    pub tables: PolicyTables,
    /// Elements that do not change with pods: ranges and ports.
    pub elements: Vec<Element>,
}

/// The element of a pod in a set of peers.
pub(crate) fn peer_element(set: &str, (address, port): &Member) -> Element {
    let port = port.map(KeyPart::from);
    let key = [KeyPart::from(*address)].into_iter().chain(port).collect();
    (element(IpFamily::of(*address).suffixed(set), key), ElementData::Key)
}

/// Collects the chains and sets of policies.
pub(crate) struct Compiler<'a> {
    pub(crate) index: &'a PolicyIndex,
    pub(crate) tables: PolicyTables,
    /// Ranges and ports in rules.
    pub(crate) elements: Vec<Element>,
    pub(crate) peer_sets: PeerSets,
    /// The additional networks that the current policy is about.
    networks: Option<BTreeSet<String>>,
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

impl<'a> Compiler<'a> {
    pub(crate) fn new(index: &'a PolicyIndex) -> Self {
        let (tables, peer_sets) = (PolicyTables::default(), PeerSets::default());
        Self { index, tables, elements: Vec::new(), peer_sets, networks: None }
    }

    /// A chain with the rules of policies.
    pub(crate) fn chain(
        &mut self,
        namespace: &str,
        policies: &[&Policy],
        next: Option<String>,
        ports: &[NamedPort],
        direction: Direction,
    ) -> String {
        let name = chain_name(namespace, policies, next.as_ref(), ports, direction);
        if !self.tables.chains.contains_key(&name) {
            let rules = self.rules(policies, next, ports, direction);
            self.tables.chains.insert(name.clone(), rules);
        }
        name
    }

    /// The rules of policies about pods with these ports. Connections that none of them decides continue with the next chain, or are allowed,
    /// or, after NetworkPolicies, denied.
    pub(crate) fn rules(
        &mut self,
        policies: &[&Policy],
        next: Option<String>,
        own_ports: &[NamedPort],
        direction: Direction,
    ) -> Vec<FilterRule> {
        let is_closed = policies.iter().any(|policy| policy.tier == Tier::Namespace);
        let own = IpFamily::ALL.map(|family| {
            let both = [Field::CtOriginalSource(family), Field::CtReplySource(family)];
            let own = FilterRule::new().family(family).in_set(&both, &family.suffixed(SELF));
            own.return_().comment("a pod reaches itself")
        });
        let mut rules = Vec::new();
        if !is_closed {
            rules.extend(own.clone());
        }
        for policy in policies {
            self.networks.clone_from(&policy.networks);
            for (at, rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
                let comment = comment(&policy.id, direction, at);
                for matches in self.matches(rule, own_ports, direction) {
                    let decided = match (rule.action, &next) {
                        (Action::Deny, _) => matches.then(Expression::Count).drop(),
                        (Action::Pass, Some(next)) => matches.goto(next),
                        (Action::Allow, _) | (Action::Pass, None) => matches.return_(),
                    };
                    rules.push(decided.comment(&comment));
                }
            }
        }
        self.networks = None;
        if is_closed {
            rules.extend(own);
            rules.push(denied());
        }
        rules.extend(next.map(|next| FilterRule::new().goto(&next)));
        rules
    }

    /// The rules of a segment.
    pub(crate) fn segment(&mut self, segment: &Segment) -> Vec<FilterRule> {
        let members = self.selected(&segment.members(), Direction::Ingress, None);
        let service = FilterRule::new().with_dnat().return_().comment("through a Service");
        let members = members.into_iter().map(FilterRule::return_);
        let denied = FilterRule::new().then(Expression::Count).drop().comment(shortened(segment.title()));
        std::iter::once(service).chain(members).chain([denied]).collect()
    }

    /// The matches of a rule.
    fn matches(&mut self, rule: &Rule, own_ports: &[NamedPort], direction: Direction) -> Vec<FilterRule> {
        let mut all = Vec::new();
        for ports in self.ports(rule, own_ports, direction) {
            match &rule.peers {
                None => all.extend(self.anyone(&ports)),
                Some(peers) => all.extend(self.peers(peers, &ports, direction).into_iter().flatten()),
            }
        }
        all
    }

    /// The ports of a rule. All ports that are known by number are one match.
    fn ports(&mut self, rule: &Rule, own_ports: &[NamedPort], direction: Direction) -> Vec<Ports> {
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
                        own_ports.iter().filter(|one| one.protocol == *protocol && one.name == *name);
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
        self.constant_set(PORTS, "", set, keys)
    }

    fn address_set(&mut self, family: IpFamily, ranges: &[IpNet]) -> String {
        let keys = ranges.iter().map(|range| vec![KeyPart::range(*range)]).collect();
        self.constant_set(RANGES, &family.suffixed(""), FilterSet::ranges(family), keys)
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
        if self.tables.sets.insert(name.clone(), set).is_none() {
            let elements = keys.into_iter().map(|key| (element(name.clone(), key), ElementData::Key));
            self.elements.extend(elements);
        }
        name
    }

    /// Matches any peer.
    fn anyone(&mut self, ports: &Ports) -> Vec<FilterRule> {
        match ports {
            Ports::Named(protocol, name) => {
                let all = PodSelector::everything();
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
                    all.push(of_family.map(|one| rule.clone().and(one)).collect());
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
        let (selector, networks) = (selector.clone(), self.networks.clone());
        let set = PeerSet { selector, networks, named_port: named_port.clone() };
        for family in IpFamily::ALL {
            self.tables.sets.insert(family.suffixed(&set.name()), set.declaration(family));
        }
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
        IpFamily::ALL.map(rule).to_vec()
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
pub(crate) fn chain_name(
    namespace: &str,
    policies: &[&Policy],
    next: Option<&String>,
    ports: &[NamedPort],
    direction: Direction,
) -> String {
    let ids: Vec<&PolicyId> = policies.iter().map(|policy| &policy.id).collect();
    let rules = policies.iter().flat_map(|policy| policy.rules(direction).unwrap_or_default());
    let names = rules.flat_map(|rule| rule.ports.iter().flatten()).filter_map(|port| match &port.port {
        Some(PortNumber::Named(name)) if direction == Direction::Ingress => Some(name),
        _ => None,
    });
    let names: Vec<&String> = names.collect();
    let ports: Vec<_> = ports.iter().filter(|port| names.contains(&&port.name)).collect();
    let content = serde_json::to_vec(&(ids, next, ports)).unwrap_or_default();
    format!("policy_{}_{namespace}_{}", direction.name(), short_hash(&content))
}

pub(crate) fn comment(id: &PolicyId, direction: Direction, rule: usize) -> String {
    shortened(format!("{id} {}[{rule}]", direction.name()))
}

pub(crate) fn shortened(mut text: String) -> String {
    text.truncate(MAX_COMMENT);
    text
}
