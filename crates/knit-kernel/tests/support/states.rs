//! Desired states of a node: one per link kind, and one with everything.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::link::{
    Attrs, Bridge, Kind, Link, Macvlan, MacvlanMode, Master, OwnerId, Veth, VethPeer, Vxlan,
};
use knit_model::route::{NextHop, RouteAction};
use knit_model::{Address, IfName, Mac, Neighbour, NetState, Route, Rule, Scope};

use super::node::sandbox;

pub fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// A link of Knit's that is up.
pub fn link(scope: &Scope, text: &str, kind: Kind) -> Link {
    let mut link = Link::new(name(text), kind);
    link.attrs = Attrs { up: Some(true), ..Attrs::default() };
    link.owner = Some(OwnerId::derived(&format!("{scope}/{text}")));
    link
}

/// A bridge on the host. Its MAC address is set explicitly: otherwise it takes that of a port, and loses it with the
/// port.
pub fn add_bridge(state: &mut NetState, text: &str, address: &str) {
    let mut bridge = link(&Scope::Host, text, Kind::Bridge(Bridge::default()));
    bridge.attrs.mac = Some(Mac::derived(text));
    bridge.attrs.mtu = Some(1500);
    let host = state.scope(&Scope::Host);
    host.add_link(bridge);
    let net = net(address);
    host.add_address(Address { noprefixroute: true, ..Address::new(name(text), net) });
}

/// A veth pair between a sandbox and a bridge of the host, with addresses in the sandbox.
pub fn add_veth(state: &mut NetState, id: &str, bridge: &str, addresses: &[&str]) {
    let (inside, outside) = (name("net1"), name(&format!("h{id}")));
    let scope = sandbox(id);
    let pair = |scope: &Scope, name: &IfName| {
        Kind::Veth(Veth { peer: Some(VethPeer { scope: scope.clone(), name: name.clone() }) })
    };
    let mut near = link(&scope, "net1", pair(&Scope::Host, &outside));
    near.attrs.mac = Some(Mac::derived(&format!("{id}/net1")));
    let mut far = link(&Scope::Host, outside.as_str(), pair(&scope, &inside));
    far.attrs.master = Some(Master::Link(name(bridge)));
    far.attrs.mac = Some(Mac::derived(&format!("{id}/outside")));
    far.owner.clone_from(&near.owner);
    state.scope(&Scope::Host).add_link(far);
    let here = state.scope(&scope);
    here.add_link(near);
    for address in addresses {
        here.add_address(Address::new(inside.clone(), net(address)));
    }
}

/// A macvlan in a sandbox on a link of the host.
pub fn add_macvlan(state: &mut NetState, id: &str, parent: &str, addresses: &[&str]) {
    let scope = sandbox(id);
    let kind = Macvlan { parent: Some(name(parent)), mode: Some(MacvlanMode::Bridge) };
    let mut macvlan = link(&scope, "mv0", Kind::Macvlan(kind));
    macvlan.attrs.mac = Some(Mac::derived(&format!("{id}/mv0")));
    macvlan.parent_scope = Some(Scope::Host);
    let here = state.scope(&scope);
    here.add_link(macvlan);
    for address in addresses {
        here.add_address(Address::new(name("mv0"), net(address)));
    }
}

/// A VXLAN tunnel in a sandbox through its `net1`.
pub fn add_vxlan(state: &mut NetState, id: &str, [local, remote]: [&str; 2], addresses: &[&str]) {
    let scope = sandbox(id);
    let kind = Vxlan {
        vni: 77,
        remote: Some(remote.parse().unwrap()),
        local: Some(local.parse().unwrap()),
        port: Some(4789),
        parent: Some(name("net1")),
        ttl: Some(9),
        learning: Some(true),
        fdb_ageing: Some(120),
        fdb: None,
        flood: None,
    };
    let mut vxlan = link(&scope, "vx0", Kind::Vxlan(kind));
    vxlan.attrs.mtu = Some(1400);
    vxlan.attrs.mac = Some(Mac::derived(&format!("{id}/vx0")));
    let here = state.scope(&scope);
    here.add_link(vxlan);
    for address in addresses {
        here.add_address(Address::new(name("vx0"), net(address)));
    }
}

/// Forwarding entries: the destination of each MAC address.
pub fn entries(all: &[(&str, &str)]) -> BTreeMap<Mac, IpAddr> {
    all.iter().map(|(mac, to)| (mac.parse().unwrap(), to.parse().unwrap())).collect()
}

/// A VXLAN link on the host with static forwarding entries, and a route through it.
pub fn add_tunnels(state: &mut NetState) {
    let fdb = entries(&[("02:00:00:00:00:01", "10.50.0.2"), ("02:00:00:00:00:02", "10.50.0.3")]);
    let vxlan = Vxlan::unicast(79, 4790, "10.50.0.1".parse().unwrap(), fdb);
    let host = state.scope(&Scope::Host);
    host.add_link(link(&Scope::Host, "vx1", Kind::Vxlan(vxlan)));
    host.add_neighbour(neighbour("vx1", "10.63.1.1", Some("02:00:00:00:00:01")));
    let beyond = NextHop { onlink: true, ..hop("10.63.1.1", "vx1", 1) };
    let source = Some("10.50.0.1".parse().unwrap());
    host.add_route(Route { table: 7500, source, ..Route::through(net("10.63.1.0/24"), beyond) });
}

pub fn hop(gateway: &str, link: &str, weight: u16) -> NextHop {
    NextHop { gateway: Some(gateway.parse().unwrap()), link: name(link), weight, onlink: false }
}

/// A node with every object that a plan can create: all kinds, both families, routes of every shape.
pub fn everything() -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_macvlan(&mut state, "a", "br0", &["10.51.0.2/24"]);
    add_vxlan(&mut state, "a", ["10.50.0.2", "10.50.0.3"], &["10.52.0.2/24"]);

    let host = state.scope(&Scope::Host);
    host.add_route(Route { table: 7500, ..Route::on_link(net("10.50.0.0/24"), name("br0")) });
    host.rules.insert(Rule::from_address(net("10.50.0.1/32"), 7500, 7500));
    host.rules.insert(Rule {
        iif: Some(name("br0")),
        mark: Some((0x10, 0xf0)),
        to: Some(net("fd50::/64")),
        ..Rule::from_address(net("fd51::/64"), 7500, 7501)
    });
    host.add_neighbour(neighbour("br0", "10.50.0.99", Some("02:00:00:00:00:99")));
    host.add_neighbour(neighbour("br0", "10.50.0.98", None));
    add_tunnels(&mut state);

    let pod = state.scope(&sandbox("a"));
    pod.add_route(Route::through(net("0.0.0.0/0"), hop("10.50.0.1", "net1", 1)));
    let shared = Route::through(net("10.60.0.0/16"), hop("10.50.0.1", "net1", 2));
    pod.add_route(Route { via: vec![hop("10.50.0.1", "net1", 2), hop("10.50.0.9", "net1", 1)], ..shared });
    let nothing = Route::through(net("10.61.0.0/16"), hop("10.50.0.1", "net1", 1));
    pod.add_route(Route { action: RouteAction::Blackhole, via: vec![], metric: 5, ..nothing });
    let six = Route::through(net("fd60::/48"), hop("fd50::1", "net1", 1));
    pod.add_route(Route { metric: 50, mtu: Some(1300), ..six });
    let onlink = NextHop { onlink: true, ..hop("10.99.0.1", "net1", 1) };
    let onlink = Route::through(net("10.62.0.0/16"), onlink);
    pod.add_route(Route { table: 80, source: Some("10.50.0.2".parse().unwrap()), ..onlink });
    pod.add_neighbour(neighbour("net1", "fd50::99", Some("02:00:00:00:00:99")));
    pod.sysctls.insert("net/ipv4/ip_forward".to_owned(), "1".to_owned());
    state
}

fn neighbour(link: &str, address: &str, mac: Option<&str>) -> Neighbour {
    let mac = mac.map(|mac| mac.parse().unwrap());
    Neighbour { link: name(link), address: address.parse().unwrap(), mac, owned: true }
}
