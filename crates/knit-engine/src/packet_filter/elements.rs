//! Elements of the tables' sets and maps: what each port, host port, tunnel and pod address adds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::filter::field::{IpFamily, Value};
use knit_model::filter::{ElementData, ElementKey, KeyPart, TableFamily, outermost};
use knit_model::{IfName, Mac};

use super::tables::{
    CLIENT_PORTS, EGRESS_BLOCKED, EGRESS_SNAT, EGRESS_SNAT_PODS, GATEWAY_ADDRESSES, GATEWAY_MACS,
    GUARDED_PORTS, HOST_PORT_PODS, HOST_PORTS, HOST_PORTS_AT, KEEP_SOURCE, L2_PORTS, MASQUERADED_PODS,
    OVERLAY_TUNNELS, PORT_ADDRESSES, PORT_MACS, egress_pods,
};
use super::{GuardedPort, HostPortMapping};
use crate::egress::EgressPath;
use crate::overlay::OverlayTunnel;
use crate::unit_state::Source;

/// An element with its data.
pub(super) type Element = (ElementKey, ElementData);

fn inet(set: String, key: Vec<KeyPart>, data: ElementData) -> Element {
    (TableFamily::Inet.table().element(set, key), data)
}

fn on_bridges(set: impl Into<String>, key: Vec<KeyPart>) -> Element {
    (TableFamily::Bridge.table().element(set, key), ElementData::Key)
}

/// The elements of a guarded port: each MAC address with each address of the pod, and with its link-local address.
pub(super) fn of_port(port: &GuardedPort) -> Vec<Element> {
    let mut all = vec![(guarded_port(&port.link), ElementData::Key)];
    if !port.may_serve {
        all.push(on_bridges(CLIENT_PORTS, vec![(&port.link).into()]));
    }
    for mac in &port.macs {
        let key = || vec![KeyPart::from(&port.link), (*mac).into()];
        if port.only_macs {
            all.push(on_bridges(L2_PORTS, key()));
            continue;
        }
        all.push(on_bridges(PORT_MACS, key()));
        for address in port.addresses.iter().copied().chain([IpAddr::V6(link_local(*mac))]) {
            let mut key = key();
            key.push(address.into());
            all.push(on_bridges(IpFamily::of(address).suffixed(PORT_ADDRESSES), key));
        }
    }
    all
}

/// The port that the elements of a unit describe, if it is guarded.
pub(super) fn port_of(filter: &BTreeMap<ElementKey, ElementData>, link: &IfName) -> Option<GuardedPort> {
    if !filter.contains_key(&guarded_port(link)) {
        return None;
    }
    let mut port = GuardedPort {
        link: link.clone(),
        macs: BTreeSet::new(),
        addresses: BTreeSet::new(),
        only_macs: false,
        may_serve: false,
        fast_path: false,
    };
    for source in sources_of(filter, link) {
        match source {
            Source::Mac(mac) => port.macs.insert(mac),
            Source::Address(address) => port.addresses.insert(address),
        };
    }
    let is_link_local = |address: &IpAddr| port.macs.iter().any(|mac| *address == link_local(*mac));
    port.addresses.retain(|address| !is_link_local(address));
    let is_l2 = |mac: &Mac| filter.contains_key(&on_bridges(L2_PORTS, vec![link.into(), (*mac).into()]).0);
    port.only_macs = port.macs.iter().any(is_l2);
    Some(port)
}

/// The source addresses that the elements of a unit allow on a port.
pub(super) fn sources_of<'a>(
    filter: &'a BTreeMap<ElementKey, ElementData>,
    link: &'a IfName,
) -> impl Iterator<Item = Source> + 'a {
    let is_of_port = |key: &&ElementKey| {
        let is_source = key.set == PORT_MACS || key.set == L2_PORTS || key.set.starts_with(PORT_ADDRESSES);
        is_source && key.table.family == TableFamily::Bridge
    };
    filter.keys().filter(is_of_port).filter_map(move |key| match &key.key[..] {
        [KeyPart::One(Value::Name(name)), .., KeyPart::One(Value::Mac(mac))] if name == link => {
            Some(Source::Mac(*mac))
        }
        [KeyPart::One(Value::Name(name)), .., KeyPart::One(Value::Address(address))] if name == link => {
            Some(Source::Address(*address))
        }
        _ => None,
    })
}

/// The element that turns on anti-spoofing on a port.
pub(super) fn guarded_port(link: &IfName) -> ElementKey {
    TableFamily::Bridge.table().element(GUARDED_PORTS, vec![link.into()])
}

/// The EUI-64 link-local address of an interface (RFC 4291, appendix A).
pub(super) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.bytes();
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
}

/// The elements of an overlay tunnel: it, and the gateway addresses of the bridge behind it.
pub(crate) fn of_tunnel(tunnel: &OverlayTunnel) -> Vec<Element> {
    let link = || KeyPart::from(&tunnel.link);
    let mut all = vec![
        on_bridges(OVERLAY_TUNNELS, vec![link()]),
        on_bridges(GATEWAY_MACS, vec![link(), tunnel.mac.into()]),
    ];
    for address in &tunnel.gateway_addresses {
        let set = IpFamily::of(*address).suffixed(GATEWAY_ADDRESSES);
        all.push(on_bridges(set, vec![link(), (*address).into()]));
    }
    all
}

/// The elements of host ports. Of several addresses of a pod the first counts.
pub(super) fn of_host_ports(forwards: &BTreeSet<HostPortMapping>, with_bridge: bool) -> Vec<Element> {
    let mut all = Vec::new();
    let mut taken = BTreeSet::new();
    for forward in forwards {
        let family = IpFamily::of(forward.to);
        let protocol = protocol_number(forward);
        if with_bridge {
            let key = vec![protocol.into(), forward.to.into(), forward.port.into()];
            all.push(inet(family.suffixed(HOST_PORT_PODS), key, ElementData::Key));
        }
        if !taken.insert((family, forward.host_ip, protocol, forward.host_port)) {
            continue;
        }
        let set = if forward.host_ip.is_some() { HOST_PORTS_AT } else { HOST_PORTS };
        let at = forward.host_ip.map(KeyPart::from).into_iter();
        let key = at.chain([protocol.into(), forward.host_port.into()]).collect();
        let to: Vec<Value> = vec![forward.to.into(), forward.port.into()];
        all.push(inet(family.suffixed(set), key, ElementData::Values(to)));
    }
    all
}

/// The IP protocol number. Only these three protocols are accepted.
fn protocol_number(forward: &HostPortMapping) -> u8 {
    match forward.protocol.as_str() {
        "udp" => 17,
        "sctp" => 132,
        _ => 6,
    }
}

/// The elements of a pod address with an explicit masquerade option.
pub(super) fn of_masquerade_option(address: IpAddr, is_masqueraded: bool) -> Element {
    let set = if is_masqueraded { MASQUERADED_PODS } else { KEEP_SOURCE };
    inet(IpFamily::of(address).suffixed(set), vec![address.into()], ElementData::Key)
}

/// The elements of a pod address whose egress uses a gateway.
pub(super) fn of_egress(address: IpAddr, path: &EgressPath) -> Vec<Element> {
    let family = IpFamily::of(address);
    let key = || vec![address.into()];
    match path {
        EgressPath::Local(to) => vec![
            inet(family.suffixed(EGRESS_SNAT), key(), ElementData::Values(vec![(*to).into()])),
            inet(family.suffixed(EGRESS_SNAT_PODS), key(), ElementData::Key),
        ],
        EgressPath::ViaNode { mark, .. } => vec![inet(egress_pods(family, *mark), key(), ElementData::Key)],
        EgressPath::Blocked => vec![inet(family.suffixed(EGRESS_BLOCKED), key(), ElementData::Key)],
    }
}

/// The elements of a set of ranges for both families.
pub(super) fn of_ranges(set: &str, ranges: &[IpNet]) -> Vec<Element> {
    ranges_of(|family| family.suffixed(set), ranges)
}

/// The ranges of the cluster's pods, for Services.
pub(super) fn of_service_pods(ranges: &[IpNet]) -> Vec<Element> {
    ranges_of(knit_service::pod_set, ranges)
}

fn ranges_of(set: impl Fn(IpFamily) -> String, ranges: &[IpNet]) -> Vec<Element> {
    let element =
        |range: IpNet| inet(set(IpFamily::of(range.addr())), vec![KeyPart::range(range)], ElementData::Key);
    outermost(ranges.iter().copied()).into_iter().map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(addresses: &[&str]) -> GuardedPort {
        GuardedPort {
            link: "h1".parse().unwrap(),
            macs: ["02:00:5e:00:53:01".parse().unwrap()].into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            only_macs: addresses.is_empty(),
            may_serve: addresses.is_empty(),
            fast_path: true,
        }
    }

    fn texts(elements: &[Element]) -> Vec<String> {
        elements.iter().map(|(key, data)| format!("{key}{data}")).collect()
    }

    #[test]
    fn a_port_may_use_its_addresses_and_its_link_local_address() {
        assert_eq!(
            texts(&of_port(&port(&["10.75.0.2", "fd75::2"]))),
            [
                "bridge knit @guarded_ports { h1 }",
                "bridge knit @client_ports { h1 }",
                "bridge knit @port_macs { h1 . 02:00:5e:00:53:01 }",
                "bridge knit @port_addresses4 { h1 . 02:00:5e:00:53:01 . 10.75.0.2 }",
                "bridge knit @port_addresses6 { h1 . 02:00:5e:00:53:01 . fd75::2 }",
                "bridge knit @port_addresses6 { h1 . 02:00:5e:00:53:01 . fe80::5eff:fe00:5301 }",
            ]
        );
        // Without addresses, only its MAC address is checked.
        assert_eq!(
            texts(&of_port(&port(&[]))),
            ["bridge knit @guarded_ports { h1 }", "bridge knit @l2_ports { h1 . 02:00:5e:00:53:01 }"]
        );
    }

    #[test]
    fn a_host_port_maps_to_one_address_per_family() {
        let forward = |host_ip: Option<&str>, to: &str| HostPortMapping {
            protocol: "tcp".to_owned(),
            host_ip: host_ip.map(|text| text.parse().unwrap()),
            host_port: 8080,
            to: to.parse().unwrap(),
            port: 80,
        };
        let forwards = [
            forward(None, "10.75.0.2"),
            forward(None, "10.75.0.9"),
            forward(None, "fd75::2"),
            forward(Some("192.0.2.1"), "10.75.0.2"),
        ];
        assert_eq!(
            texts(&of_host_ports(&forwards.into(), false)),
            [
                "inet knit @host_ports4 { 6 . 8080 } : 10.75.0.2 . 80",
                "inet knit @host_ports6 { 6 . 8080 } : fd75::2 . 80",
                "inet knit @host_ports_at4 { 192.0.2.1 . 6 . 8080 } : 10.75.0.2 . 80",
            ]
        );
    }

    #[test]
    fn ranges_within_others_are_left_out() {
        let ranges: Vec<IpNet> =
            ["10.1.2.0/24", "10.1.0.0/16", "fd00::/8"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(
            texts(&of_ranges("r", &ranges)),
            ["inet knit @r4 { 10.1.0.0/16 }", "inet knit @r6 { fd00::/8 }"]
        );
    }
}
