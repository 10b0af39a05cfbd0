//! States with VLANs, ipvlans, VRFs and dummies. Their parents are veth pairs with the end `net1` in the sandbox.

use knit_model::link::{Dummy, Ipvlan, IpvlanFlag, IpvlanMode, Kind, Link, Master, Vlan, VlanProtocol, Vrf};
use knit_model::route::NextHop;
use knit_model::{Address, Mac, NetState, Route, Scope};

use super::node::sandbox;
use super::states::{add_veth, link, name, net};

/// Adds a link of Knit's to a sandbox, with addresses.
pub fn add(state: &mut NetState, id: &str, text: &str, kind: Kind, addresses: &[&str]) {
    let scope = sandbox(id);
    let mut made = link(&scope, text, kind);
    if made.kind.has_own_mac() {
        made.attrs.mac = Some(Mac::derived(&format!("{id}/{text}")));
    }
    let here = state.scope(&scope);
    here.rules.extend(made.kind.rules());
    made.kind.routes().into_iter().for_each(|route| here.add_route(route));
    here.add_link(made);
    for address in addresses {
        here.add_address(Address::new(name(text), net(address)));
    }
}

pub fn vlan(parent: &str, id: u16, protocol: VlanProtocol) -> Kind {
    Kind::Vlan(Vlan {
        parent: Some(name(parent)),
        id,
        protocol: Some(protocol),
        reorder_header: Some(true),
        gvrp: Some(false),
        mvrp: Some(false),
        loose_binding: Some(false),
        ingress_qos: Some(Vec::new()),
        egress_qos: Some(Vec::new()),
    })
}

pub fn ipvlan(parent: &str, mode: IpvlanMode) -> Kind {
    Kind::Ipvlan(Ipvlan { parent: Some(name(parent)), mode: Some(mode), flag: Some(IpvlanFlag::Bridge) })
}

/// A dummy link.
pub fn dummy() -> Kind {
    Kind::Dummy(Dummy {})
}

/// A veth pair whose end in the sandbox is a port of the VRF `red`, with a default route there.
pub fn add_red(state: &mut NetState, id: &str, bridge: &str, addresses: &[&str], gateway: &str) {
    add(state, id, "red", Kind::Vrf(Vrf { table: 1010 }), &[]);
    add_veth(state, id, bridge, addresses);
    let here = state.scope(&sandbox(id));
    here.links.get_mut(&name("net1")).unwrap().attrs.master = Some(Master::Link(name("red")));
    let gateway = Some(gateway.parse().unwrap());
    let hop = NextHop { gateway, link: name("net1"), weight: 1, onlink: false };
    here.add_route(Route { table: 1010, ..Route::through(net("10.77.0.0/16"), hop) });
}

/// A link of a state, for changes.
pub fn edit<'a>(state: &'a mut NetState, scope: &Scope, text: &str) -> &'a mut Link {
    state.scope(scope).links.get_mut(&name(text)).unwrap()
}
