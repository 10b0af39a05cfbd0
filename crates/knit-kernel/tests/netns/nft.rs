//! nftables tables, compared with the output of the `nft` program.

use std::net::IpAddr;
use std::slice::from_ref;

use knit_kernel::error::Error;
use knit_kernel::nft::{
    BaseChain, Chain, ChainType, DataType, Family, Field, Hook, IpFamily, Rule, Set, SetContents, Table,
    Value,
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

fn chain(name: &'static str, kind: ChainType, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, base: Some(BaseChain { chain_type: kind, hook, priority }), rules }
}

/// A map from ports of the node to a pod's port.
fn map(version: IpFamily, to: &str, ports: impl Iterator<Item = u16>) -> Set {
    let elements =
        ports.map(|port| (vec![6u8.into(), port.into()], vec![address(to), 80u16.into()])).collect();
    Set {
        name: if version == IpFamily::V4 { "any4" } else { "any6" }.to_owned(),
        key: vec![DataType::Protocol, DataType::Port],
        contents: SetContents::Map { data: vec![version.kind(), DataType::Port], elements },
    }
}

/// A table with everything that Knit uses.
fn everything() -> Table {
    let bridge: IfName = "knit0".parse().unwrap();
    let (source, destination) = (Field::Source(IpFamily::V4), Field::Destination(IpFamily::V4));
    let ranges = ["10.1.0.0/16", "10.1.2.0/24", "192.0.2.7/32", "10.2.0.0/17"];
    let to_pod = [Field::L4Protocol, destination, Field::DestinationPort];
    let sets = vec![
        Set {
            name: "inside".to_owned(),
            key: vec![DataType::Ipv4],
            contents: SetContents::Intervals(ranges.iter().map(|text| text.parse().unwrap()).collect()),
        },
        Set {
            name: "pods".to_owned(),
            key: vec![DataType::Protocol, DataType::Ipv4, DataType::Port],
            contents: SetContents::Keys(vec![vec![17u8.into(), address("10.75.0.2"), 53u16.into()]]),
        },
        map(IpFamily::V4, "10.75.0.2", 8080..8081),
        map(IpFamily::V6, "fd75::2", 8080..8081),
    ];
    let postrouting = vec![
        Rule::new()
            .is_not(Field::OifName, &bridge)
            .family(IpFamily::V4)
            .in_set(&[source], "inside")
            .not_in_set(&[destination], "inside")
            .not_within(destination, "224.0.0.0/4".parse().unwrap())
            .masquerade(true),
        Rule::new()
            .family(IpFamily::V4)
            .with_dnat()
            .is(Field::IifName, &bridge)
            .in_set(&to_pod, "pods")
            .masquerade(false),
    ];
    let ports = [Field::L4Protocol, Field::DestinationPort];
    let ports = vec![
        Rule::new().family(IpFamily::V4).dnat(IpFamily::V4, &ports, "any4"),
        Rule::new().family(IpFamily::V6).dnat(IpFamily::V6, &ports, "any6"),
    ];
    let guard = Rule::new().is(Field::IifName, &bridge).family(IpFamily::V4);
    let chains = vec![
        Chain { name: "ports", base: None, rules: ports },
        chain("arriving", ChainType::Nat, Hook::Prerouting, -100, vec![Rule::new().to_local().jump("ports")]),
        chain(
            "guard",
            ChainType::Filter,
            Hook::Prerouting,
            -300,
            vec![guard.within(destination, "127.0.0.0/8".parse().unwrap()).drop()],
        ),
        chain("returning", ChainType::Nat, Hook::Postrouting, 100, postrouting),
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
fn a_table_is_listed_by_nft_and_others_are_left_alone() {
    let testbed = Testbed::new("nft-list");
    let host = testbed.host();
    host.output("nft", &["add", "table", "inet", "theirs"]).unwrap();
    let mut kernel = kernel(&host);
    let listed = || host.output("nft", &["list", "ruleset"]).unwrap();
    // The second time there is one to replace.
    for _ in 0..2 {
        kernel.replace_tables(&[everything()]).unwrap();
        assert_eq!(listed(), format!("table inet theirs {{\n}}\n{LISTED}"));
    }
    // `nft` lists it exactly like a table that it created itself.
    host.output("nft", &["delete", "table", "inet", "knit"]).unwrap();
    let file = file_with(LISTED);
    host.output("nft", &["-f", file.path().to_str().unwrap()]).unwrap();
    assert_eq!(listed(), format!("table inet theirs {{\n}}\n{LISTED}"));
    for _ in 0..2 {
        kernel.replace_tables(&[Table::empty(Family::Inet, "knit")]).unwrap();
        assert_eq!(listed(), "table inet theirs {\n}\n");
    }
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_rejected_table_changes_nothing_and_the_error_names_the_part() {
    let testbed = Testbed::new("nft-rejected");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    kernel.replace_tables(&[everything()]).unwrap();
    // The same port maps to two pods.
    let mut wrong = everything();
    if let SetContents::Map { elements, .. } = &mut wrong.sets[2].contents {
        elements.push((vec![6u8.into(), 8080u16.into()], vec![address("10.75.0.3"), 80u16.into()]));
    }
    let error = kernel.replace_tables(&[wrong]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Rejected { .. }), "{text}");
    assert!(
        text.starts_with("add elements to set any4 in table inet knit: ") && text.contains("EEXIST"),
        "{text}"
    );
    assert_eq!(host.output("nft", &["list", "ruleset"]).unwrap(), LISTED);
}

#[test]
fn an_existing_table_is_updated_in_place() {
    let testbed = Testbed::new("nft-change");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    let old = everything();
    let mut new = everything();
    if let SetContents::Map { elements, .. } = &mut new.sets[2].contents {
        // One maps to another pod, one is new.
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
    kernel.update_tables(from_ref(&old), from_ref(&new)).unwrap();
    assert_eq!((listed(), handle()), (expected, before.clone()));
    kernel.update_tables(from_ref(&new), from_ref(&old)).unwrap();
    assert_eq!((listed().as_str(), handle()), (LISTED, before.clone()));
    // If the kernel's table is not as `known`, the update fails and nothing changes.
    let mut without = everything();
    if let SetContents::Map { elements, .. } = &mut without.sets[2].contents {
        elements.clear();
    }
    host.output("nft", &["flush", "map", "inet", "knit", "any4"]).unwrap();
    assert!(kernel.update_tables(&[old], &[without]).is_err());
    assert_eq!(handle(), before);
}

#[test]
fn sixty_thousand_elements_fit_into_one_transaction() {
    let testbed = Testbed::new("nft-many");
    let host = testbed.host();
    let mut kernel = kernel(&host);
    let table =
        Table { sets: vec![map(IpFamily::V6, "fd75::2", 1..60_001)], ..Table::empty(Family::Inet, "knit") };
    kernel.replace_tables(&[table]).unwrap();
    let listed = host.output("nft", &["list", "map", "inet", "knit", "any6"]).unwrap();
    assert_eq!(listed.matches("fd75::2 . 80").count(), 60_000);
}
