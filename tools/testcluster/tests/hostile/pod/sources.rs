//! Source addresses of others, in frames of a pod with the runtime's default capabilities (NET_RAW among them).

use std::net::IpAddr;

use crate::hostile::frames::{self, ICMP, UDP, frame, packet, udp};
use crate::hostile::stage::{Host, Stage, stage};
use crate::hostile::wire::PORT;
use crate::support::operator::on_node;

/// Asserts that datagrams with this source address reach nobody.
#[track_caller]
fn assert_source_dropped(source: impl Fn(&Stage, &Host) -> IpAddr) {
    let stage = stage();
    stage.assert_dropped(&stage.plain, |to, note| {
        vec![stage.spoofed(&stage.plain, source(&stage, to), to, note)]
    });
}

/// The address of another pod of the other tenant than the receiver.
fn other(stage: &Stage, to: &Host) -> (IpAddr, IpAddr) {
    let host = if to.pod == "near" { &stage.far } else { &stage.near };
    (host.ipv4, host.ipv6)
}

#[test]
fn ipv4_source_of_another_pod() {
    assert_source_dropped(|stage, to| other(stage, to).0);
}

#[test]
fn ipv6_source_of_another_pod() {
    assert_source_dropped(|stage, to| other(stage, to).1);
}

#[test]
fn ipv4_source_of_the_receiver_itself() {
    assert_source_dropped(|_, to| to.ipv4);
}

#[test]
fn ipv4_source_of_a_pod_of_the_same_tenant() {
    assert_source_dropped(|stage, _| stage.admin.ipv4);
}

#[test]
fn ipv4_source_of_the_node() {
    let node = on_node("node1", &["ip", "-4", "-o", "addr", "show", "dev", "eth0"]);
    let (_, rest) = node.split_once("inet ").unwrap();
    let node: IpAddr = rest.split('/').next().unwrap().parse().unwrap();
    assert_source_dropped(|_, _| node);
}

#[test]
fn ipv4_source_of_the_cluster_bridge() {
    let bridge = on_node("node1", &["ip", "-4", "-o", "addr", "show", "dev", "knit0"]);
    let (_, rest) = bridge.split_once("inet ").unwrap();
    let bridge: IpAddr = rest.split('/').next().unwrap().parse().unwrap();
    assert_source_dropped(|_, _| bridge);
}

#[test]
fn ipv4_source_of_a_service() {
    assert_source_dropped(|_, _| "10.96.0.10".parse().unwrap());
}

#[test]
fn ipv4_source_outside_of_the_cluster() {
    assert_source_dropped(|_, _| "203.0.113.9".parse().unwrap());
}

#[test]
fn ipv6_source_outside_of_the_cluster() {
    assert_source_dropped(|_, _| "2001:db8:9::9".parse().unwrap());
}

#[test]
fn ipv4_source_that_no_pod_has() {
    assert_source_dropped(|stage, _| {
        let IpAddr::V4(own) = stage.plain.ipv4 else { unreachable!() };
        let [a, b, c, _] = own.octets();
        IpAddr::from([a, b, c, 250])
    });
}

#[test]
fn ipv4_source_of_a_loopback_address() {
    assert_source_dropped(|_, _| "127.0.0.1".parse().unwrap());
}

#[test]
fn ipv6_link_local_source_of_another_pod() {
    let stage = stage();
    let [a, b, c, d, e, f] = stage.near.mac;
    let link_local: IpAddr = format!(
        "fe80::{:x}:{:x}:{:x}:{:x}",
        u16::from_be_bytes([a ^ 2, b]),
        u16::from_be_bytes([c, 0xff]),
        u16::from_be_bytes([0xfe, d]),
        u16::from_be_bytes([e, f])
    )
    .parse()
    .unwrap();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        vec![stage.spoofed(&stage.plain, link_local, to, note)]
    });
}

/// Asserts that frames with this source MAC address reach nobody, and that the bridge does not learn it.
#[track_caller]
fn assert_mac_dropped(mac: impl Fn(&Stage) -> frames::Mac) {
    let stage = stage();
    let mac = mac(&stage);
    let learned = || {
        let all = on_node("node1", &["bridge", "fdb", "show", "br", "knit0"]);
        let entries = all.lines().filter(|line| line.starts_with(&frames::show_mac(mac)));
        entries.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let before = learned();
    stage.assert_dropped(&stage.plain, |to, note| {
        let payload = udp(PORT, PORT, note.as_bytes());
        vec![packet((mac, stage.next_hop(to)), (stage.plain.ipv4, to.ipv4), UDP, &payload)]
    });
    assert_eq!(learned(), before, "the bridge's forwarding database");
    stage.assert_connected();
}

#[test]
fn mac_of_a_neighbour() {
    assert_mac_dropped(|stage| stage.near.mac);
}

#[test]
fn mac_of_the_cluster_bridge() {
    assert_mac_dropped(|stage| stage.gateway);
}

#[test]
fn mac_that_is_not_in_use() {
    assert_mac_dropped(|_| frames::parse_mac("02:00:00:66:66:66"));
}

#[test]
fn fragment_with_the_source_of_another_pod() {
    let stage = stage();
    stage.assert_dropped(&stage.plain, |to, note| {
        let source = other(&stage, to).0;
        let payload = [&[0; 8][..], note.as_bytes()].concat();
        let mut fragment = packet((stage.plain.mac, stage.next_hop(to)), (source, to.ipv4), UDP, &payload);
        // The second fragment of a packet: no filter can read its ports. The kernel corrects no checksum.
        fragment[14 + 6..14 + 8].copy_from_slice(&[0, 8]);
        fragment[14 + 10..14 + 12].copy_from_slice(&[0, 0]);
        let sum = frames::header_checksum(&fragment[14..34]);
        fragment[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
        vec![fragment]
    });
}

#[test]
fn vlan_tagged_packet_with_the_source_of_another_pod() {
    let stage = stage();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let (ethertype, bytes) =
            frames::ip((stage.far.ipv4, to.ipv4), UDP, &udp(PORT, PORT, note.as_bytes()));
        let tagged = [&[0, 7][..], &ethertype.to_be_bytes(), &bytes].concat();
        vec![frame(stage.plain.mac, to.mac, 0x8100, &tagged)]
    });
}

#[test]
fn frame_of_another_protocol() {
    let stage = stage();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        [0x88b5, 0x8863, 0x8847]
            .map(|ethertype| frame(stage.plain.mac, to.mac, ethertype, note.as_bytes()))
            .to_vec()
    });
}

#[test]
fn icmp_redirect_with_the_source_of_the_gateway() {
    let stage = stage();
    let gateway = on_node("node1", &["ip", "-4", "-o", "addr", "show", "dev", "knit0"]);
    let (_, rest) = gateway.split_once("inet ").unwrap();
    let gateway: IpAddr = rest.split('/').next().unwrap().parse().unwrap();
    stage.assert_dropped_on_the_bridge(&stage.plain, |to, note| {
        let IpAddr::V4(own) = stage.plain.ipv4 else { unreachable!() };
        let redirect = [&[5, 1, 0, 0][..], &own.octets(), note.as_bytes()].concat();
        vec![packet((stage.plain.mac, to.mac), (gateway, to.ipv4), ICMP, &redirect)]
    });
}
