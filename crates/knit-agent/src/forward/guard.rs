//! The table `bridge knit`: pods of the cluster's bridge can say nothing in the name of others. Sets for all ports, never a rule
//! per pod.
//!
//! What comes in by a guarded port has to come from the pod's own hardware address and be of one of its own addresses: as an
//! IPv4 packet, as an ARP packet, as an IPv6 packet, as an advertisement of a neighbour. What only routers and DHCP servers say
//! is dropped, as is every other kind of frame. Ports that are not guarded are not looked at.
//!
//! Of a bridge that is one on all nodes, the first address of each range is the bridge's on every node, with one hardware address:
//! what is said from that, and what asks or answers who has such an address, goes through no tunnel, neither way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_engine::forward::{Gate, Port};
use knit_kernel::nft::{
    Chain, ChainKind, Contents, Entry, Family, Field, Frame, Hook, Ip, Key, Kind, Rule, Set, Table,
};
use knit_model::Mac;

const PORTS: &str = "ports";
const MACS: &str = "macs";
const CHECK: &str = "check";
const TUNNELS: &str = "tunnels";
const GATEWAYS: &str = "gateways";
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The table as it should be.
pub(super) fn of(ports: &[Port], gates: &[Gate]) -> Table {
    let mut table = Table::none(Family::Bridge, "knit");
    let mut incoming = Vec::new();
    if !gates.is_empty() {
        table.sets.extend(gate_sets(gates));
        for (name, link) in [("arriving", Field::InName), ("leaving", Field::OutName)] {
            table.chains.push(Chain { name, entry: None, rules: gate_rules(link) });
        }
        incoming.push(Rule::new().found(&[Field::InName], TUNNELS).jump("arriving"));
        let outgoing = vec![Rule::new().found(&[Field::OutName], TUNNELS).jump("leaving")];
        table.chains.push(chain("outgoing", Hook::Postrouting, outgoing));
    }
    if !ports.is_empty() {
        table.sets.extend(sets(ports));
        table.chains.push(Chain { name: CHECK, entry: None, rules: rules() });
        incoming.push(Rule::new().found(&[Field::InName], PORTS).jump(CHECK));
    }
    if !incoming.is_empty() {
        table.chains.push(chain("incoming", Hook::Prerouting, incoming));
    }
    table
}

fn chain(name: &'static str, hook: Hook, rules: Vec<Rule>) -> Chain {
    Chain { name, entry: Some(Entry { kind: ChainKind::Filter, hook, priority: -300 }), rules }
}

/// The tunnels, and what is the bridge's own for each of them.
fn gate_sets(gates: &[Gate]) -> Vec<Set> {
    let links = gates.iter().map(|gate| vec![(&gate.link).into()]).collect();
    let macs = gates.iter().map(|gate| vec![(&gate.link).into(), gate.mac.into()]).collect();
    let mut sets =
        vec![set(TUNNELS, vec![Kind::Name], links), set(GATEWAYS, vec![Kind::Name, Kind::Mac], macs)];
    for version in Ip::ALL {
        let addresses = gates.iter().flat_map(|gate| {
            let its = gate.addresses.iter().filter(move |address| Ip::of(**address) == version);
            its.map(|address| -> Key { vec![(&gate.link).into(), (*address).into()] })
        });
        sets.push(set(gateway_set(version), vec![Kind::Name, version.kind()], addresses.collect()));
    }
    sets
}

fn gateway_set(version: Ip) -> &'static str {
    match version {
        Ip::V4 => "gateways4",
        Ip::V6 => "gateways6",
    }
}

/// What goes through no tunnel, which is the link in this field.
fn gate_rules(link: Field) -> Vec<Rule> {
    let (gateways4, gateways6) = (gateway_set(Ip::V4), gateway_set(Ip::V6));
    let arp = Rule::new().is(Field::Frame, Frame::Arp);
    let icmp = Rule::new().is(Field::Frame, Frame::Ip(Ip::V6)).is(Field::Protocol, ICMPV6);
    let about =
        |kind: u8| icmp.clone().is(Field::IcmpType, kind).found(&[link, Field::IcmpTarget], gateways6);
    vec![
        Rule::new().found(&[link, Field::Mac], GATEWAYS).drop(),
        arp.clone().found(&[link, Field::ArpSource], gateways4).drop(),
        arp.found(&[link, Field::ArpTarget], gateways4).drop(),
        about(NEIGHBOUR_SOLICITATION).drop(),
        about(NEIGHBOUR_ADVERTISEMENT).drop(),
    ]
}

fn sets(ports: &[Port]) -> Vec<Set> {
    let links = ports.iter().map(|port| vec![(&port.link).into()]).collect();
    let macs = ports
        .iter()
        .flat_map(|port| port.macs.iter().map(|mac| -> Key { vec![(&port.link).into(), (*mac).into()] }));
    let mut sets =
        vec![set(PORTS, vec![Kind::Name], links), set(MACS, vec![Kind::Name, Kind::Mac], macs.collect())];
    for version in Ip::ALL {
        let keys = ports.iter().flat_map(|port| own(port, version)).collect();
        sets.push(set(own_set(version), vec![Kind::Name, Kind::Mac, version.kind()], keys));
    }
    sets
}

fn set(name: &str, key: Vec<Kind>, keys: Vec<Key>) -> Set {
    Set { name: name.to_owned(), key, contents: Contents::Keys(keys) }
}

fn own_set(version: Ip) -> &'static str {
    match version {
        Ip::V4 => "own4",
        Ip::V6 => "own6",
    }
}

/// Each hardware address of a port with each address of the pod, and with the link-local address that follows from it.
fn own(port: &Port, version: Ip) -> impl Iterator<Item = Key> {
    port.macs.iter().flat_map(move |mac| {
        let given = port.addresses.iter().copied();
        let all = given.chain([IpAddr::V6(link_local(*mac))]);
        let fitting = all.filter(move |address| Ip::of(*address) == version);
        fitting.map(move |address| vec![(&port.link).into(), (*mac).into(), address.into()])
    })
}

/// The address that an interface gives itself (RFC 4291, appendix A).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
}

fn rules() -> Vec<Rule> {
    let of = |frame: Frame| Rule::new().is(Field::Frame, frame);
    let (ipv4, ipv6) = (of(Frame::Ip(Ip::V4)), of(Frame::Ip(Ip::V6)));
    let (own4, own6) = (own_set(Ip::V4), own_set(Ip::V6));
    let arp = of(Frame::Arp);
    let icmp = || ipv6.clone().is(Field::Protocol, ICMPV6);
    vec![
        ipv4.clone().is(Field::Protocol, UDP).is(Field::SourcePort, DHCP_SERVER).drop(),
        ipv4.found(&[Field::InName, Field::Mac, Field::Source(Ip::V4)], own4).accept(),
        arp.clone()
            .found(&[Field::InName, Field::Mac, Field::ArpSource], own4)
            .found(&[Field::InName, Field::ArpMac, Field::ArpSource], own4)
            .accept(),
        // Whether somebody has an address is asked in nobody's name.
        arp.is(Field::ArpSource, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .found(&[Field::InName, Field::Mac], MACS)
            .found(&[Field::InName, Field::ArpMac], MACS)
            .accept(),
        ipv6.clone().is(Field::Protocol, UDP).is(Field::SourcePort, DHCPV6_SERVER).drop(),
        icmp().is(Field::IcmpType, ROUTER_ADVERTISEMENT).drop(),
        icmp().is(Field::IcmpType, REDIRECT).drop(),
        icmp()
            .is(Field::IcmpType, NEIGHBOUR_ADVERTISEMENT)
            .not_found(&[Field::InName, Field::Mac, Field::IcmpTarget], own6)
            .drop(),
        ipv6.clone().found(&[Field::InName, Field::Mac, Field::Source(Ip::V6)], own6).accept(),
        icmp()
            .is(Field::Source(Ip::V6), IpAddr::V6(Ipv6Addr::UNSPECIFIED))
            .found(&[Field::InName, Field::Mac], MACS)
            .accept(),
        Rule::new().drop(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(link: &str, mac: &str, addresses: &[&str]) -> Port {
        Port {
            link: link.parse().unwrap(),
            macs: [mac.parse().unwrap()].into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            direct: true,
        }
    }

    fn keys<'a>(table: &'a Table, name: &str) -> &'a [Key] {
        let set = table.sets.iter().find(|set| set.name == name).unwrap();
        let Contents::Keys(keys) = &set.contents else { panic!("{set:?}") };
        keys
    }

    #[test]
    fn more_ports_are_more_elements_and_no_more_rules() {
        let one = port("h1", "02:00:00:00:00:01", &["10.75.0.2", "fd75::2"]);
        let two = port("h2", "02:00:00:00:00:02", &["10.75.0.3"]);
        let (few, many) = (of(std::slice::from_ref(&one), &[]), of(&[one, two], &[]));
        assert_eq!(few.chains, many.chains);
        assert_eq!((keys(&few, "own4").len(), keys(&many, "own4").len()), (1, 2));
        // Its own, and the one that it gives itself.
        assert_eq!((keys(&few, "own6").len(), keys(&many, "own6").len()), (2, 3));
        assert!(of(&[], &[]).is_none());
    }

    #[test]
    fn what_is_the_bridges_own_is_an_element_for_each_tunnel() {
        let gate = |link: &str, addresses: &[&str]| Gate {
            link: link.parse().unwrap(),
            mac: "02:00:00:00:00:07".parse().unwrap(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let one = of(&[], &[gate("knvx1", &["10.1.0.1", "fd01::1"])]);
        let two = of(&[], &[gate("knvx1", &["10.1.0.1", "fd01::1"]), gate("knvx2", &["10.1.0.1"])]);
        assert_eq!(one.chains, two.chains);
        assert_eq!((keys(&one, "tunnels").len(), keys(&two, "tunnels").len()), (1, 2));
        assert_eq!((keys(&two, "gateways4").len(), keys(&two, "gateways6").len()), (2, 1));
        let ports = [port("h1", "02:00:00:00:00:01", &["10.75.0.2"])];
        let both = of(&ports, &[gate("knvx1", &["10.1.0.1"])]);
        let incoming = both.chains.iter().find(|chain| chain.name == "incoming").unwrap();
        assert_eq!(incoming.rules.len(), 2, "neither takes the other's place");
    }

    #[test]
    fn a_link_local_address_follows_from_the_hardware_address() {
        let mac: Mac = "02:00:5e:00:53:01".parse().unwrap();
        assert_eq!(link_local(mac).to_string(), "fe80::5eff:fe00:5301");
    }
}
