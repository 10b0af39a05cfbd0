//! The packet filter: applied, read back, compared with the output of the `nft` program, and failed at every step.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_kernel::fault::NoFaults;
use knit_kernel::nft::{ChainCounters, FilterQuery, can_log, chain_counters};
use knit_kernel::{DeleteMode, Netns};
use knit_model::filter::field::{DataType, EtherType, Field, IpFamily, Value, ct_state, tcp_flags};
use knit_model::filter::rule::{
    Expression, FilterRule, LookupResult, Register, RejectWith, Translation, Verdict,
};
use knit_model::filter::{
    BaseChain, ChainType, ElementData, ElementKey, Filter, FilterChain, FilterSet, FilterTable, Hook,
    KeyPart, TableFamily, outermost,
};
use knit_model::plan::{Desired, diff};
use knit_model::{IfName, NetState, Scope};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::faults::survive_every_fault;
use crate::support::node::{TestNode, sandbox};

const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn address(text: &str) -> Value {
    Value::from(text.parse::<IpAddr>().unwrap())
}

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn base(chain_type: ChainType, hook: Hook, priority: i32, rules: Vec<FilterRule>) -> FilterChain {
    FilterChain { base: Some(BaseChain { chain_type, hook, priority }), rules }
}

fn element(table: TableFamily, set: &str, key: Vec<KeyPart>) -> ElementKey {
    table.table().element(set, key)
}

/// What observes these tables and all of their elements.
fn query(filter: &Filter) -> FilterQuery {
    let sets =
        filter.tables.iter().flat_map(|(key, table)| table.sets.keys().map(|set| (key.clone(), set.clone())));
    FilterQuery {
        tables: filter.tables.keys().cloned().collect(),
        sets: sets.collect(),
        ..Default::default()
    }
}

fn state_with(scope: &Scope, filter: &Filter) -> NetState {
    let mut state = NetState::default();
    state.scope(scope).filter = filter.clone();
    state
}

/// The parts that Knit's masquerading, host ports and anti-spoofing use.
fn nat_table() -> Filter {
    let bridge: IfName = "knit0".parse().unwrap();
    let (source, destination) = (Field::Source(V4), Field::Destination(V4));
    let to_pod = [Field::L4Protocol, destination, Field::DestinationPort];
    let ports = [Field::L4Protocol, Field::DestinationPort];
    let mut table = FilterTable::default();
    let key = [DataType::Protocol, DataType::Port];
    table.sets.insert("inside".into(), FilterSet::ranges(V4));
    table.sets.insert("pods".into(), FilterSet::keys(&[DataType::Protocol, DataType::Ipv4, DataType::Port]));
    table.sets.insert("any4".into(), FilterSet::map(&key, &[DataType::Ipv4, DataType::Port]));
    table.sets.insert("any6".into(), FilterSet::map(&key, &[DataType::Ipv6, DataType::Port]));
    let snat = vec![
        FilterRule::new()
            .is_not(Field::OifName, &bridge)
            .family(V4)
            .in_set(&[source], "inside")
            .not_in_set(&[destination], "inside")
            .not_within(destination, range("224.0.0.0/4"))
            .masquerade(true),
        FilterRule::new()
            .family(V4)
            .with_dnat()
            .is(Field::IifName, &bridge)
            .in_set(&to_pod, "pods")
            .masquerade(false),
    ];
    let host_ports = vec![
        FilterRule::new().family(V4).dnat(V4, &ports, "any4"),
        FilterRule::new().family(V6).dnat(V6, &ports, "any6"),
    ];
    let guard = FilterRule::new().is(Field::IifName, &bridge).family(V4);
    let chains = [
        ("ports", FilterChain { base: None, rules: host_ports }),
        (
            "arriving",
            base(
                ChainType::Nat,
                Hook::Prerouting,
                -100,
                vec![FilterRule::new().to_local().jump("ports").comment("host ports")],
            ),
        ),
        (
            "guard",
            base(
                ChainType::Filter,
                Hook::Prerouting,
                -300,
                vec![guard.within(destination, range("127.0.0.0/8")).drop()],
            ),
        ),
        ("returning", base(ChainType::Nat, Hook::Postrouting, 100, snat)),
    ];
    table.chains.extend(chains.map(|(name, chain)| (name.to_owned(), chain)));
    let inet = TableFamily::Inet;
    let mut filter = Filter::default();
    filter.tables.insert(inet.table(), table);
    for range in outermost(["10.1.0.0/16", "10.1.2.0/24", "192.0.2.7/32", "10.2.0.0/17"].map(range)) {
        filter.add(element(inet, "inside", vec![KeyPart::range(range)]), ElementData::Key);
    }
    let pod = vec![17u8.into(), address("10.75.0.2").into(), 53u16.into()];
    filter.add(element(inet, "pods", pod), ElementData::Key);
    for (set, to) in [("any4", "10.75.0.2"), ("any6", "fd75::2")] {
        let data = ElementData::Values(vec![address(to), 80u16.into()]);
        filter.add(element(inet, set, vec![6u8.into(), 8080u16.into()]), data);
    }
    filter
}

const LISTED: &str = r#"table inet knit {
	set inside {
		type ipv4_addr
		flags interval
		elements = { 10.1.0.0/16, 10.2.0.0/17,
			     192.0.2.7 }
	}

	set pods {
		type inet_proto . ipv4_addr . inet_service
		elements = { udp . 10.75.0.2 . 53 }
	}

	map any4 {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 : 10.75.0.2 . 80 }
	}

	map any6 {
		type inet_proto . inet_service : ipv6_addr . inet_service
		elements = { tcp . 8080 : fd75::2 . 80 }
	}

	chain arriving {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local jump ports comment "host ports"
	}

	chain guard {
		type filter hook prerouting priority raw; policy accept;
		iifname "knit0" ip daddr 127.0.0.0/8 drop
	}

	chain ports {
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6
	}

	chain returning {
		type nat hook postrouting priority srcnat; policy accept;
		oifname != "knit0" ip saddr @inside ip daddr != @inside ip daddr != 224.0.0.0/4 masquerade random
		ct status dnat iifname "knit0" meta l4proto . ip daddr . th dport @pods masquerade
	}
}
"#;

/// Sets sorted by name, because the kernel lists them in the order of creation.
fn sorted(listing: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = listing.split("\n\n").collect();
    parts.sort_unstable();
    parts
}

#[test]
fn a_table_is_listed_by_nft_and_others_are_left_alone() {
    let filter = nat_table();
    let mut node = TestNode::new("nft-list", &["a"]);
    node.host.output("nft", &["add", "table", "inet", "theirs"]).unwrap();
    // On the host and in a sandbox alike.
    for (scope, namespace) in [(Scope::Host, 0), (sandbox("a"), 1)] {
        node.observe_filter(&scope, query(&filter));
        node.converge(&state_with(&scope, &filter));
        let namespace = if namespace == 0 { &node.host } else { &node.sandboxes[0] };
        let listed = || namespace.output("nft", &["list", "table", "inet", "knit"]).unwrap();
        let body = |text: &str| text.replacen("table inet knit {\n", "", 1);
        let (ours, expected) = (body(&listed()), body(LISTED));
        let trimmed = |text: &str| {
            sorted(text).iter().map(|part| part.trim_end_matches("}\n").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(trimmed(&ours), trimmed(&expected), "{ours}");
        // `nft` lists it exactly like a table that it created itself.
        let before = listed();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &before).unwrap();
        namespace.output("nft", &["delete", "table", "inet", "knit"]).unwrap();
        namespace.output("nft", &["-f", file.path().to_str().unwrap()]).unwrap();
        assert_eq!(listed(), before);
        node.converge(&NetState::default());
        assert!(namespace.output("nft", &["list", "table", "inet", "knit"]).is_err());
    }
    assert_eq!(node.host.output("nft", &["list", "ruleset"]).unwrap(), "table inet theirs {\n}\n");
}

/// A table with every expression, and what `nft` prints for each rule.
fn every_expression() -> (FilterTable, Vec<&'static str>) {
    let mut table = FilterTable { counters: vec!["denied".to_owned()], ..FilterTable::default() };
    let source = Field::Source(V4);
    for (name, set) in [
        ("policies", FilterSet::verdicts(&[DataType::Name, DataType::Ipv4])),
        (
            "peers",
            FilterSet {
                intervals: true,
                ..FilterSet::keys(&[DataType::Ipv4, DataType::Protocol, DataType::Port])
            },
        ),
        (
            "services",
            FilterSet::map(&[DataType::Ipv4, DataType::Protocol, DataType::Port], &[DataType::Mark]),
        ),
        ("backends", FilterSet::map(&[DataType::Mark], &[DataType::Ipv4, DataType::Port])),
        ("backends6", FilterSet::map(&[DataType::Mark], &[DataType::Ipv6])),
        (
            "affinity",
            FilterSet {
                timeout: Some(10_800_000),
                size: Some(100_000),
                ..FilterSet::map(&[DataType::Ipv4], &[DataType::Mark])
            },
        ),
        ("recent", FilterSet { timeout: Some(0), ..FilterSet::keys(&[DataType::Ipv4]) }),
    ] {
        table.sets.insert(name.to_owned(), set);
    }
    let bridge: IfName = "br0".parse().unwrap();
    let load = |field, to| Expression::Load { field, to: Register(to) };
    let lookup = |set: &str, to| Expression::Lookup {
        set: set.to_owned(),
        negated: false,
        to: LookupResult::Load(Register(to)),
        from: Register::FIRST,
    };
    let rules = vec![
        (
            FilterRule::new().any_bit(Field::CtState, ct_state::ESTABLISHED | ct_state::RELATED).accept(),
            "ct state established,related accept",
        ),
        (
            FilterRule::new()
                .is(Field::IifName, &bridge)
                .family(V4)
                .verdict_map(&[Field::IifName, source], "policies"),
            "iifname \"br0\" iifname . ip saddr vmap @policies",
        ),
        (
            FilterRule::new()
                .family(V4)
                .in_set(&[source, Field::L4Protocol, Field::DestinationPort], "peers")
                .goto("target"),
            "ip saddr . meta l4proto . th dport @peers goto target",
        ),
        (
            FilterRule::new()
                .is(Field::L4Protocol, 6u8)
                .between(Field::DestinationPort, 8000u16, 8999u16)
                .return_(),
            "tcp dport 8000-8999 return",
        ),
        (
            FilterRule::new().has_bits(Field::CtMark, 0x100, 0xff00).set_ct_mark(0x200, 0xff00),
            "ct mark & 0x0000ff00 == 0x00000100 ct mark set ct mark & 0xffff02ff | 0x00000200",
        ),
        (
            FilterRule::new().has_mark(0x4000, 0x4000).set_mark(0, 0x4000),
            "meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff",
        ),
        (
            FilterRule::new()
                .is(Field::L4Protocol, 6u8)
                .then(Expression::CountIn("denied".to_owned()))
                .then(Expression::Count)
                .reject(RejectWith::TcpReset),
            "meta l4proto tcp counter name \"denied\" counter packets 0 bytes 0 reject with tcp reset",
        ),
        (FilterRule::new().reject(RejectWith::Prohibited), "reject with icmpx admin-prohibited"),
        (FilterRule::new().reject(RejectWith::PortUnreachable), "reject"),
        (
            FilterRule::new()
                .is(Field::FibSourceType, 2u32)
                .then(Expression::Log { prefix: "knit: ".to_owned(), group: Some(5) })
                .drop(),
            "fib saddr type local log prefix \"knit: \" group 5 drop",
        ),
        (FilterRule::new().is(Field::FibReversePath, 0u32).drop(), "fib saddr . iif oif 0 drop"),
        (
            FilterRule::new().then(Expression::Log { prefix: "knit".to_owned(), group: None }),
            "log prefix \"knit\"",
        ),
        (
            FilterRule::new()
                .then(Expression::Limit { packets: 10, seconds: 60, burst: 20 })
                .then(Expression::Log { prefix: "knit".to_owned(), group: None }),
            "limit rate 10/minute burst 20 packets log prefix \"knit\"",
        ),
        (
            FilterRule::new().family(V4).load(&[source]).then(Expression::Learn {
                set: "recent".to_owned(),
                data: None,
                renew: true,
                timeout: Some(60_000),
            }),
            "update @recent { ip saddr timeout 1m }",
        ),
        (
            FilterRule::new().family(V4).load(&[source]).then(load(Field::Mark, 1)).then(Expression::Learn {
                set: "affinity".to_owned(),
                data: Some(Register(1)),
                renew: false,
                timeout: None,
            }),
            "add @affinity { ip saddr : meta mark }",
        ),
        (
            FilterRule::new()
                .family(V4)
                .load(&[source])
                .then(load(Field::Mark, 1))
                .then(Expression::Forget { set: "affinity".to_owned(), data: Some(Register(1)) }),
            "delete @affinity { ip saddr : meta mark }",
        ),
        (
            FilterRule::new()
                .family(V4)
                .load(&[source])
                .then(lookup("affinity", 0))
                .then(Expression::SetPriority)
                .is(Field::Priority, 7u32)
                .accept(),
            "meta priority set ip saddr map @affinity meta priority 0:7 accept",
        ),
        (
            FilterRule::new()
                .family(V4)
                .load_at(Register(4), &[Field::Destination(V4), Field::L4Protocol, Field::DestinationPort])
                .then(Expression::Lookup {
                    set: "services".to_owned(),
                    negated: false,
                    to: LookupResult::Load(Register::FIRST),
                    from: Register(4),
                })
                .then(Expression::SetMark),
            "meta mark set ip daddr . meta l4proto . th dport map @services",
        ),
        (
            FilterRule::new().is(Field::CtOriginalDestination(V4), IpAddr::from([10, 96, 0, 1])).accept(),
            "ct original ip daddr 10.96.0.1 accept",
        ),
        (
            FilterRule::new().is(Field::CtOriginalSource(V4), IpAddr::from([10, 96, 0, 2])).accept(),
            "ct original ip saddr 10.96.0.2 accept",
        ),
        (
            FilterRule::new()
                .is(Field::CtReplySource(V4), IpAddr::from([10, 96, 0, 3]))
                .is(Field::CtProtocol, 6u8)
                .between(Field::CtReplySourcePort, 80u16, 90u16)
                .accept(),
            // `nft` 1.0.6 does not know that this is a port.
            "ct reply ip saddr 10.96.0.3 ct protocol tcp ct reply proto-src 0x50 [invalid type]-0x5a [invalid type] accept",
        ),
        (FilterRule::new().is(Field::L4Protocol, 6u8).no_flag(tcp_flags::SYN).drop(), "tcp flags ! syn drop"),
    ];
    let (rules, mut texts): (Vec<FilterRule>, Vec<&str>) = rules.into_iter().unzip();
    table.chains.insert("target".to_owned(), FilterChain::default());
    table.chains.insert("all".to_owned(), base(ChainType::Filter, Hook::Forward, -1, rules));
    let untracked = vec![FilterRule::new().is(Field::L4Protocol, 17u8).then(Expression::NoTrack)];
    table.chains.insert("raw".to_owned(), base(ChainType::Filter, Hook::Prerouting, -300, untracked));
    texts.push("meta l4proto udp notrack");
    let translations = vec![
        FilterRule::new()
            .family(V4)
            .then(Expression::Number { modulus: 3, offset: 0, random: true, to: Register(0) })
            .then(lookup("backends", 0))
            .then(Expression::Nat {
                translates: Translation::Destination,
                family: V4,
                address: Register::FIRST,
                port: Some(Register(1)),
            }),
        FilterRule::new()
            .family(V4)
            .then(Expression::Number { modulus: 2, offset: 0, random: true, to: Register(3) })
            .then(Expression::Lookup {
                set: "backends".to_owned(),
                negated: false,
                to: LookupResult::Load(Register(9)),
                from: Register(3),
            })
            .then(Expression::Nat {
                translates: Translation::Destination,
                family: V4,
                address: Register(9),
                port: Some(Register(10)),
            }),
        FilterRule::new()
            .family(V6)
            .load(&[Field::Source(V6)])
            .then(Expression::Hash { length: 16, modulus: 4, seed: 7, offset: 1, to: Register(0) })
            .then(lookup("backends6", 0))
            .then(Expression::Nat {
                translates: Translation::Destination,
                family: V6,
                address: Register::FIRST,
                port: None,
            }),
    ];
    table.chains.insert("nat".to_owned(), base(ChainType::Nat, Hook::Output, -100, translations));
    texts.push("meta nfproto ipv4 dnat ip to numgen random mod 3 map @backends");
    texts.push("meta nfproto ipv4 dnat ip to numgen random mod 2 map @backends");
    texts.push("dnat ip6 to jhash ip6 saddr mod 4 seed 0x7 offset 1 map @backends6");
    (table, texts)
}

#[test]
fn every_expression_is_listed_by_nft_and_read_back() {
    let (table, texts) = every_expression();
    let inet = TableFamily::Inet;
    let mut filter = Filter::default();
    filter.tables.insert(inet.table(), table);
    let peer = vec![
        KeyPart::range(range("10.0.0.0/16")),
        KeyPart::only(6u8),
        KeyPart::Range(80u16.into(), 443u16.into()),
    ];
    filter.add(element(inet, "peers", peer), ElementData::Key);
    let exact = vec![KeyPart::only(address("10.9.0.1")), KeyPart::only(6u8), KeyPart::only(80u16)];
    filter.add(element(inet, "peers", exact), ElementData::Key);
    let name: IfName = "br0".parse().unwrap();
    let policy = vec![KeyPart::from(&name), address("10.75.0.2").into()];
    let verdict = ElementData::Verdict(Verdict::Goto("target".to_owned()));
    filter.add(element(inet, "policies", policy), verdict);
    let backend = ElementData::Values(vec![address("10.75.0.3"), 8080u16.into()]);
    filter.add(element(inet, "backends", vec![7u32.into()]), backend);

    // Bridges have their own fields.
    let bridge_rules = vec![
        FilterRule::new()
            .is(Field::EtherType, EtherType::Arp)
            .in_set(&[Field::IifName, Field::ArpSenderMac, Field::ArpSenderIp], "ports")
            .accept(),
        FilterRule::new().is(Field::DestinationMac, knit_model::Mac::derived("x")).drop(),
    ];
    let mut bridge = FilterTable::default();
    bridge.sets.insert("ports".to_owned(), FilterSet::keys(&[DataType::Name, DataType::Mac, DataType::Ipv4]));
    bridge.chains.insert("forward".to_owned(), base(ChainType::Filter, Hook::Forward, -300, bridge_rules));
    filter.tables.insert(TableFamily::Bridge.table(), bridge);

    let mut node = TestNode::new("nft-all", &[]);
    node.observe_filter(&Scope::Host, query(&filter));
    node.converge(&state_with(&Scope::Host, &filter));
    assert_eq!(node.observe().scopes[&Scope::Host].filter, filter);
    let listed = node.host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
    for text in texts {
        assert!(listed.lines().any(|line| line.trim() == text), "{text} is not in\n{listed}");
    }
    for text in [
        "10.0.0.0/16 . tcp . 80-443",
        "10.9.0.1 . tcp . 80",
        "\"br0\" . 10.75.0.2 : goto target",
        "0x00000007 : 10.75.0.3 . 8080",
    ] {
        assert!(listed.contains(text), "{text} is not in\n{listed}");
    }
    // Each element can be observed alone, and a missing one is missing.
    let mut elements = query(&Filter::default());
    elements.elements = filter.elements.keys().cloned().collect();
    let missing = element(inet, "backends", vec![8u32.into()]);
    elements.elements.insert(missing);
    elements.elements.insert(element(inet, "nosuch", vec![7u32.into()]));
    node.observe_filter(&Scope::Host, elements);
    assert_eq!(node.observe().scopes[&Scope::Host].filter.elements, filter.elements);
}

#[test]
fn every_step_is_rolled_back() {
    let (all, _) = every_expression();
    let mut filter = nat_table();
    let mut node = TestNode::new("nft-faults", &["a"]);
    let inet = TableFamily::Inet.table();
    for scope in [Scope::Host, sandbox("a")] {
        let mut both = filter.clone();
        both.tables.insert(TableFamily::Bridge.table(), FilterTable::default());
        node.observe_filter(&scope, query(&both));
    }
    // Created, changed, and removed.
    let state = |filter: &Filter| {
        let mut state = state_with(&Scope::Host, filter);
        state.scope(&sandbox("a")).filter = filter.clone();
        state
    };
    survive_every_fault(&node, &node.plan(&state(&filter)), DeleteMode::Immediate);
    node.converge(&state(&filter));
    let before = filter.clone();
    let table = filter.tables.get_mut(&inet).unwrap();
    table.chains.get_mut("guard").unwrap().rules.push(FilterRule::new().accept());
    table.chains.remove("returning");
    table.sets.remove("pods");
    table.chains.insert("target".to_owned(), all.chains["target"].clone());
    table.counters.push("denied".to_owned());
    filter.elements.retain(|key, _| key.set != "pods");
    let port = element(TableFamily::Inet, "any4", vec![6u8.into(), 8080u16.into()]);
    filter.add(port, ElementData::Values(vec![address("10.75.0.9"), 81u16.into()]));
    survive_every_fault(&node, &node.plan(&state(&filter)), DeleteMode::Immediate);
    node.converge(&state(&filter));
    node.converge(&state(&before));
    // The declaration of a set changes: the table is recreated.
    let mut other = before.clone();
    other.tables.get_mut(&inet).unwrap().sets.insert("pods".to_owned(), FilterSet::keys(&[DataType::Ipv6]));
    other.tables.get_mut(&inet).unwrap().chains.get_mut("returning").unwrap().rules.pop();
    other.elements.retain(|key, _| key.set != "pods");
    survive_every_fault(&node, &node.plan(&state(&other)), DeleteMode::Immediate);
    node.converge(&state(&other));
    survive_every_fault(&node, &node.plan(&NetState::default()), DeleteMode::Immediate);
}

#[test]
fn a_rejected_step_changes_nothing_and_the_error_names_it() {
    let filter = nat_table();
    let mut node = TestNode::new("nft-rejected", &[]);
    node.observe_filter(&Scope::Host, query(&filter));
    let mut wrong = filter.clone();
    let table = wrong.tables.get_mut(&TableFamily::Inet.table()).unwrap();
    table.chains.get_mut("guard").unwrap().rules.push(FilterRule::new().jump("nosuch"));
    let plan = node.plan(&state_with(&Scope::Host, &wrong));
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err().to_string();
    assert!(error.contains("rules of chain inet knit guard: 0 -> 2"), "{error}");
    assert!(error.contains("add rule 2 to chain guard in table inet knit"), "{error}");
    assert_eq!(node.host.output("nft", &["list", "ruleset"]).unwrap(), "");
}

#[test]
fn an_element_that_is_gone_already_is_removed_without_an_error() {
    let filter = nat_table();
    let mut node = TestNode::new("nft-gone", &[]);
    node.observe_filter(&Scope::Host, query(&filter));
    node.converge(&state_with(&Scope::Host, &filter));
    let mut fewer = filter.clone();
    fewer.elements.retain(|key, _| key.set == "inside");
    let plan =
        diff(&Desired { state: state_with(&Scope::Host, &fewer), ..Desired::default() }, &node.observe());
    assert_eq!(plan.steps.len(), 3, "{plan}");
    // Someone else is faster.
    node.host.output("nft", &["flush", "map", "inet", "knit", "any4"]).unwrap();
    node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap();
    assert_eq!(node.observe().scopes[&Scope::Host].filter, fewer);
}

#[test]
fn sixty_thousand_elements_fit_into_one_transaction() {
    let mut node = TestNode::new("nft-many", &[]).without_coverage();
    let mut filter = nat_table();
    let data = || ElementData::Values(vec![address("fd75::2"), 80u16.into()]);
    for port in 1..=60_000u16 {
        filter.add(element(TableFamily::Inet, "any6", vec![6u8.into(), port.into()]), data());
    }
    node.observe_filter(&Scope::Host, query(&filter));
    node.converge(&state_with(&Scope::Host, &filter));
    let listed = node.host.output("nft", &["list", "map", "inet", "knit", "any6"]).unwrap();
    assert_eq!(listed.matches("fd75::2 . 80").count(), 60_000);
}

#[test]
fn random_sets_converge_from_any_to_any_and_are_listed_by_nft() {
    let mut node = TestNode::new("nft-random", &[]).without_coverage();
    let nothing = nat_table();
    node.observe_filter(&Scope::Host, query(&nothing));
    let prefixes = prop::collection::vec((any::<u32>(), 1u8..=32), 0..12);
    let ports = prop::collection::btree_map(any::<u16>(), (any::<u32>(), any::<u16>()), 0..12);
    let inputs = (prefixes, ports);
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    runner
        .run(&inputs, |(prefixes, ports)| {
            let mut filter = nat_table();
            filter.elements.clear();
            let ranges = prefixes
                .iter()
                .map(|(bits, length)| IpNet::new(IpAddr::from(bits.to_be_bytes()), *length).unwrap());
            let ranges = outermost(ranges);
            for range in &ranges {
                filter.add(
                    element(TableFamily::Inet, "inside", vec![KeyPart::range(*range)]),
                    ElementData::Key,
                );
            }
            for (port, (to, target)) in &ports {
                let to = IpAddr::from(to.to_be_bytes());
                let data = ElementData::Values(vec![to.into(), (*target).into()]);
                filter.add(element(TableFamily::Inet, "any4", vec![6u8.into(), (*port).into()]), data);
            }
            node.converge(&state_with(&Scope::Host, &filter));
            let listed = node.host.output("nft", &["-j", "list", "set", "inet", "knit", "inside"]).unwrap();
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            let elements = listed["nftables"][1]["set"]["elem"].as_array().map_or(0, Vec::len);
            prop_assert_eq!(elements, ranges.len());
            for port in ports.keys() {
                let key = format!("{{ tcp . {port} }}");
                let found = node.host.output("nft", &["get", "element", "inet", "knit", "any4", &key]);
                prop_assert!(found.is_ok(), "{:?}", found);
            }
            Ok(())
        })
        .unwrap();
    node.converge(&NetState::default());
}

#[test]
fn counters_of_rules_are_read_chain_by_chain() {
    let mut node = TestNode::new("nft-counters", &[]).without_coverage();
    let to = |last: u8| Value::from(IpAddr::from([127, 0, 0, last]));
    let counted = |last: u8, comment: &str| {
        let rule = FilterRule::new().family(V4).is(Field::Destination(V4), to(last));
        rule.then(Expression::Count).comment(comment)
    };
    let mut table = FilterTable::default();
    let silent = FilterRule::new().then(Expression::Count);
    let uncounted = FilterRule::new().family(V4).comment("uncounted");
    let jumps = vec![FilterRule::new().jump("first"), FilterRule::new().jump("second")];
    let first = vec![counted(1, "one"), counted(2, "two"), counted(1, "one"), silent, uncounted];
    table.chains.insert("output".to_owned(), base(ChainType::Filter, Hook::Output, 0, jumps));
    table.chains.insert("first".to_owned(), FilterChain { base: None, rules: first });
    table.chains.insert("second".to_owned(), FilterChain { base: None, rules: vec![counted(1, "one")] });
    let mut filter = Filter::default();
    filter.tables.insert(TableFamily::Inet.table(), table);
    node.observe_filter(&Scope::Host, query(&filter));
    node.converge(&state_with(&Scope::Host, &filter));
    let netns = Netns::open(node.host.path()).unwrap();
    let read = |chains: &[&str]| {
        let found = chain_counters(&netns, &TableFamily::Inet.table(), chains.iter().copied()).unwrap();
        let each = |(chain, counters): (String, ChainCounters)| {
            let counters = counters.into_iter();
            let counters = counters.map(|(comment, counter)| (comment, counter.packets, counter.bytes));
            (chain, counters.collect::<Vec<_>>())
        };
        found.into_iter().map(each).collect::<Vec<_>>()
    };
    let packets =
        |one: u64, two: u64| vec![("one".to_owned(), one, one * 33), ("two".to_owned(), two, two * 33)];
    assert_eq!(read(&["first"]), [("first".to_owned(), packets(0, 0))]);
    node.host.run(|| {
        // It receives what it sends, so that the kernel does not answer.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        for last in [1, 1, 2] {
            socket.send_to(b"knit!", (std::net::Ipv4Addr::new(127, 0, 0, last), port)).unwrap();
        }
    });
    // Rules with the same comment are one.
    assert_eq!(read(&["first", "none"]), [("first".to_owned(), packets(4, 1))]);
    assert_eq!(read(&["second"]), [("second".to_owned(), packets(2, 0)[..1].to_vec())]);
    assert_eq!(read(&[]), []);
    node.host.output("nft", &["delete", "table", "inet", "knit"]).unwrap();
    assert_eq!(read(&["first"]), [], "without a table");
}

#[test]
fn support_of_logs_is_tried_without_a_trace() {
    let node = TestNode::new("nft-log", &[]).without_coverage();
    node.host.output("nft", &["add", "table", "inet", "theirs"]).unwrap();
    node.host.run(can_log).unwrap();
    assert_eq!(node.host.output("nft", &["list", "ruleset"]).unwrap(), "table inet theirs {\n}\n");
}
