//! The chains, sets and maps of Services in the table `inet knit`.
//!
//! Connections are translated when their first packet arrives or is created ([`crate::translation`]). What is not translated
//! although it is addressed to a Service is answered or dropped by filter chains.
//!
//! Connections that have to return through this node get a mark until they are masqueraded.
//!
//! A load balancer's IP that this node announces is an address of the node. Only ports of Services are open there.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::filter::field::{DataType, Field, IpFamily, ct_state};
use knit_model::filter::rule::{FilterRule, RejectWith};
use knit_model::filter::{BaseChain, ChainType, FilterChain, FilterSet, FilterTable, Hook};
use knit_model::kernel_ids::SERVICE_MARK;

use crate::chain::{BackendChain, add_choices};
use crate::names;
use crate::translation::Frontends;

/// Before kube-proxy, which is at the usual priority of DNAT (-100): the first chain that translates a connection ends the hook, so
/// rules that kube-proxy leaves behind have no effect.
const DNAT: i32 = -101;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Before every DNAT: source ranges are about the load balancer's IP.
const BEFORE_DNAT: i32 = -110;
const FILTER: i32 = 0;
/// Before the SNAT of egress gateways and masquerading of pods, which are at the usual priority (100).
const SNAT: i32 = 99;

const SOURCES: &str = "service_sources";
const UNAVAILABLE: &str = "service_unavailable";
const UNAVAILABLE_NODE_PORTS: &str = "service_unavailable_node_ports";
const CLOSED_PORTS: &str = "service_closed_ports";

/// Adds the chains of Services with their sets and maps. The elements of [`chain_elements`](crate::chain_elements) belong to
/// them.
pub fn dispatch(table: &mut FilterTable, chains: &BTreeSet<BackendChain>) {
    add_choices(table, chains);
    table.sets.insert(names::SLOTS.to_owned(), FilterSet::verdicts(&[DataType::Mark]));
    for family in IpFamily::ALL {
        let affinity = chains.iter().filter_map(|chain| match chain {
            BackendChain::Recall { family: of, seconds } if *of == family => Some(*seconds),
            _ => None,
        });
        let affinity: Vec<u32> = affinity.collect();
        let (ips, node_ports) = (Frontends::ips(family), Frontends::node_ports(family));
        for frontends in [&ips, &node_ports] {
            frontends.declare(table, &affinity);
            frontends.add_chains(table, &affinity);
        }
        declare(table, &ips);
        let marks = mark_node_port_connections(&node_ports);
        let rules = marks.into_iter().chain(node_ports.dispatch(&affinity)).collect();
        table.chains.insert(node_ports.chain("dispatch"), FilterChain { base: None, rules });
        let last = to_node_ports(family, FilterRule::new()).goto(&node_ports.chain("dispatch"));
        let rules = mark_connections(&ips).into_iter().chain(ips.dispatch(&affinity)).chain([last]);
        table.chains.insert(ips.chain("dispatch"), FilterChain { base: None, rules: rules.collect() });
    }
    let mut add = |name: &str, rules: fn(IpFamily) -> Vec<FilterRule>| {
        let rules = IpFamily::ALL.into_iter().flat_map(rules).collect();
        table.chains.insert(name.to_owned(), FilterChain { base: None, rules });
    };
    add(SOURCES, check_sources);
    add(UNAVAILABLE, answer);
    add(UNAVAILABLE_NODE_PORTS, answer_node_ports);
    add(CLOSED_PORTS, close_ports);
    add_base_chains(table);
}

/// Declares what is not about both kinds of frontends.
fn declare(table: &mut FilterTable, ips: &Frontends) {
    let (family, address) = (ips.family, ips.family.data_type());
    let mut add = |name: &str, set: FilterSet| drop(table.sets.insert(ips.set(name), set));
    add(names::CLUSTER_IPS, FilterSet::keys(&[address]));
    add(names::ANNOUNCED, FilterSet::keys(&[address]));
    add(names::HAIRPIN, FilterSet::keys(&[address, address]));
    add(names::RESTRICTED, FilterSet::keys(&ips.key()));
    let sources = FilterSet::keys(&[&ips.key()[..], &[address]].concat());
    add(names::ALLOWED_SOURCES, FilterSet { intervals: true, ..sources });
    table.sets.insert(names::pod_set(family), FilterSet::ranges(family));
}

fn add_base_chains(table: &mut FilterTable) {
    let mut add = |name: &str, chain_type: ChainType, hook: Hook, priority: i32, rules: Vec<FilterRule>| {
        let base = Some(BaseChain { chain_type, hook, priority });
        table.chains.insert(name.to_owned(), FilterChain { base, rules });
    };
    let is_new = || FilterRule::new().any_bit(Field::CtState, ct_state::NEW);
    let check_sources = || vec![is_new().jump(SOURCES)];
    add("service_sources_prerouting", ChainType::Filter, Hook::Prerouting, BEFORE_DNAT, check_sources());
    add("service_sources_output", ChainType::Filter, Hook::Output, BEFORE_DNAT, check_sources());
    let by_family =
        |family: IpFamily| FilterRule::new().family(family).jump(&Frontends::ips(family).chain("dispatch"));
    let translate = || IpFamily::ALL.map(by_family).into();
    add("service_prerouting", ChainType::Nat, Hook::Prerouting, DNAT, translate());
    add("service_output", ChainType::Nat, Hook::Output, DNAT, translate());
    let answer = || is_new().without_dnat().jump(UNAVAILABLE);
    add("service_filter_forward", ChainType::Filter, Hook::Forward, FILTER, vec![answer()]);
    add("service_filter_output", ChainType::Filter, Hook::Output, FILTER, vec![answer()]);
    let to_node = IpFamily::ALL.map(|family| to_node_ports(family, is_new().without_dnat()));
    let to_node = to_node.map(|rule| rule.jump(UNAVAILABLE_NODE_PORTS));
    let closed = is_new().without_dnat().jump(CLOSED_PORTS);
    let input = [answer()].into_iter().chain(to_node).chain([closed]).collect();
    add("service_filter_input", ChainType::Filter, Hook::Input, FILTER, input);
    add("service_snat", ChainType::Nat, Hook::Postrouting, SNAT, masquerade());
}

fn mark(rule: FilterRule) -> FilterRule {
    rule.set_mark(SERVICE_MARK, SERVICE_MARK)
}

/// Marks connections that are masqueraded because of their frontend, for the node's own ones or for all: the node's own
/// source may be the load balancer's IP.
fn mark_node_port_connections(frontends: &Frontends) -> [FilterRule; 2] {
    let to = |set: &str| frontends.rule().in_set(&frontends.fields, &frontends.set(set));
    let from_node = FilterRule::new().from_local();
    [mark(to(frontends.sets.masquerade)), mark(to(frontends.sets.masquerade_node).and(from_node))]
}

/// The same, and clients outside the cluster that use a cluster IP: the backend would answer through another node, or not at
/// all.
fn mark_connections(ips: &Frontends) -> [FilterRule; 3] {
    let family = ips.family;
    let from_outside = ips.rule().in_set(&[Field::Destination(family)], &ips.set(names::CLUSTER_IPS));
    let from_outside = from_outside.not_in_set(&[Field::Source(family)], &names::pod_set(family));
    let [all, from_node] = mark_node_port_connections(ips);
    [all, from_node, mark(from_outside)]
}

/// Matches packets to the node's addresses that have node ports. Those of loopback have none: whoever creates a Service
/// chooses its node port, and the node's own programs listen there. Neither have announced addresses.
fn to_node_ports(family: IpFamily, rule: FilterRule) -> FilterRule {
    let loopback = match family {
        IpFamily::V4 => IpNet::new_assert(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        IpFamily::V6 => IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)),
    };
    let rule = rule.family(family).not_within(Field::Destination(family), loopback).to_local();
    rule.not_in_set(&[Field::Destination(family)], &names::announced_set(family))
}

/// Drops connections to load balancers from sources that these do not allow.
fn check_sources(family: IpFamily) -> Vec<FilterRule> {
    let ips = Frontends::ips(family);
    let with_source = [&ips.fields[..], &[Field::Source(family)]].concat();
    let restricted = ips.rule().in_set(&ips.fields, &ips.set(names::RESTRICTED));
    vec![restricted.not_in_set(&with_source, &ips.set(names::ALLOWED_SOURCES)).drop()]
}

/// Answers or drops connections to Services that were not translated.
fn answer(family: IpFamily) -> Vec<FilterRule> {
    let ips = Frontends::ips(family);
    let to_cluster_ip = |rule: FilterRule| {
        rule.in_set(&[Field::Destination(family)], &ips.set(names::CLUSTER_IPS)).comment("no such port")
    };
    without_endpoints(&ips).into_iter().chain(reject(&ips, to_cluster_ip)).collect()
}

fn answer_node_ports(family: IpFamily) -> Vec<FilterRule> {
    without_endpoints(&Frontends::node_ports(family)).into()
}

/// Rejects connections to announced addresses that no Service has translated: they would reach programs of the node. The
/// addresses answer pings.
fn close_ports(family: IpFamily) -> Vec<FilterRule> {
    let ips = Frontends::ips(family);
    let icmp = if family == IpFamily::V4 { ICMP } else { ICMPV6 };
    let to_announced = |rule: FilterRule| {
        rule.is_not(Field::L4Protocol, icmp)
            .in_set(&[Field::Destination(family)], &ips.set(names::ANNOUNCED))
            .comment("no such port")
    };
    reject(&ips, to_announced).into()
}

fn without_endpoints(frontends: &Frontends) -> [FilterRule; 3] {
    let to = |rule: FilterRule, set: &str| rule.in_set(&frontends.fields, &frontends.set(set));
    let [tcp, others] = reject(frontends, |rule| to(rule, frontends.sets.no_endpoints));
    [to(frontends.rule(), frontends.sets.no_local_endpoints).drop(), tcp, others]
}

/// Rejects TCP by a reset: the kernel limits the rate of ICMP errors for each client, which would then wait in vain.
fn reject(frontends: &Frontends, matching: impl Fn(FilterRule) -> FilterRule) -> [FilterRule; 2] {
    let tcp = matching(frontends.rule().is(Field::L4Protocol, TCP)).reject(RejectWith::TcpReset);
    [tcp, matching(frontends.rule()).reject(RejectWith::PortUnreachable)]
}

/// Masquerades marked connections, and those of a pod that a Service leads back to itself: it would take the answer for one
/// from itself. The mark goes, so that a tunnel to another node does not inherit it.
fn masquerade() -> Vec<FilterRule> {
    let marked = FilterRule::new().has_mark(SERVICE_MARK, SERVICE_MARK).set_mark(0, SERVICE_MARK);
    let hairpin = IpFamily::ALL.map(|family| {
        let ends = [Field::Source(family), Field::Destination(family)];
        let rule = FilterRule::new().with_dnat().family(family);
        rule.in_set(&ends, &family.suffixed(names::HAIRPIN)).masquerade(true)
    });
    [marked.masquerade(true)].into_iter().chain(hairpin).collect()
}
