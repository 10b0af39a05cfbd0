//! VXLAN tunnels to other nodes: one link per underlay family, with static entries only.
//!
//! Each node has a MAC address derived from its name and is the next hop with the gateway address of its range. A
//! static FDB entry and a permanent neighbour make ARP and flooding unnecessary.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint};
use knit_model::link::{Attrs, Kind, Link, LinkKind, Vxlan};
use knit_model::plan::ItemKey;
use knit_model::provenance::Provenance;
use knit_model::report::{ItemKind, ItemReport};
use knit_model::route::NextHop;
use knit_model::{Address, IfName, Mac, Neighbour, Route, Scope, kernel_ids, sysctl};

use super::{add_route, add_rules_of_pods, gateway_of, put_link, put_sysctl, sources};
use crate::cluster::ClusterNetwork;
use crate::resolve::{Resolved, with_defaults};
use crate::state::State;

/// The tunnels of this node.
pub(super) struct VxlanTunnels<'a> {
    cluster: ClusterNetwork<'a>,
    spec: Option<&'a NodeTunnelIntent>,
    origin: &'a Provenance,
    /// The bridge's addresses: sources of the node's own traffic to pods through a tunnel.
    sources: Vec<IpAddr>,
    /// The explanation if the kernel does not support VXLAN.
    unsupported: Option<&'a str>,
    /// FDB entries by local endpoint.
    entries: BTreeMap<IpAddr, (&'a TunnelEndpoint, BTreeMap<Mac, IpAddr>)>,
}

impl<'a> VxlanTunnels<'a> {
    pub(super) fn new(
        state: &'a State,
        cluster: ClusterNetwork<'a>,
        node_routes: &'a NodeRoutesIntent,
        origin: &'a Provenance,
    ) -> Self {
        Self {
            cluster,
            spec: node_routes.tunnel.as_ref(),
            origin,
            sources: sources(state, cluster),
            unsupported: state.unsupported.get(Vxlan::NAME).map(String::as_str),
            entries: BTreeMap::new(),
        }
    }

    /// Adds the route to a range of a node through a tunnel from `end` to `to`.
    pub(super) fn add(
        &mut self,
        peer: &PeerNode,
        range: IpNet,
        end: &'a TunnelEndpoint,
        to: IpAddr,
        resolved: &mut Resolved,
    ) -> Result<ItemReport, String> {
        if let Some(message) = self.unsupported {
            return Err(format!("it needs a tunnel, and {message}"));
        }
        let (gateway, link, mac) = (gateway_of(range), link_name(end), mac_of(&peer.name));
        let (_, entries) = self.entries.entry(end.address).or_insert_with(|| (end, BTreeMap::new()));
        entries.insert(mac, to);
        let neighbour = Neighbour { link: link.clone(), address: gateway, mac: Some(mac), owned: true };
        resolved.add_origin(&Scope::Host, ItemKey::Neighbour(neighbour.key()), self.origin);
        resolved.desired.state.scope(&Scope::Host).add_neighbour(neighbour);
        self.add_route(range, gateway, &link, resolved);
        // Traffic of pods to the node itself also uses the tunnel: the underlay does not know pod addresses.
        for address in peer.all_addresses().filter(|address| address.is_ipv4() == range.addr().is_ipv4()) {
            self.add_route(address.into(), gateway, &link, resolved);
        }
        let what = format!("pods of node {} in {range}: vxlan, to {to} by {link}", peer.name);
        let (field, kind) = (self.origin.field.clone(), ItemKind::NodeRoute);
        Ok(ItemReport { field, kind, description: what, links: vec![link], ready: true })
    }

    fn add_route(&self, to: IpNet, gateway: IpAddr, link: &IfName, resolved: &mut Resolved) {
        let hop = NextHop { gateway: Some(gateway), link: link.clone(), weight: 1, onlink: true };
        let source = self.sources.iter().find(|source| source.is_ipv4() == to.addr().is_ipv4()).copied();
        let route = Route { table: kernel_ids::HOST_TABLE, source, ..Route::through(to, hop) };
        add_route(route, self.origin, resolved);
    }

    /// Adds the links that are needed, and the rules of pods.
    pub(super) fn finish(self, resolved: &mut Resolved) {
        let Some(spec) = self.spec.filter(|_| !self.entries.is_empty()) else { return };
        for (end, entries) in self.entries.into_values() {
            add_link(spec, end, entries, self.origin, resolved);
        }
        add_rules_of_pods(self.cluster, self.origin, resolved);
    }
}

fn add_link(
    spec: &NodeTunnelIntent,
    end: &TunnelEndpoint,
    entries: BTreeMap<Mac, IpAddr>,
    origin: &Provenance,
    resolved: &mut Resolved,
) {
    let name = link_name(end);
    let vxlan = Vxlan::unicast(spec.vni, spec.port, end.address, entries);
    let mtu = Some(end.mtu.saturating_sub(vxlan.overhead()));
    let mut link = Link::new(name.clone(), Kind::Vxlan(vxlan).with_defaults());
    let attrs = Attrs { mac: Some(mac_of(&spec.node)), ..Attrs::default() };
    link.attrs = with_defaults(&link.kind, &attrs, mtu, None, "");
    put_link(link, origin, resolved);
    // If another node is the egress gateway, replies arrive through the tunnel although the default route uses
    // another link: rp_filter must be loose, which the kernel applies only to a link with an IPv4 address.
    let own = Address::new(name.clone(), IpNet::from(IpAddr::from(kernel_ids::TUNNEL_ADDRESS)));
    let own = Address { noprefixroute: true, ..own };
    resolved.add_origin(&Scope::Host, ItemKey::Address(own.key()), origin);
    resolved.desired.state.scope(&Scope::Host).add_address(own);
    let loose = sysctl::link_path(&name, "ipv4/rp_filter");
    put_sysctl(&loose, "2", origin, resolved);
    resolved.unit_state.sysctls.insert(loose);
}

pub(super) fn link_name(end: &TunnelEndpoint) -> IfName {
    let name =
        if end.address.is_ipv4() { kernel_ids::TUNNEL_LINK_IPV4 } else { kernel_ids::TUNNEL_LINK_IPV6 };
    IfName::new(name).expect("seven letters and digits are a name")
}

/// The MAC address of a node in tunnels.
fn mac_of(node: &str) -> Mac {
    Mac::derived(&format!("ways/{node}"))
}
