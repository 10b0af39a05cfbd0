//! Tables of the packet filter on the real kernel, as the `nft` program reads them. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::net::IpAddr;
use std::slice::from_ref;

use knit_kernel::error::Error;
use knit_kernel::nft::{
    Chain, ChainKind, Contents, Entry, Family, Field, Hook, Ip, Kind, Rule, Set, Table, Value,
};
use knit_kernel::{Kernel, Netns};
use knit_model::IfName;
use knit_testbed::{Namespace, Testbed};

fn kernel(namespace: &Namespace) -> Kernel {
    Kernel::open(Netns::open(namespace.path()).unwrap()).unwrap()
}

fn address(text: &str) -> Value {
    Value::from(text.parse::<IpAddr>().unwrap())
}

fn chain(name: &'static str, kind: ChainKind, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, entry: Some(Entry { kind, hook, priority }), rules }
}

/// A map from ports of the node to a pod's.
fn map(version: Ip, to: &str, ports: impl Iterator<Item = u16>) -> Set {
    let elements =
        ports.map(|port| (vec![6u8.into(), port.into()], vec![address(to), 80u16.into()])).collect();
    Set {
        name: if version == Ip::V4 { "any4" } else { "any6" }.to_owned(),
        key: vec![Kind::Protocol, Kind::Port],
        contents: Contents::Map { to: vec![version.kind(), Kind::Port], elements },
    }
}

/// A table with everything that Knit says.
fn everything() -> Table {
    let bridge: IfName = "knit0".parse().unwrap();
    let (source, destination) = (Field::Source(Ip::V4), Field::Destination(Ip::V4));
    let ranges = ["10.1.0.0/16", "10.1.2.0/24", "192.0.2.7/32", "10.2.0.0/17"];
    let to_pod = [Field::Protocol, destination, Field::DestinationPort];
    let sets = vec![
        Set {
            name: "inside".to_owned(),
            key: vec![Kind::Ipv4],
            contents: Contents::Ranges(ranges.iter().map(|text| text.parse().unwrap()).collect()),
        },
        Set {
            name: "pods".to_owned(),
            key: vec![Kind::Protocol, Kind::Ipv4, Kind::Port],
            contents: Contents::Keys(vec![vec![17u8.into(), address("10.75.0.2"), 53u16.into()]]),
        },
        map(Ip::V4, "10.75.0.2", 8080..8081),
        map(Ip::V6, "fd75::2", 8080..8081),
    ];
    let postrouting = vec![
        Rule::new()
            .is_not(Field::OutName, &bridge)
            .of(Ip::V4)
            .found(&[source], "inside")
            .not_found(&[destination], "inside")
            .not_within(destination, "224.0.0.0/4".parse().unwrap())
            .masquerade(true),
        Rule::new()
            .of(Ip::V4)
            .redirected()
            .is(Field::InName, &bridge)
            .found(&to_pod, "pods")
            .masquerade(false),
    ];
    let ports = [Field::Protocol, Field::DestinationPort];
    let ports = vec![
        Rule::new().of(Ip::V4).redirect(Ip::V4, &ports, "any4"),
        Rule::new().of(Ip::V6).redirect(Ip::V6, &ports, "any6"),
    ];
    let guard = Rule::new().is(Field::InName, &bridge).of(Ip::V4);
    let chains = vec![
        Chain { name: "ports", entry: None, rules: ports },
        chain(
            "arriving",
            ChainKind::Nat,
            Hook::Prerouting,
            -100,
            vec![Rule::new().to_this_node().jump("ports")],
        ),
        chain(
            "guard",
            ChainKind::Filter,
            Hook::Prerouting,
            -300,
            vec![guard.within(destination, "127.0.0.0/8".parse().unwrap()).drop()],
        ),
        chain("returning", ChainKind::Nat, Hook::Postrouting, 100, postrouting),
    ];
    Table { family: Family::Inet, name: "knit", sets, chains }
}

const LISTED: &str = r#"table inet knit {
	set inside {
		type ipv4_addr
		flags interval
		auto-merge
		elements = { 10.1.0.0-10.2.127.255, 192.0.2.7 }
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

	chain ports {
		meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4
		meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6
	}

	chain arriving {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local jump ports
	}

	chain guard {
		type filter hook prerouting priority raw; policy accept;
		iifname "knit0" ip daddr 127.0.0.0/8 drop
	}

	chain returning {
		type nat hook postrouting priority srcnat; policy accept;
		oifname != "knit0" ip saddr @inside ip daddr != @inside ip daddr != 224.0.0.0/4 masquerade random
		ct status dnat iifname "knit0" meta l4proto . ip daddr . th dport @pods masquerade
	}
}
"#;

#[test]
fn a_table_is_listed_in_words_and_others_are_left_alone() {
    let testbed = Testbed::new("nft-words");
    let host = testbed.host();
    host.output("nft", &["add", "table", "inet", "theirs"]).unwrap();
    let mut kernel = kernel(&host);
    let listed = || host.output("nft", &["list", "ruleset"]).unwrap();
    // The second time there is one to replace.
    for _ in 0..2 {
        kernel.replace_tables(&[everything()]).unwrap();
        assert_eq!(listed(), format!("table inet theirs {{\n}}\n{LISTED}"));
    }
    // The program says the same of it as of one that it made itself.
    host.output("nft", &["delete", "table", "inet", "knit"]).unwrap();
    let file = file_with(LISTED);
    host.output("nft", &["-f", file.path().to_str().unwrap()]).unwrap();
    assert_eq!(listed(), format!("table inet theirs {{\n}}\n{LISTED}"));
    for _ in 0..2 {
        kernel.replace_tables(&[Table::none(Family::Inet, "knit")]).unwrap();
        assert_eq!(listed(), "table inet theirs {\n}\n");
    }
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_table_that_the_kernel_refuses_changes_nothing_and_says_which_part() {
    let testbed = Testbed::new("nft-refused");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    kernel.replace_tables(&[everything()]).unwrap();
    // The same port leads to two places.
    let mut wrong = everything();
    if let Contents::Map { elements, .. } = &mut wrong.sets[2].contents {
        elements.push((vec![6u8.into(), 8080u16.into()], vec![address("10.75.0.3"), 80u16.into()]));
    }
    let refused = kernel.replace_tables(&[wrong]).unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, Error::Refused { .. }), "{said}");
    assert!(said.starts_with("fill set any4 in table inet knit: ") && said.contains("EEXIST"), "{said}");
    assert_eq!(host.output("nft", &["list", "ruleset"]).unwrap(), LISTED);
}

#[test]
fn a_table_that_is_there_is_changed_in_place() {
    let testbed = Testbed::new("nft-change");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    let old = everything();
    let mut new = everything();
    if let Contents::Map { elements, .. } = &mut new.sets[2].contents {
        // One leads elsewhere, one is new.
        elements[0].1 = vec![address("10.75.0.9"), 81u16.into()];
        elements.push((vec![17u8.into(), 5353u16.into()], vec![address("10.75.0.3"), 53u16.into()]));
    }
    kernel.replace_tables(from_ref(&new)).unwrap();
    let listed = || host.output("nft", &["list", "table", "inet", "knit"]).unwrap();
    let handle = || {
        let listed = host.output("nft", &["-a", "list", "table", "inet", "knit"]).unwrap();
        listed.lines().next().unwrap().to_owned()
    };
    let expected = listed();
    let first = handle();
    kernel.replace_tables(from_ref(&old)).unwrap();
    let before = handle();
    assert_ne!(before, first);
    kernel.change_tables(from_ref(&old), from_ref(&new)).unwrap();
    assert_eq!((listed(), handle()), (expected, before.clone()));
    kernel.change_tables(from_ref(&new), from_ref(&old)).unwrap();
    assert_eq!((listed().as_str(), handle()), (LISTED, before.clone()));
    // What is not as it is said to be is an error, and nothing changes.
    let mut without = everything();
    if let Contents::Map { elements, .. } = &mut without.sets[2].contents {
        elements.clear();
    }
    host.output("nft", &["flush", "map", "inet", "knit", "any4"]).unwrap();
    assert!(kernel.change_tables(&[old], &[without]).is_err());
    assert_eq!(handle(), before);
}

#[test]
fn as_many_elements_as_a_node_has_ports_go_in_one_transaction() {
    let testbed = Testbed::new("nft-many");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    let table = Table { sets: vec![map(Ip::V6, "fd75::2", 1..60_001)], ..Table::none(Family::Inet, "knit") };
    kernel.replace_tables(&[table]).unwrap();
    let listed = host.output("nft", &["list", "map", "inet", "knit", "any6"]).unwrap();
    assert_eq!(listed.matches("fd75::2 . 80").count(), 60_000);
}
