//! Tunnels to other nodes: one VXLAN for each family that carries them, which goes only where Knit's entries say.
//!
//! Each node has a hardware address that follows from its name, and is the next hop by the first address of its range. So
//! nobody has to be asked for anything: an entry of the link says where the hardware address is, and a permanent neighbour
//! whose it is.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::intent::{NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint};
use knit_model::link::{Attrs, Kind, Link, LinkKind, Vxlan};
use knit_model::plan::Item;
use knit_model::provenance::Provenance;
use knit_model::report::ItemReport;
use knit_model::route::NextHop;
use knit_model::{Address, IfName, Mac, Neighbour, Route, Scope, marks};

use super::{add_route, add_rule, add_rules_of_pods, gateway_of, put_link, put_sysctl, sources};
use crate::cluster::ClusterNetwork;
use crate::resolve::{Resolved, with_defaults};
use crate::state::State;

/// The tunnels of this node.
pub(super) struct Tunnels<'a> {
    cluster: ClusterNetwork<'a>,
    want: Option<&'a NodeTunnelIntent>,
    why: &'a Provenance,
    /// The bridge's addresses: what the node itself says to pods beyond a tunnel comes from them.
    sources: Vec<IpAddr>,
    /// What the kernel says if it has none.
    lacking: Option<&'a str>,
    /// Where each hardware address is, by the end of the tunnel.
    entries: BTreeMap<IpAddr, (&'a TunnelEndpoint, BTreeMap<Mac, IpAddr>)>,
}

impl<'a> Tunnels<'a> {
    pub(super) fn new(
        state: &'a State,
        cluster: ClusterNetwork<'a>,
        ways: &'a NodeRoutesIntent,
        why: &'a Provenance,
    ) -> Self {
        Self {
            cluster,
            want: ways.tunnel.as_ref(),
            why,
            sources: sources(state, cluster),
            lacking: state.lacking.get(Vxlan::NAME).map(String::as_str),
            entries: BTreeMap::new(),
        }
    }

    /// Reaches a range of a node by a tunnel from `end` to its address `to`.
    pub(super) fn add(
        &mut self,
        peer: &PeerNode,
        range: IpNet,
        end: &'a TunnelEndpoint,
        to: IpAddr,
        resolved: &mut Resolved,
    ) -> Result<ItemReport, String> {
        if let Some(words) = self.lacking {
            return Err(format!("it needs a tunnel, and {words}"));
        }
        let (gateway, link, mac) = (gateway_of(range), link_name(end), mac_of(&peer.name));
        let (_, entries) = self.entries.entry(end.address).or_insert_with(|| (end, BTreeMap::new()));
        entries.insert(mac, to);
        let neighbour = Neighbour { link: link.clone(), address: gateway, mac: Some(mac), owned: true };
        resolved.because(&Scope::Host, Item::Neighbour(neighbour.key()), self.why);
        resolved.desired.state.scope(&Scope::Host).add_neighbour(neighbour);
        self.add_route(range, gateway, &link, resolved);
        add_rule(range, self.why, resolved);
        // What pods say to the node itself goes the same way: on the way without a tunnel nobody knows them.
        for address in peer.own().filter(|address| address.is_ipv4() == range.addr().is_ipv4()) {
            self.add_route(address.into(), gateway, &link, resolved);
        }
        let what = format!("pods of node {} in {range}: vxlan, to {to} by {link}", peer.name);
        Ok(ItemReport { field: self.why.field.clone(), what, links: vec![link], ready: true })
    }

    fn add_route(&self, to: IpNet, gateway: IpAddr, link: &IfName, resolved: &mut Resolved) {
        let hop = NextHop { gateway: Some(gateway), link: link.clone(), weight: 1, onlink: true };
        let source = self.sources.iter().find(|source| source.is_ipv4() == to.addr().is_ipv4()).copied();
        let route = Route { table: marks::HOST_TABLE, source, ..Route::through(to, hop) };
        add_route(route, self.why, resolved);
    }

    /// Adds the links that are needed, and has pods find the ways to nodes.
    pub(super) fn finish(self, resolved: &mut Resolved) {
        let Some(want) = self.want.filter(|_| !self.entries.is_empty()) else { return };
        for (end, entries) in self.entries.into_values() {
            add_link(want, end, entries, self.why, resolved);
        }
        add_rules_of_pods(self.cluster, self.why, resolved);
    }
}

fn add_link(
    want: &NodeTunnelIntent,
    end: &TunnelEndpoint,
    entries: BTreeMap<Mac, IpAddr>,
    why: &Provenance,
    resolved: &mut Resolved,
) {
    let name = link_name(end);
    let vxlan = Vxlan::unicast(want.vni, want.port, end.address, entries);
    let mtu = Some(end.mtu.saturating_sub(vxlan.overhead()));
    let mut link = Link::new(name.clone(), Kind::Vxlan(vxlan).with_defaults());
    let asked = Attrs { mac: Some(mac_of(&want.node)), ..Attrs::default() };
    link.attrs = with_defaults(&link.kind, &asked, mtu, None, "");
    put_link(link, why, resolved);
    // Answers from outside come by it, when another node is the gateway of pods here: that the way to the outside is another is
    // no reason to drop them. But a kernel is only so loose with a link that has an address of IPv4, whichever that is.
    let own = Address::new(name.clone(), IpNet::from(IpAddr::from(marks::TUNNEL_ADDRESS)));
    let own = Address { noprefixroute: true, ..own };
    resolved.because(&Scope::Host, Item::Address(own.key()), why);
    resolved.desired.state.scope(&Scope::Host).add_address(own);
    let loose = format!("net/ipv4/conf/{name}/rp_filter");
    put_sysctl(&loose, "2", why, resolved);
    resolved.made.sysctls.insert(loose);
}

pub(super) fn link_name(end: &TunnelEndpoint) -> IfName {
    let name = if end.address.is_ipv4() { marks::TUNNEL_IPV4 } else { marks::TUNNEL_IPV6 };
    IfName::new(name).expect("seven letters and digits are a name")
}

/// The hardware address of a node in tunnels.
fn mac_of(node: &str) -> Mac {
    Mac::derived(&format!("ways/{node}"))
}
