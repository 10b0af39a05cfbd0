//! The table `bridge knit`: pods of the cluster's bridge can say nothing in the name of others. Sets for all ports, never a rule
//! per pod.
//!
//! What comes in by a guarded port has to come from the pod's own hardware address and be of one of its own addresses: as an
//! IPv4 packet, as an ARP packet, as an IPv6 packet, as an advertisement of a neighbour. What only routers and DHCP servers say
//! is dropped, as is every other kind of frame. Ports that are not guarded are not looked at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_engine::forward::Port;
use knit_kernel::nft::{
    Chain, ChainKind, Contents, Entry, Family, Field, Frame, Hook, Ip, Key, Kind, Rule, Set, Table,
};
use knit_model::Mac;

const PORTS: &str = "ports";
const MACS: &str = "macs";
const CHECK: &str = "check";
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The table as it should be.
pub(super) fn of(ports: &[Port]) -> Table {
    if ports.is_empty() {
        return Table::none(Family::Bridge, "knit");
    }
    let entry = Some(Entry { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: -300 });
    let incoming = vec![Rule::new().found(&[Field::InName], PORTS).jump(CHECK)];
    Table {
        family: Family::Bridge,
        name: "knit",
        sets: sets(ports),
        chains: vec![
            Chain { name: "incoming", entry, rules: incoming },
            Chain { name: CHECK, entry: None, rules: rules() },
        ],
    }
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
        let (few, many) = (of(std::slice::from_ref(&one)), of(&[one, two]));
        assert_eq!(few.chains, many.chains);
        assert_eq!((keys(&few, "own4").len(), keys(&many, "own4").len()), (1, 2));
        // Its own, and the one that it gives itself.
        assert_eq!((keys(&few, "own6").len(), keys(&many, "own6").len()), (2, 3));
        assert!(of(&[]).is_none());
    }

    #[test]
    fn a_link_local_address_follows_from_the_hardware_address() {
        let mac: Mac = "02:00:5e:00:53:01".parse().unwrap();
        assert_eq!(link_local(mac).to_string(), "fe80::5eff:fe00:5301");
    }
}
