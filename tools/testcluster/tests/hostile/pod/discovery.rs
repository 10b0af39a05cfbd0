//! Messages that make neighbours send to the attacker: ARP, neighbour discovery, router advertisements, DHCP.

use std::net::{IpAddr, Ipv6Addr};

use crate::hostile::frames::{
    BROADCAST, ICMPV6, Mac, UDP, advertisement, arp_reply, dhcp_offer, packet, parse_mac, redirect_v6,
    router_advertisement, udp,
};
use crate::hostile::stage::{Host, Stage, stage};
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

const ALL_NODES_MAC: &str = "33:33:00:00:00:01";

fn all_nodes() -> IpAddr {
    "ff02::1".parse().unwrap()
}

/// The address of the cluster bridge of node1 in the family of `like`.
fn gateway(like: IpAddr) -> IpAddr {
    let family = if like.is_ipv4() { "-4" } else { "-6" };
    let shown = on_node("node1", &["ip", family, "-o", "addr", "show", "dev", "knit0", "scope", "global"]);
    let inet = if like.is_ipv4() { "inet " } else { "inet6 " };
    let (_, rest) = shown.split_once(inet).unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

/// The link-local address that a pod derives from its MAC address.
fn link_local(mac: Mac) -> IpAddr {
    let [a, b, c, d, e, f] = mac;
    let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f)).into()
}

/// Asserts that ARP replies which claim an address do not reach the neighbour, sent to it and to everyone.
#[track_caller]
fn assert_arp_dropped(claim: impl Fn(&Stage, &Host) -> (Mac, IpAddr)) {
    let stage = stage();
    let before = neighbours(&stage);
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let (mac, address) = claim(&stage, to);
        let reply = |target| arp_reply((stage.plain.mac, target), mac, address, to.ipv4, note);
        vec![reply(to.mac), reply(BROADCAST)]
    });
    assert_eq!(neighbours(&stage), before);
}

/// The MAC addresses that the neighbour and the node have for each other, the gateway and the other pods.
fn neighbours(stage: &Stage) -> Vec<String> {
    stage.assert_connected();
    let of_pod = script(&stage.victim, "near", "ip neigh show dev eth0");
    let of_node = on_node("node1", &["ip", "neigh", "show", "dev", "knit0"]);
    let interesting = [stage.near.ipv4.to_string(), gateway(stage.near.ipv4).to_string()];
    let lines = of_pod.lines().chain(of_node.lines()).filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?;
        let mac = words.skip_while(|word| *word != "lladdr").nth(1)?;
        interesting.iter().any(|one| one == address).then(|| format!("{address} {mac}"))
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines.dedup();
    lines
}

/// A frame with a note.
type Build<'a> = &'a dyn Fn(&str) -> Vec<u8>;

#[test]
fn the_own_addresses_of_a_pod_arrive() {
    // Without this, a frame that is malformed would pass every check.
    let stage = stage();
    let (from, to) = (&stage.plain, &stage.near);
    let macs = (from.mac, to.mac);
    let frames: [Build<'_>; 4] = [
        &|note| arp_reply(macs, from.mac, from.ipv4, to.ipv4, note),
        &|note| packet(macs, (from.ipv6, to.ipv6), ICMPV6, &advertisement(from.ipv6, from.mac, note)),
        &|note| stage.spoofed(from, from.ipv6, to, note),
        &|note| stage.spoofed(from, from.ipv4, to, note),
    ];
    for build in frames {
        let note = stage.note();
        let attempt = || {
            stage.send(from, &[build(&note)]);
            stage.received(to, &note)
        };
        eventually("an honest frame arrives", attempt, |received| !received.is_empty());
    }
}

#[test]
fn arp_reply_for_the_gateway() {
    assert_arp_dropped(|stage, to| (stage.plain.mac, gateway(to.ipv4)));
}

#[test]
fn arp_reply_for_a_pod_of_another_tenant() {
    assert_arp_dropped(|stage, _| (stage.plain.mac, stage.far.ipv4));
}

#[test]
fn arp_reply_for_the_receiver_itself() {
    assert_arp_dropped(|stage, to| (stage.plain.mac, to.ipv4));
}

#[test]
fn arp_reply_with_its_own_address_at_a_mac_of_another() {
    assert_arp_dropped(|stage, to| (to.mac, stage.plain.ipv4));
}

#[test]
fn arp_reply_to_the_node_for_a_pod_of_another_tenant() {
    let stage = stage();
    let before = neighbours(&stage);
    let reply = arp_reply(
        (stage.plain.mac, stage.gateway),
        stage.plain.mac,
        stage.near.ipv4,
        gateway(stage.near.ipv4),
        "",
    );
    stage.send(&stage.plain, &[reply]);
    assert_eq!(neighbours(&stage), before, "the node's neighbours");
}

/// Asserts that ICMPv6 messages reach neither the neighbour nor all nodes.
#[track_caller]
fn assert_icmpv6_dropped(
    source: impl Fn(&Stage, &Host) -> IpAddr,
    message: impl Fn(&Stage, &Host, &str) -> Vec<u8>,
) {
    let stage = stage();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let source = source(&stage, to);
        let send = |mac, address| {
            packet((stage.plain.mac, mac), (source, address), ICMPV6, &message(&stage, to, note))
        };
        vec![send(to.mac, to.ipv6), send(parse_mac(ALL_NODES_MAC), all_nodes())]
    });
    let routes = script(&stage.victim, "near", "ip -6 route; ip -6 addr");
    assert!(!routes.contains("fd66:") && !routes.contains("proto ra"), "{routes}");
    stage.assert_connected();
}

#[test]
fn neighbour_advertisement_for_the_gateway() {
    assert_icmpv6_dropped(
        |stage, _| stage.plain.ipv6,
        |stage, to, note| advertisement(gateway(to.ipv6), stage.plain.mac, note),
    );
}

#[test]
fn neighbour_advertisement_for_a_pod_of_another_tenant() {
    assert_icmpv6_dropped(
        |stage, _| stage.plain.ipv6,
        |stage, _, note| advertisement(stage.far.ipv6, stage.plain.mac, note),
    );
}

#[test]
fn neighbour_advertisement_from_the_address_that_it_claims() {
    assert_icmpv6_dropped(
        |_, to| gateway(to.ipv6),
        |stage, to, note| advertisement(gateway(to.ipv6), stage.plain.mac, note),
    );
}

#[test]
fn router_advertisement_of_a_pod() {
    assert_icmpv6_dropped(
        |stage, _| link_local(stage.plain.mac),
        |stage, _, note| router_advertisement(stage.plain.mac, note),
    );
}

#[test]
fn router_advertisement_with_the_source_of_the_gateway() {
    assert_icmpv6_dropped(
        |stage, _| link_local(stage.gateway),
        |stage, _, note| router_advertisement(stage.plain.mac, note),
    );
}

#[test]
fn icmpv6_redirect_of_a_pod() {
    assert_icmpv6_dropped(
        |stage, _| link_local(stage.plain.mac),
        |stage, _, note| redirect_v6(link_local(stage.plain.mac), stage.far.ipv6, note),
    );
}

#[test]
fn dhcp_offer_of_a_pod() {
    let stage = stage();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let IpAddr::V4(own) = stage.plain.ipv4 else { unreachable!() };
        let offer = dhcp_offer(to.mac, own, note);
        let everyone: IpAddr = "255.255.255.255".parse().unwrap();
        let send = |mac, address| packet((stage.plain.mac, mac), (stage.plain.ipv4, address), UDP, &offer);
        vec![send(to.mac, to.ipv4), send(BROADCAST, everyone)]
    });
}

#[test]
fn dhcpv6_advertisement_of_a_pod() {
    let stage = stage();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let message = [&[2, 1, 2, 3][..], note.as_bytes()].concat();
        let payload = udp(547, 546, &message);
        let source = link_local(stage.plain.mac);
        let send = |mac, address| packet((stage.plain.mac, mac), (source, address), UDP, &payload);
        vec![send(to.mac, to.ipv6), send(parse_mac(ALL_NODES_MAC), all_nodes())]
    });
}
