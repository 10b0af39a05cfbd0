//! Anti-spoofing on the cluster network.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::agent::Machine;
use crate::support::frames::{ICMPV6, Mac, UDP, Wire, arp, frame, icmp, mac, packet, udp};
use knit_testbed::{Pod, eventually};

/// Any program can change the tables, as on a kernel before 6.9.
const NO_TABLE_OWNER: [(&str, &str); 1] = [("KNIT_FAULT_NO_TABLE_OWNER", "1")];
const OTHER: Mac = [0x02, 0, 0, 0, 0, 0x99];
const MINE: (&str, &str) = ("10.75.0.2", "fd75:6b6e:6974::2");
const NEIGHBOUR: (&str, &str) = ("10.75.0.3", "fd75:6b6e:6974::3");
const GATEWAY: (&str, &str) = ("10.75.0.1", "fd75:6b6e:6974::1");

/// Each frame ends with a unique note.
fn spoofed_frames(me: Mac, you: Mac) -> Vec<(&'static str, Vec<u8>)> {
    let macs = (me, you);
    let v4 = |from: &str, payload: &[u8]| packet(macs, from, NEIGHBOUR.0, UDP, payload);
    let v6 = |from: &str, protocol: u8, payload: &[u8]| packet(macs, from, NEIGHBOUR.1, protocol, payload);
    vec![
        ("forged-mac", packet((OTHER, you), MINE.0, NEIGHBOUR.0, UDP, &udp(9, "forged-mac"))),
        ("forged-ipv4", v4("10.75.0.77", &udp(9, "forged-ipv4"))),
        ("forged-ipv6", v6("fd75:6b6e:6974::77", UDP, &udp(9, "forged-ipv6"))),
        ("forged-arp", arp(macs, me, GATEWAY.0, "forged-arp")),
        ("forged-arp-mac", arp(macs, OTHER, MINE.0, "forged-arp-mac")),
        ("forged-neighbour", v6(MINE.1, ICMPV6, &icmp(136, GATEWAY.1, "forged-neighbour"))),
        ("forged-router", v6(MINE.1, ICMPV6, &icmp(134, "::", "forged-router"))),
        ("forged-redirect", v6(MINE.1, ICMPV6, &icmp(137, GATEWAY.1, "forged-redirect"))),
        ("forged-dhcp", v4(MINE.0, &udp(67, "forged-dhcp"))),
        ("forged-dhcpv6", v6(MINE.1, UDP, &udp(547, "forged-dhcpv6"))),
        ("forged-other", frame(you, me, 0x88b5, b"a protocol of its own forged-other")),
    ]
}

fn valid_frames(me: Mac, you: Mac) -> Vec<(&'static str, Vec<u8>)> {
    let macs = (me, you);
    vec![
        ("honest-ipv6", packet(macs, MINE.1, NEIGHBOUR.1, UDP, &udp(9, "honest-ipv6"))),
        ("honest-arp", arp(macs, me, MINE.0, "honest-arp")),
        ("honest-question", arp(macs, me, "0.0.0.0", "honest-question")),
        (
            "honest-neighbour",
            packet(macs, MINE.1, NEIGHBOUR.1, ICMPV6, &icmp(136, MINE.1, "honest-neighbour")),
        ),
        ("honest-new", packet(macs, "::", NEIGHBOUR.1, ICMPV6, &icmp(135, MINE.1, "honest-new"))),
        // The last frame: all frames before it have arrived by then, or were dropped.
        ("honest-ipv4", packet(macs, MINE.0, NEIGHBOUR.0, UDP, &udp(9, "honest-ipv4"))),
    ]
}

/// Sends all frames and returns the notes of those that a neighbour received.
fn received(from: &Wire, to: &Wire, frames: &[(&'static str, Vec<u8>)]) -> BTreeSet<&'static str> {
    frames.iter().for_each(|(_, frame)| from.send(frame));
    let mut names = BTreeSet::new();
    eventually("the last frame arrives", Duration::from_secs(5), || {
        for received in to.received() {
            names.extend(
                frames.iter().map(|(name, _)| *name).filter(|name| received.ends_with(name.as_bytes())),
            );
        }
        names.contains("honest-ipv4")
    });
    names
}

fn names(frames: &[(&'static str, Vec<u8>)]) -> BTreeSet<&'static str> {
    frames.iter().map(|(name, _)| *name).collect()
}

fn assert_connectivity(pod: &Pod) {
    for address in [GATEWAY.0, GATEWAY.1, NEIGHBOUR.0, NEIGHBOUR.1] {
        pod.ping(address).unwrap();
    }
}

#[test]
fn spoofed_source_addresses_are_dropped() {
    let machine = Machine::new("agent-spoofing");
    let (one, two) = (machine.testbed.pod("one"), machine.testbed.pod("two"));
    let agent = machine.agent_with(&["--cluster-anti-spoofing"], &[]);
    agent.attach("sb1", &one);
    agent.attach("sb2", &two);
    assert_connectivity(&one);
    let (me, you) = (mac(one.namespace(), "eth0"), mac(two.namespace(), "eth0"));
    let (from, to) = (Wire::open(one.namespace(), "eth0"), Wire::open(two.namespace(), "eth0"));
    let all = [spoofed_frames(me, you), valid_frames(me, you)].concat();
    assert_eq!(received(&from, &to, &all), names(&valid_frames(me, you)));

    // The protection survives a restart.
    agent.crash();
    assert_eq!(received(&from, &to, &all), names(&valid_frames(me, you)));
    let agent = machine.agent_with(&["--cluster-anti-spoofing"], &[]);
    assert_eq!(received(&from, &to, &all), names(&valid_frames(me, you)));
    assert_connectivity(&one);

    // With anti-spoofing disabled all frames arrive, and the table is removed.
    agent.stop();
    let agent = machine.agent_with(&["--cluster-anti-spoofing=false"], &[]);
    let table = || machine.host.output("nft", &["list", "table", "bridge", "knit"]);
    eventually("the table is gone", Duration::from_secs(5), || table().is_err());
    assert_eq!(received(&from, &to, &all), names(&all));
    agent.stop();
}

#[test]
fn a_removed_table_is_recreated_with_its_ports() {
    let machine = Machine::new("agent-guard");
    let one = machine.testbed.pod("one");
    let arguments = ["--cluster-anti-spoofing", "--resync-seconds", "1"];
    let agent = machine.agent_with(&arguments, &NO_TABLE_OWNER);
    agent.attach("sb1", &one);
    let table = || machine.host.output("nft", &["list", "table", "bridge", "knit"]);
    let before = table().unwrap();
    let shown = one.ip_json(&["link", "show", "dev", "eth0"]);
    let mac = shown[0]["address"].as_str().unwrap();
    for part in ["type ifname . ether_addr . ipv4_addr", &format!("{mac} . {}", MINE.0)] {
        assert!(before.contains(part), "{part}: {before}");
    }
    machine.host.output("nft", &["delete", "table", "bridge", "knit"]).unwrap();
    eventually("it is there again", Duration::from_secs(10), || table().is_ok_and(|now| now == before));
    agent.delete("sb1");
    eventually("its elements are removed with the pod", Duration::from_secs(5), || {
        table().is_ok_and(|now| !now.contains("elements = "))
    });
}

#[test]
fn attach_and_detach_update_the_table_in_place() {
    let machine = Machine::new("agent-in-place");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let arguments = ["--cluster-anti-spoofing", "--resync-seconds", "600"];
    let agent = machine.agent_with(&arguments, &NO_TABLE_OWNER);
    let table = || machine.host.output("nft", &["list", "table", "bridge", "knit"]).unwrap();
    let handle = || {
        let listed = machine.host.output("nft", &["-a", "list", "table", "bridge", "knit"]).unwrap();
        listed.lines().next().unwrap().to_owned()
    };
    agent.attach("sb1", &pods[0]);
    let (alone, first) = (table(), handle());
    agent.attach("sb2", &pods[1]);
    assert!(table().contains(MINE.0) && table().contains(NEIGHBOUR.0), "{}", table());
    agent.delete("sb2");
    eventually("it is as before", Duration::from_secs(5), || table() == alone);
    assert_eq!(handle(), first);
    // A removed table is recreated for all pods.
    agent.attach("sb2", &pods[1]);
    let both = table();
    machine.host.output("nft", &["delete", "table", "bridge", "knit"]).unwrap();
    agent.attach("sb3", &pods[2]);
    agent.delete("sb3");
    let sorted =
        |text: &str| text.split([',', '\n']).map(|part| part.trim().to_owned()).collect::<BTreeSet<_>>();
    eventually("all are there", Duration::from_secs(5), || sorted(&table()) == sorted(&both));
    assert_ne!(handle(), first);
    agent.stop();
}

#[test]
fn a_pod_reaches_itself_through_a_service_with_bridge_netfilter() {
    const SERVICE: (&str, &str) = ("10.96.0.10", "fd96::10");
    let machine = Machine::new("agent-hairpin");
    let one = machine.testbed.pod("one");
    let agent = machine.agent_with(&["--cluster-anti-spoofing"], &[]);
    agent.attach("sb1", &one);
    let table = format!(
        "table inet service {{
           chain to {{ type nat hook prerouting priority dstnat;
             ip daddr {} tcp dport 80 dnat ip to {}:8080
             ip6 daddr {} tcp dport 80 dnat ip6 to [{}]:8080
           }}
           chain from {{ type nat hook postrouting priority srcnat;
             ip saddr {} ip daddr {} masquerade
             ip6 saddr {} ip6 daddr {} masquerade
           }}
         }}",
        SERVICE.0, MINE.0, SERVICE.1, MINE.1, MINE.0, MINE.0, MINE.1, MINE.1
    );
    machine.host.output("nft", &[&table]).unwrap();
    for (mine, service) in [(MINE.0, SERVICE.0), (MINE.1, SERVICE.1)] {
        let mine: std::net::IpAddr = mine.parse().unwrap();
        let service: std::net::IpAddr = service.parse().unwrap();
        let _echo = one.tcp_echo((mine, 8080));
        one.tcp_reaches((service, 80)).unwrap();
    }
}
