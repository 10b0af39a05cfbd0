//! Anti-spoofing in the table `bridge knit`: pods on the cluster bridge cannot spoof addresses. All ports share sets, there is never a rule
//! per pod.
//!
//! A frame from a guarded port must have the pod's MAC address and one of the pod's IP addresses: as an IPv4, ARP or IPv6 packet, or as a
//! neighbour advertisement. Router advertisements, redirects, DHCP server messages and other ethertypes are dropped. Unguarded ports are
//! not filtered.
//!
//! On an overlay network the bridge has the same gateway address and MAC address on every node. Frames from that MAC address, and ARP and
//! neighbour discovery for these addresses, never pass a tunnel in either direction.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_engine::packet_filter::{GuardedPort, OverlayPort};
use knit_kernel::nft::{
    BaseChain, Chain, ChainType, DataType, EtherType, Family, Field, Hook, IpFamily, Key, Rule, Set,
    SetContents, Table,
};
use knit_model::Mac;

const PORTS: &str = "guarded_ports";
const MACS: &str = "port_macs";
const CHECK: &str = "anti_spoofing";
const TUNNELS: &str = "overlay_tunnels";
const GATEWAYS: &str = "gateway_macs";
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The table as it should be.
pub(super) fn build(ports: &[GuardedPort], tunnels: &[OverlayPort]) -> Table {
    let mut table = Table::empty(Family::Bridge, "knit");
    let mut incoming = Vec::new();
    if !tunnels.is_empty() {
        table.sets.extend(tunnel_sets(tunnels));
        for (name, link) in [("tunnel_ingress", Field::IifName), ("tunnel_egress", Field::OifName)] {
            table.chains.push(Chain { name, base: None, rules: tunnel_rules(link) });
        }
        incoming.push(Rule::new().in_set(&[Field::IifName], TUNNELS).jump("tunnel_ingress"));
        let outgoing = vec![Rule::new().in_set(&[Field::OifName], TUNNELS).jump("tunnel_egress")];
        table.chains.push(chain("postrouting", Hook::Postrouting, outgoing));
    }
    if !ports.is_empty() {
        table.sets.extend(sets(ports));
        table.chains.push(Chain { name: CHECK, base: None, rules: rules() });
        incoming.push(Rule::new().in_set(&[Field::IifName], PORTS).jump(CHECK));
    }
    if !incoming.is_empty() {
        table.chains.push(chain("prerouting", Hook::Prerouting, incoming));
    }
    table
}

fn chain(name: &'static str, hook: Hook, rules: Vec<Rule>) -> Chain {
    Chain { name, base: Some(BaseChain { chain_type: ChainType::Filter, hook, priority: -300 }), rules }
}

/// The tunnels, and the gateway addresses of the bridge behind each.
fn tunnel_sets(tunnels: &[OverlayPort]) -> Vec<Set> {
    let links = tunnels.iter().map(|tunnel| vec![(&tunnel.link).into()]).collect();
    let macs = tunnels.iter().map(|tunnel| vec![(&tunnel.link).into(), tunnel.mac.into()]).collect();
    let mut sets = vec![
        set(TUNNELS, vec![DataType::Name], links),
        set(GATEWAYS, vec![DataType::Name, DataType::Mac], macs),
    ];
    for version in IpFamily::ALL {
        let addresses = tunnels.iter().flat_map(|tunnel| {
            let its = tunnel.addresses.iter().filter(move |address| IpFamily::of(**address) == version);
            its.map(|address| -> Key { vec![(&tunnel.link).into(), (*address).into()] })
        });
        sets.push(set(gateway_set(version), vec![DataType::Name, version.kind()], addresses.collect()));
    }
    sets
}

fn gateway_set(version: IpFamily) -> &'static str {
    match version {
        IpFamily::V4 => "gateway_addresses4",
        IpFamily::V6 => "gateway_addresses6",
    }
}

/// Frames that must not pass the tunnel, which is the link in this field.
fn tunnel_rules(link: Field) -> Vec<Rule> {
    let (gateways4, gateways6) = (gateway_set(IpFamily::V4), gateway_set(IpFamily::V6));
    let arp = Rule::new().is(Field::EtherType, EtherType::Arp);
    let icmp = Rule::new().is(Field::EtherType, EtherType::Ip(IpFamily::V6)).is(Field::L4Protocol, ICMPV6);
    let about = |kind: u8| icmp.clone().is(Field::IcmpType, kind).in_set(&[link, Field::NdTarget], gateways6);
    vec![
        Rule::new().in_set(&[link, Field::SourceMac], GATEWAYS).drop(),
        arp.clone().in_set(&[link, Field::ArpSenderIp], gateways4).drop(),
        arp.in_set(&[link, Field::ArpTargetIp], gateways4).drop(),
        about(NEIGHBOUR_SOLICITATION).drop(),
        about(NEIGHBOUR_ADVERTISEMENT).drop(),
    ]
}

fn sets(ports: &[GuardedPort]) -> Vec<Set> {
    let links = ports.iter().map(|port| vec![(&port.link).into()]).collect();
    let macs = ports
        .iter()
        .flat_map(|port| port.macs.iter().map(|mac| -> Key { vec![(&port.link).into(), (*mac).into()] }));
    let mut sets = vec![
        set(PORTS, vec![DataType::Name], links),
        set(MACS, vec![DataType::Name, DataType::Mac], macs.collect()),
    ];
    for version in IpFamily::ALL {
        let keys = ports.iter().flat_map(|port| address_keys(port, version)).collect();
        sets.push(set(address_set(version), vec![DataType::Name, DataType::Mac, version.kind()], keys));
    }
    sets
}

fn set(name: &str, key: Vec<DataType>, keys: Vec<Key>) -> Set {
    Set { name: name.to_owned(), key, contents: SetContents::Keys(keys) }
}

fn address_set(version: IpFamily) -> &'static str {
    match version {
        IpFamily::V4 => "port_addresses4",
        IpFamily::V6 => "port_addresses6",
    }
}

/// Each MAC address of a port with each address of the pod, and with its link-local address.
fn address_keys(port: &GuardedPort, version: IpFamily) -> impl Iterator<Item = Key> {
    port.macs.iter().flat_map(move |mac| {
        let given = port.addresses.iter().copied();
        let all = given.chain([IpAddr::V6(link_local(*mac))]);
        let fitting = all.filter(move |address| IpFamily::of(*address) == version);
        fitting.map(move |address| vec![(&port.link).into(), (*mac).into(), address.into()])
    })
}

/// The EUI-64 link-local address of an interface (RFC 4291, appendix A).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
}

fn rules() -> Vec<Rule> {
    let of = |frame: EtherType| Rule::new().is(Field::EtherType, frame);
    let (ipv4, ipv6) = (of(EtherType::Ip(IpFamily::V4)), of(EtherType::Ip(IpFamily::V6)));
    let (own4, own6) = (address_set(IpFamily::V4), address_set(IpFamily::V6));
    let arp = of(EtherType::Arp);
    let icmp = || ipv6.clone().is(Field::L4Protocol, ICMPV6);
    vec![
        ipv4.clone().is(Field::L4Protocol, UDP).is(Field::SourcePort, DHCP_SERVER).drop(),
        ipv4.in_set(&[Field::IifName, Field::SourceMac, Field::Source(IpFamily::V4)], own4).accept(),
        arp.clone()
            .in_set(&[Field::IifName, Field::SourceMac, Field::ArpSenderIp], own4)
            .in_set(&[Field::IifName, Field::ArpSenderMac, Field::ArpSenderIp], own4)
            .accept(),
        // ARP probes have the source address 0.0.0.0.
        arp.is(Field::ArpSenderIp, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .in_set(&[Field::IifName, Field::SourceMac], MACS)
            .in_set(&[Field::IifName, Field::ArpSenderMac], MACS)
            .accept(),
        ipv6.clone().is(Field::L4Protocol, UDP).is(Field::SourcePort, DHCPV6_SERVER).drop(),
        icmp().is(Field::IcmpType, ROUTER_ADVERTISEMENT).drop(),
        icmp().is(Field::IcmpType, REDIRECT).drop(),
        icmp()
            .is(Field::IcmpType, NEIGHBOUR_ADVERTISEMENT)
            .not_in_set(&[Field::IifName, Field::SourceMac, Field::NdTarget], own6)
            .drop(),
        ipv6.clone().in_set(&[Field::IifName, Field::SourceMac, Field::Source(IpFamily::V6)], own6).accept(),
        icmp()
            .is(Field::Source(IpFamily::V6), IpAddr::V6(Ipv6Addr::UNSPECIFIED))
            .in_set(&[Field::IifName, Field::SourceMac], MACS)
            .accept(),
        Rule::new().drop(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(link: &str, mac: &str, addresses: &[&str]) -> GuardedPort {
        GuardedPort {
            link: link.parse().unwrap(),
            macs: [mac.parse().unwrap()].into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            fast_path: true,
        }
    }

    fn keys<'a>(table: &'a Table, name: &str) -> &'a [Key] {
        let set = table.sets.iter().find(|set| set.name == name).unwrap();
        let SetContents::Keys(keys) = &set.contents else { panic!("{set:?}") };
        keys
    }

    #[test]
    fn ports_add_set_elements_but_no_rules() {
        let one = port("h1", "02:00:00:00:00:01", &["10.75.0.2", "fd75::2"]);
        let two = port("h2", "02:00:00:00:00:02", &["10.75.0.3"]);
        let (few, many) = (build(std::slice::from_ref(&one), &[]), build(&[one, two], &[]));
        assert_eq!(few.chains, many.chains);
        assert_eq!((keys(&few, "port_addresses4").len(), keys(&many, "port_addresses4").len()), (1, 2));
        // The leased address and the link-local address.
        assert_eq!((keys(&few, "port_addresses6").len(), keys(&many, "port_addresses6").len()), (2, 3));
        assert!(build(&[], &[]).is_empty());
    }

    #[test]
    fn gateway_addresses_are_one_element_per_tunnel() {
        let tunnel = |link: &str, addresses: &[&str]| OverlayPort {
            link: link.parse().unwrap(),
            mac: "02:00:00:00:00:07".parse().unwrap(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let one = build(&[], &[tunnel("knvx1", &["10.1.0.1", "fd01::1"])]);
        let two = build(&[], &[tunnel("knvx1", &["10.1.0.1", "fd01::1"]), tunnel("knvx2", &["10.1.0.1"])]);
        assert_eq!(one.chains, two.chains);
        assert_eq!((keys(&one, "overlay_tunnels").len(), keys(&two, "overlay_tunnels").len()), (1, 2));
        assert_eq!((keys(&two, "gateway_addresses4").len(), keys(&two, "gateway_addresses6").len()), (2, 1));
        let ports = [port("h1", "02:00:00:00:00:01", &["10.75.0.2"])];
        let both = build(&ports, &[tunnel("knvx1", &["10.1.0.1"])]);
        let prerouting = both.chains.iter().find(|chain| chain.name == "prerouting").unwrap();
        assert_eq!(prerouting.rules.len(), 2, "both jump rules exist");
    }

    #[test]
    fn a_link_local_address_is_derived_from_the_mac_address() {
        let mac: Mac = "02:00:5e:00:53:01".parse().unwrap();
        assert_eq!(link_local(mac).to_string(), "fe80::5eff:fe00:5301");
    }
}
