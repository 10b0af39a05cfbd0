//! A dump shows exactly what was changed.

use std::time::Duration;

use knit_testbed::{Dump, Namespace, Testbed, assert_same, eventually};

use crate::pair;

#[test]
fn dump_of_an_unchanged_namespace_stays_equal() {
    let testbed = Testbed::new("still");
    let (a, b) = pair(&testbed);
    let before = Dump::settled(&a);
    // This causes learned neighbours, link-local addresses and counters.
    a.ping("10.0.0.2").unwrap();
    a.ping("fd00::2").unwrap();
    eventually("the link-local address exists", Duration::from_secs(5), || {
        let text = b.ip(&["-6", "address", "show", "dev", "eth0", "scope", "link"]);
        text.contains("fe80::") && !text.contains("tentative")
    });
    before.assert_unchanged(&a);
    assert_same!(before, Dump::take(&a));
}

/// Asserts what a dump shows of one change, and that undoing it restores the dump.
fn assert_shows(namespace: &Namespace, change: impl Fn(), undo: impl Fn(), expected: &[&str]) {
    let before = Dump::settled(namespace);
    change();
    let difference = before.difference(&Dump::take(namespace));
    let lines: Vec<_> = difference.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(lines.len(), expected.len(), "{difference}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    undo();
    before.assert_unchanged(namespace);
}

#[test]
fn dump_shows_exactly_what_was_changed() {
    let testbed = Testbed::new("change");
    let (a, _b) = pair(&testbed);
    let ip = |line: &str| {
        a.ip(&line.split(' ').collect::<Vec<_>>());
    };
    let nft = |line: &str| {
        a.output("nft", &[line]).unwrap();
    };
    let key = "net.ipv4.conf.eth0.arp_ignore";
    assert_shows(
        &a,
        || a.set_sysctl(key, "1"),
        || a.set_sysctl(key, "0"),
        &["- net/ipv4/conf/eth0/arp_ignore = 0", "+ net/ipv4/conf/eth0/arp_ignore = 1"],
    );
    assert_shows(
        &a,
        || ip("route add 10.9.0.0/16 via 10.0.0.2 table 77 proto 217"),
        || ip("route del 10.9.0.0/16 table 77"),
        &["+ table 77: 10.9.0.0/16 dev eth0 gateway 10.0.0.2 protocol 217"],
    );
    // The second address of a subnet adds itself and its local route.
    assert_shows(
        &a,
        || ip("address add 10.0.0.7/24 dev eth0"),
        || ip("address del 10.0.0.7/24 dev eth0"),
        &["+ eth0: 10.0.0.7/24", "+ table local: 10.0.0.7"],
    );
    assert_shows(
        &a,
        || ip("rule add pref 100 from 10.0.0.1 lookup 77"),
        || ip("rule del pref 100"),
        &["+ inet: priority 100"],
    );
    assert_shows(
        &a,
        || ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth0 nud permanent"),
        || ip("neigh del 10.0.0.9 dev eth0"),
        &["+ dev eth0 dst 10.0.0.9"],
    );
    assert_shows(
        &a,
        || nft("add table inet knit { chain c { type filter hook input priority 0; counter accept; }; }"),
        || nft("delete table inet knit"),
        &["+ table inet knit", "+ table inet knit > chain c", "hook input", "counter accept"],
    );
    assert_shows(
        &a,
        || drop(a.output("tc", &["qdisc", "add", "dev", "eth0", "clsact"]).unwrap()),
        || drop(a.output("tc", &["qdisc", "del", "dev", "eth0", "clsact"]).unwrap()),
        &["+ dev eth0 handle ffff: kind clsact"],
    );
    assert_shows(
        &a,
        || ip("link set eth0 mtu 1400"),
        || ip("link set eth0 mtu 1500"),
        &[
            "- eth0: info_kind veth",
            "+ eth0: info_kind veth",
            "- net/ipv6/conf/eth0/mtu = 1500",
            "+ net/ipv6/conf/eth0/mtu = 1400",
        ],
    );
}

#[test]
fn new_link_is_a_few_lines_in_a_difference() {
    let testbed = Testbed::new("newlink");
    let host = testbed.host();
    let before = Dump::settled(&host);
    testbed.bridge(&host, "br7");
    let difference = before.difference(&Dump::take(&host));
    assert!(difference.contains("+ br7: info_kind bridge"), "{difference}");
    assert!(difference.contains("further lines"), "{difference}");
    assert!(difference.lines().count() < 20, "{difference}");
    host.ip(&["link", "del", "br7"]);
    before.assert_unchanged(&host);
}

/// The example of the crate's documentation.
#[test]
fn create_and_delete_leaves_the_host_unchanged() {
    let mut testbed = Testbed::new("example");
    let host = testbed.host();
    let (a, b) = (testbed.pod("a"), testbed.pod("b"));
    let before = Dump::settled(&host);
    testbed.bridge(&host, "br0");
    for (pod, port, number) in [(&a, "port-a", 1), (&b, "port-b", 2)] {
        testbed.connect(pod, "eth0", &host, port);
        host.enslave(port, "br0");
        pod.address("eth0", &format!("10.0.0.{number}/24"));
        pod.address("eth0", &format!("fd00::{number}/64"));
    }
    a.ping("10.0.0.2").unwrap();
    a.ping("fd00::2").unwrap();
    a.ip(&["link", "del", "eth0"]);
    b.ip(&["link", "del", "eth0"]);
    host.ip(&["link", "del", "br0"]);
    before.assert_unchanged(&host);
    testbed.close();
    testbed.assert_nothing_left();
}
