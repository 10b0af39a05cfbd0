//! The structure of Knit's tables on the host. It follows from the features in use and never from pods, which are elements
//! of its sets and maps.
//!
//! - `inet knit`: masquerading, SNAT of egress gateways, host ports (DNAT), who may send to the tunnel ports, and network
//!   policies.
//! - `bridge knit`: anti-spoofing on the ports of pods, and isolation of gateway addresses on overlay tunnels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::filter::field::{DataType, EtherType, Field, IpFamily};
use knit_model::filter::rule::FilterRule;
use knit_model::filter::{
    BaseChain, ChainType, FilterChain, FilterSet, FilterTable, Hook, TableFamily, TableKey, multicast,
};
use knit_model::{IfName, kernel_ids};
use knit_policy::PolicyTables;
use knit_service::BackendChain;
use serde::{Deserialize, Serialize};

pub(super) const GUARDED_PORTS: &str = "guarded_ports";
pub(super) const PORT_MACS: &str = "port_macs";
pub(super) const PORT_ADDRESSES: &str = "port_addresses";
pub(super) const L2_PORTS: &str = "l2_ports";
pub(super) const CLIENT_PORTS: &str = "client_ports";
pub(super) const OVERLAY_TUNNELS: &str = "overlay_tunnels";
pub(super) const GATEWAY_MACS: &str = "gateway_macs";
pub(super) const GATEWAY_ADDRESSES: &str = "gateway_addresses";
pub(super) const POD_RANGES: &str = "pod_ranges";
pub(super) const NO_MASQUERADE: &str = "no_masquerade";
pub(super) const MASQUERADED_PODS: &str = "masqueraded_pods";
pub(super) const KEEP_SOURCE: &str = "keep_source";
pub(super) const HOST_PORTS: &str = "host_ports";
pub(super) const HOST_PORTS_AT: &str = "host_ports_at";
pub(super) const HOST_PORT_PODS: &str = "host_port_pods";
pub(super) const EGRESS_BLOCKED: &str = "egress_blocked";
pub(super) const EGRESS_SNAT: &str = "egress_snat";
pub(super) const EGRESS_SNAT_PODS: &str = "egress_snat_pods";
pub(super) const EGRESS_PODS: &str = "egress_pods";
pub(super) const TUNNEL_PEERS: &str = "tunnel_peers";

const ANTI_SPOOFING: &str = "anti_spoofing";
/// Before connection tracking and every other program's chains.
const FIRST: i32 = -300;
const DNAT: i32 = -100;
/// After DNAT of Services, before the routing decision.
const AFTER_DNAT: i32 = -90;
const SNAT: i32 = 100;
const AFTER_SNAT: i32 = 110;

const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_SERVER: u16 = 547;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The features in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Features {
    /// The bridge of the cluster network, if there is one: mapped connections from the node's loopback leave through it.
    pub(crate) bridge: Option<IfName>,
    /// Ports with anti-spoofing.
    pub(crate) guarded_ports: bool,
    /// Overlay tunnels that are bridge ports.
    pub(crate) overlay: bool,
    /// Masquerading of pods.
    pub(crate) masquerade: bool,
    /// Host ports.
    pub(crate) host_ports: bool,
    /// Egress gateways.
    pub(crate) egress: Option<BTreeSet<EgressNextHop>>,
    /// UDP ports of tunnels between nodes.
    #[serde(default)]
    pub(crate) tunnel_ports: BTreeSet<u16>,
    /// Network policies.
    #[serde(default)]
    pub(crate) policies: bool,
    /// Services: the chains that choose a backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) services: Option<BTreeSet<BackendChain>>,
}

/// Egress of local pods through another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct EgressNextHop {
    /// The mark of the packets.
    pub(crate) mark: u32,
    /// The next hop to the gateway node, the only one allowed.
    pub(crate) via: IpAddr,
}

impl Features {
    /// Whether the sets of all units but that of Services are the same.
    pub(super) fn has_same_structure(&self, other: &Self) -> bool {
        let Self {
            bridge,
            guarded_ports,
            overlay,
            masquerade,
            host_ports,
            egress,
            tunnel_ports,
            policies,
            services: _,
        } = self;
        let on_bridges = (*guarded_ports, *overlay) == (other.guarded_ports, other.overlay);
        let nat = (*masquerade, *host_ports, egress) == (other.masquerade, other.host_ports, &other.egress);
        let filters = (tunnel_ports, *policies) == (&other.tunnel_ports, other.policies);
        *bridge == other.bridge && on_bridges && nat && filters
    }

    /// Whether no table is needed.
    pub(crate) fn is_unused(&self) -> bool {
        let on_bridges = self.guarded_ports || self.overlay;
        let nat = self.masquerade || self.host_ports || self.egress.is_some();
        let compiled = self.policies || self.services.is_some();
        !on_bridges && !nat && self.tunnel_ports.is_empty() && !compiled
    }
}

/// The set of the local pods whose packets have this mark.
pub(super) fn egress_pods(family: IpFamily, mark: u32) -> String {
    format!("{}_{}", family.suffixed(EGRESS_PODS), mark >> kernel_ids::EGRESS_MARK_SHIFT)
}

/// The tables; those without contents are left out.
pub(crate) fn tables(features: &Features) -> BTreeMap<TableKey, FilterTable> {
    let tables = [(TableFamily::Inet, inet(features)), (TableFamily::Bridge, bridge(features))];
    let used = tables.into_iter().filter(|(_, table)| !table.chains.is_empty());
    used.map(|(family, table)| (family.table(), table)).collect()
}

fn inet(features: &Features) -> FilterTable {
    let mut table = FilterTable::default();
    let mut snat = Vec::new();
    if let Some(next_hops) = &features.egress {
        snat.extend(egress(&mut table, features.bridge.as_ref(), next_hops));
    }
    if features.masquerade {
        snat.extend(masquerade(&mut table, features.bridge.as_ref()));
    }
    if !snat.is_empty() {
        table.chains.insert("snat".to_owned(), base(ChainType::Nat, Hook::Postrouting, SNAT, snat));
    }
    if features.host_ports {
        host_ports(&mut table, features.bridge.as_ref(), features.services.is_some());
    }
    if !features.tunnel_ports.is_empty() {
        tunnel_guard(&mut table, &features.tunnel_ports);
    }
    if features.policies {
        knit_policy::dispatch(&mut table, &PolicyTables::default());
    }
    if let Some(chains) = &features.services {
        knit_service::dispatch(&mut table, chains);
    }
    table
}

/// Tunnels between nodes accept packets only from nodes, on the link that leads to them: VXLAN does not authenticate, and
/// whoever can send to its port could send into every network. Pods cannot reach the ports of other nodes either, where
/// their packets may arrive with the address of this node (masquerading).
fn tunnel_guard(table: &mut FilterTable, ports: &BTreeSet<u16>) {
    let (mut incoming, mut forwarded) = (Vec::new(), Vec::new());
    for family in IpFamily::ALL {
        let peers = family.suffixed(TUNNEL_PEERS);
        for port in ports {
            let to_port = || {
                let rule = FilterRule::new().family(family).is(Field::L4Protocol, UDP);
                rule.is(Field::DestinationPort, *port)
            };
            incoming.push(to_port().not_in_set(&[Field::Source(family)], &peers).drop());
            incoming.push(to_port().is(Field::FibReversePath, 0u32).drop());
            forwarded.push(to_port().in_set(&[Field::Destination(family)], &peers).drop());
        }
        table.sets.insert(peers, FilterSet::ranges(family));
    }
    for (name, hook, rules) in
        [("tunnel_input", Hook::Input, incoming), ("tunnel_forward", Hook::Forward, forwarded)]
    {
        table.chains.insert(name.to_owned(), base(ChainType::Filter, hook, FIRST, rules));
    }
}

fn base(chain_type: ChainType, hook: Hook, priority: i32, rules: Vec<FilterRule>) -> FilterChain {
    FilterChain { base: Some(BaseChain { chain_type, hook, priority }), rules }
}

/// Packets that do not stay on the bridge.
fn off_bridge(bridge: Option<&IfName>) -> FilterRule {
    bridge.map_or_else(FilterRule::new, |bridge| FilterRule::new().is_not(Field::OifName, bridge))
}

fn add_no_masquerade(table: &mut FilterTable, family: IpFamily) -> String {
    let name = family.suffixed(NO_MASQUERADE);
    table.sets.insert(name.clone(), FilterSet::ranges(family));
    name
}

/// Masquerades packets from pods to destinations outside the cluster.
fn masquerade(table: &mut FilterTable, bridge: Option<&IfName>) -> Vec<FilterRule> {
    let mut rules = Vec::new();
    for family in IpFamily::ALL {
        let (source, destination) = (Field::Source(family), Field::Destination(family));
        let [ranges, pods, keep] =
            [POD_RANGES, MASQUERADED_PODS, KEEP_SOURCE].map(|name| family.suffixed(name));
        let no_masquerade = add_no_masquerade(table, family);
        let to_external = |rule: FilterRule| {
            // Multicast stays on the link.
            rule.not_in_set(&[destination], &no_masquerade)
                .not_within(destination, multicast(family))
                .masquerade(true)
        };
        let from = |set: &str| off_bridge(bridge).family(family).in_set(&[source], set);
        rules.push(to_external(from(&ranges).not_in_set(&[source], &keep)));
        rules.push(to_external(from(&pods)));
        table.sets.insert(ranges, FilterSet::ranges(family));
        for name in [pods, keep] {
            table.sets.insert(name, FilterSet::keys(&[family.data_type()]));
        }
    }
    rules
}

/// Egress gateways: packets of local pods are marked and routed to the gateway's node, which translates them to the
/// gateway's address. Replies are never marked: they return the way that the request came. A pod with a gateway leaves the
/// cluster through it or not at all. Returns the SNAT rules, which precede masquerading.
fn egress(
    table: &mut FilterTable,
    bridge: Option<&IfName>,
    next_hops: &BTreeSet<EgressNextHop>,
) -> Vec<FilterRule> {
    let (mut snat, mut marking, mut enforcing) = (Vec::new(), Vec::new(), Vec::new());
    for family in IpFamily::ALL {
        let (source, destination) = (Field::Source(family), Field::Destination(family));
        let no_masquerade = add_no_masquerade(table, family);
        // Link-local and multicast destinations never leave through another node.
        let to_external = |rule: FilterRule| {
            rule.not_in_set(&[destination], &no_masquerade)
                .not_within(destination, multicast(family))
                .not_within(destination, link_local_range(family))
        };
        let of = |set: &str| {
            to_external(FilterRule::new().family(family).in_set(&[source], set).original_direction())
        };
        let blocked = family.suffixed(EGRESS_BLOCKED);
        marking.push(of(&blocked).without_snat().not_to_local().drop());
        table.sets.insert(blocked, FilterSet::keys(&[family.data_type()]));
        for EgressNextHop { mark, via } in next_hops.iter().filter(|hop| IpFamily::of(hop.via) == family) {
            let (name, mask) = (egress_pods(family, *mark), kernel_ids::EGRESS_MARK_MASK);
            marking.push(of(&name).without_snat().not_to_local().set_mark(*mark, mask));
            let marked = of(&name).has_mark(*mark, mask);
            snat.push(marked.clone().accept());
            enforcing.push(marked.is_not(Field::NextHop(family), *via).drop());
            table.sets.insert(name, FilterSet::keys(&[family.data_type()]));
        }
        let (to, from) = (family.suffixed(EGRESS_SNAT), family.suffixed(EGRESS_SNAT_PODS));
        snat.push(to_external(off_bridge(bridge).family(family)).snat(family, &[source], &to));
        // A connection from before the gateway moved here must not leave with another address.
        enforcing.push(of(&from).drop());
        table.sets.insert(from, FilterSet::keys(&[family.data_type()]));
        table.sets.insert(to, FilterSet::map(&[family.data_type()], &[family.data_type()]));
    }
    let marking = base(ChainType::Filter, Hook::Prerouting, AFTER_DNAT, marking);
    let enforcing = base(ChainType::Filter, Hook::Postrouting, AFTER_SNAT, enforcing);
    table.chains.insert("egress_mark".to_owned(), marking);
    table.chains.insert("egress_enforce".to_owned(), enforcing);
    snat
}

fn link_local_range(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::new_assert([169, 254, 0, 0].into(), 16),
        IpFamily::V6 => IpNet::new_assert([0xfe80, 0, 0, 0, 0, 0, 0, 0].into(), 10),
    }
}

/// Maps host ports to pods (DNAT). They are also reachable through the node's IPv4 loopback: for that, packets of
/// 127.0.0.0/8 may leave through the bridge and their replies return through it (`route_localnet`), while everything else
/// that a pod sends to the node's loopback is dropped. Announced addresses of Services have no host ports.
fn host_ports(table: &mut FilterTable, bridge: Option<&IfName>, has_services: bool) {
    let loopback = IpNet::new_assert([127, 0, 0, 0].into(), 8);
    let (mut ports, mut returns) = (Vec::new(), Vec::new());
    for family in IpFamily::ALL {
        let (address, destination) = (family.data_type(), Field::Destination(family));
        if let Some(bridge) = bridge {
            let pods = family.suffixed(HOST_PORT_PODS);
            let to_pods = |rule: FilterRule| {
                let fields = [Field::L4Protocol, destination, Field::DestinationPort];
                rule.with_dnat().is(Field::OifName, bridge).in_set(&fields, &pods).masquerade(false)
            };
            if family == IpFamily::V4 {
                let from_loopback = FilterRule::new().family(family).within(Field::Source(family), loopback);
                returns.push(to_pods(from_loopback));
            }
            // Hairpin: the pod would reply to its neighbour on the bridge directly, past the node.
            returns.push(to_pods(FilterRule::new().is(Field::IifName, bridge).family(family)));
            let key = [DataType::Protocol, address, DataType::Port];
            table.sets.insert(pods, FilterSet::keys(&key));
        }
        let data = [address, DataType::Port];
        let port = [Field::L4Protocol, Field::DestinationPort];
        let at = [&[destination][..], &port].concat();
        for (name, key, fields) in [
            (HOST_PORTS_AT, vec![address, DataType::Protocol, DataType::Port], at),
            (HOST_PORTS, vec![DataType::Protocol, DataType::Port], port.to_vec()),
        ] {
            let name = family.suffixed(name);
            ports.push(FilterRule::new().family(family).dnat(family, &fields, &name));
            table.sets.insert(name, FilterSet::map(&key, &data));
        }
    }
    let chain = "host_ports";
    table.chains.insert(chain.to_owned(), FilterChain { base: None, rules: ports });
    for (name, hook) in [("prerouting_dnat", Hook::Prerouting), ("output_dnat", Hook::Output)] {
        let to_node = |family: IpFamily| {
            let rule = FilterRule::new().family(family).to_local();
            rule.not_in_set(&[Field::Destination(family)], &knit_service::announced_set(family)).jump(chain)
        };
        let rules = match has_services {
            true => IpFamily::ALL.map(to_node).into(),
            false => vec![FilterRule::new().to_local().jump(chain)],
        };
        table.chains.insert(name.to_owned(), base(ChainType::Nat, hook, DNAT, rules));
    }
    let Some(bridge) = bridge else { return };
    let from_bridge = FilterRule::new().is(Field::IifName, bridge).family(IpFamily::V4);
    let guard = vec![from_bridge.within(Field::Destination(IpFamily::V4), loopback).drop()];
    let guard = base(ChainType::Filter, Hook::Prerouting, FIRST, guard);
    table.chains.insert("loopback_guard".to_owned(), guard);
    let returns = base(ChainType::Nat, Hook::Postrouting, SNAT, returns);
    table.chains.insert("hairpin_snat".to_owned(), returns);
}

fn bridge(features: &Features) -> FilterTable {
    let mut table = FilterTable::default();
    let mut incoming = Vec::new();
    if features.overlay {
        overlay(&mut table);
        incoming.push(FilterRule::new().in_set(&[Field::IifName], OVERLAY_TUNNELS).jump("tunnel_ingress"));
    }
    if features.guarded_ports {
        anti_spoofing(&mut table);
        incoming.push(FilterRule::new().in_set(&[Field::IifName], GUARDED_PORTS).jump(ANTI_SPOOFING));
    }
    if !incoming.is_empty() {
        let chain = base(ChainType::Filter, Hook::Prerouting, FIRST, incoming);
        table.chains.insert("prerouting".to_owned(), chain);
    }
    table
}

/// On an overlay network the bridge has the same gateway address and MAC address on every node. Frames from that MAC
/// address, and ARP and neighbour discovery for these addresses, never pass a tunnel in either direction.
fn overlay(table: &mut FilterTable) {
    table.sets.insert(OVERLAY_TUNNELS.to_owned(), FilterSet::keys(&[DataType::Name]));
    table.sets.insert(GATEWAY_MACS.to_owned(), FilterSet::keys(&[DataType::Name, DataType::Mac]));
    let [gateways4, gateways6] = IpFamily::ALL.map(|family| family.suffixed(GATEWAY_ADDRESSES));
    for family in IpFamily::ALL {
        let set = FilterSet::keys(&[DataType::Name, family.data_type()]);
        table.sets.insert(family.suffixed(GATEWAY_ADDRESSES), set);
    }
    for (name, link) in [("tunnel_ingress", Field::IifName), ("tunnel_egress", Field::OifName)] {
        let arp = FilterRule::new().is(Field::EtherType, EtherType::Arp);
        let icmp =
            FilterRule::new().is(Field::EtherType, EtherType::Ip(IpFamily::V6)).is(Field::L4Protocol, ICMPV6);
        let about =
            |kind: u8| icmp.clone().is(Field::IcmpType, kind).in_set(&[link, Field::NdTarget], &gateways6);
        let rules = vec![
            FilterRule::new().in_set(&[link, Field::SourceMac], GATEWAY_MACS).drop(),
            arp.clone().in_set(&[link, Field::ArpSenderIp], &gateways4).drop(),
            arp.in_set(&[link, Field::ArpTargetIp], &gateways4).drop(),
            about(NEIGHBOUR_SOLICITATION).drop(),
            about(NEIGHBOUR_ADVERTISEMENT).drop(),
        ];
        table.chains.insert(name.to_owned(), FilterChain { base: None, rules });
    }
    let outgoing = vec![FilterRule::new().in_set(&[Field::OifName], OVERLAY_TUNNELS).jump("tunnel_egress")];
    let outgoing = base(ChainType::Filter, Hook::Postrouting, FIRST, outgoing);
    table.chains.insert("postrouting".to_owned(), outgoing);
}

/// A frame from a guarded port must have the pod's MAC address and one of the pod's IP addresses: as an IPv4, ARP or IPv6
/// packet, or as a neighbour advertisement. Other ethertypes are dropped; and on the ports of networks that the pod's
/// namespace does not own, router advertisements, redirects and DHCP server messages. A port on a network without addresses
/// needs only the MAC address.
fn anti_spoofing(table: &mut FilterTable) {
    let port_and_mac = [DataType::Name, DataType::Mac];
    for name in [GUARDED_PORTS, CLIENT_PORTS] {
        table.sets.insert(name.to_owned(), FilterSet::keys(&[DataType::Name]));
    }
    for name in [PORT_MACS, L2_PORTS] {
        table.sets.insert(name.to_owned(), FilterSet::keys(&port_and_mac));
    }
    for family in IpFamily::ALL {
        let set = FilterSet::keys(&[DataType::Name, DataType::Mac, family.data_type()]);
        table.sets.insert(family.suffixed(PORT_ADDRESSES), set);
    }
    let of = |frame: EtherType| FilterRule::new().is(Field::EtherType, frame);
    let (ipv4, ipv6) = (of(EtherType::Ip(IpFamily::V4)), of(EtherType::Ip(IpFamily::V6)));
    let [own4, own6] = IpFamily::ALL.map(|family| family.suffixed(PORT_ADDRESSES));
    let arp = of(EtherType::Arp);
    let icmp = || ipv6.clone().is(Field::L4Protocol, ICMPV6);
    let no_server = |rule: FilterRule| rule.in_set(&[Field::IifName], CLIENT_PORTS).drop();
    let (source, sender) = ([Field::IifName, Field::SourceMac], [Field::IifName, Field::ArpSenderMac]);
    let rules = vec![
        arp.clone().in_set(&source, L2_PORTS).in_set(&sender, L2_PORTS).accept(),
        FilterRule::new().is_not(Field::EtherType, EtherType::Arp).in_set(&source, L2_PORTS).accept(),
        no_server(ipv4.clone().is(Field::L4Protocol, UDP).is(Field::SourcePort, DHCP_SERVER)),
        ipv4.clone()
            .is(Field::Source(IpFamily::V4), IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .is(Field::L4Protocol, UDP)
            .is(Field::SourcePort, DHCP_CLIENT)
            .in_set(&source, PORT_MACS)
            .accept(),
        ipv4.in_set(&[Field::IifName, Field::SourceMac, Field::Source(IpFamily::V4)], &own4).accept(),
        arp.clone()
            .in_set(&[Field::IifName, Field::SourceMac, Field::ArpSenderIp], &own4)
            .in_set(&[Field::IifName, Field::ArpSenderMac, Field::ArpSenderIp], &own4)
            .accept(),
        // ARP probes have the source address 0.0.0.0.
        arp.is(Field::ArpSenderIp, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .in_set(&source, PORT_MACS)
            .in_set(&sender, PORT_MACS)
            .accept(),
        no_server(ipv6.clone().is(Field::L4Protocol, UDP).is(Field::SourcePort, DHCPV6_SERVER)),
        no_server(icmp().is(Field::IcmpType, ROUTER_ADVERTISEMENT)),
        no_server(icmp().is(Field::IcmpType, REDIRECT)),
        icmp()
            .is(Field::IcmpType, NEIGHBOUR_ADVERTISEMENT)
            .not_in_set(&[Field::IifName, Field::SourceMac, Field::NdTarget], &own6)
            .drop(),
        ipv6.clone().in_set(&[Field::IifName, Field::SourceMac, Field::Source(IpFamily::V6)], &own6).accept(),
        icmp()
            .is(Field::Source(IpFamily::V6), IpAddr::V6(Ipv6Addr::UNSPECIFIED))
            .in_set(&source, PORT_MACS)
            .accept(),
        FilterRule::new().drop(),
    ];
    table.chains.insert(ANTI_SPOOFING.to_owned(), FilterChain { base: None, rules });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_only_what_is_used() {
        assert!(tables(&Features::default()).is_empty());
        let guarded = tables(&Features { guarded_ports: true, ..Features::default() });
        assert_eq!(guarded.keys().map(ToString::to_string).collect::<Vec<_>>(), ["bridge knit"]);
        let bridge = &guarded[&TableFamily::Bridge.table()];
        assert_eq!(bridge.chains.keys().collect::<Vec<_>>(), ["anti_spoofing", "prerouting"]);
        let masquerade = tables(&Features { masquerade: true, ..Features::default() });
        let inet = &masquerade[&TableFamily::Inet.table()];
        assert_eq!(inet.chains.keys().collect::<Vec<_>>(), ["snat"]);
        assert_eq!(inet.chains["snat"].rules.len(), 4);
    }

    #[test]
    fn egress_snat_precedes_masquerade() {
        let mark = 7 << kernel_ids::EGRESS_MARK_SHIFT;
        let hop = |via: &str| EgressNextHop { mark, via: via.parse().unwrap() };
        let egress = Some([hop("192.0.2.2"), hop("fd01:2::1")].into());
        let bridge = Some("knit0".parse().unwrap());
        let all = tables(&Features { bridge, masquerade: true, egress, ..Features::default() });
        let inet = &all[&TableFamily::Inet.table()];
        let texts: Vec<String> = inet.chains["snat"].rules.iter().map(ToString::to_string).collect();
        let is_masquerade = |text: &String| text.ends_with("masquerade random");
        assert_eq!(texts.iter().filter(|text| is_masquerade(text)).count(), 4, "{texts:?}");
        assert!(texts.iter().skip_while(|text| !is_masquerade(text)).all(is_masquerade), "{texts:?}");
        assert!(inet.sets.contains_key("egress_pods4_7") && inet.sets.contains_key("egress_pods6_7"));
    }

    #[test]
    fn a_rule_reads_like_nft() {
        let bridge = Some("knit0".parse().unwrap());
        let all = tables(&Features { bridge, masquerade: true, ..Features::default() });
        let rule = all[&TableFamily::Inet.table()].chains["snat"].rules[0].to_string();
        assert_eq!(
            rule,
            "oifname != knit0 meta nfproto 2 ip saddr @pod_ranges4 ip saddr != @keep_source4 ip daddr != @no_masquerade4 ip daddr & 240.0.0.0 != 224.0.0.0 masquerade random"
        );
    }
}
