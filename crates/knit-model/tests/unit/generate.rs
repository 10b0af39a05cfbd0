//! Random desired states: bridges on the host, sandboxes with veths, macvlans and tunnels.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::link::{
    Attrs, Bridge, Kind, Link, Macvlan, MacvlanMode, Master, PortVlans, RateLimit, TokenBucket, Veth,
    VethPeer, VlanSet, Vxlan,
};
use knit_model::route::{MAIN_TABLE, NextHop, Route};
use knit_model::{Address, IfName, Mac, Neighbour, NetState, Rule, SandboxId, Scope};
use proptest::prelude::*;

use super::fake_kernel::owner;

/// What a generated sandbox contains.
#[derive(Clone, Debug)]
struct SandboxSpec {
    veth_on: Option<u8>,
    macvlan_on: Option<u8>,
    vxlan: Option<u8>,
    mtu: Option<u32>,
    gateway: bool,
    vlan: Option<u16>,
}

fn spec() -> impl Strategy<Value = SandboxSpec> {
    let mtu = prop_oneof![Just(None), Just(Some(1400)), Just(Some(9000))];
    let bridge = || prop::option::of(0u8..2);
    let vlan = prop::option::of(0u16..3);
    (bridge(), bridge(), prop::option::of(1u8..4), mtu, any::<bool>(), vlan).prop_map(
        |(veth_on, macvlan_on, vxlan, mtu, gateway, vlan)| SandboxSpec {
            veth_on,
            macvlan_on,
            vxlan,
            mtu,
            gateway,
            vlan,
        },
    )
}

/// A state of two bridges and up to three sandboxes.
pub fn state() -> impl Strategy<Value = NetState> {
    (prop::collection::vec(spec(), 0..4), any::<bool>(), 0u8..3)
        .prop_map(|(specs, stp, shape)| build(&specs, stp, shape))
}

/// One sandbox with one tunnel.
pub fn one_vxlan(vni: u32) -> NetState {
    let mut state = NetState::default();
    let scope = state.scope(&Scope::Sandbox(SandboxId("a".to_owned())));
    let kind = Vxlan {
        vni,
        remote: None,
        local: None,
        port: Some(4789),
        parent: None,
        ttl: None,
        learning: None,
        fdb_ageing: None,
        fdb: None,
        flood: None,
    };
    let mut link = Link::new(name("vx0"), Kind::Vxlan(kind));
    link.attrs = Attrs { mtu: Some(1450), up: Some(true), ..Attrs::default() };
    link.owner = owner("a/vx0");
    scope.add_address(Address::new(link.name.clone(), "10.9.0.1/24".parse().unwrap()));
    scope.add_link(link);
    state
}

/// The same state, not owned by Knit.
pub fn as_foreign(mut state: NetState) -> NetState {
    for scope in state.scopes.values_mut() {
        scope.links.values_mut().for_each(|link| {
            link.owner = None;
            if let Kind::Veth(veth) = &mut link.kind {
                veth.peer = None;
            }
        });
        scope.addresses.values_mut().for_each(|address| address.owned = false);
        scope.routes.values_mut().for_each(|route| route.owned = false);
        scope.neighbours.values_mut().for_each(|neighbour| neighbour.owned = false);
        // Observed rules are always owned by Knit.
        scope.rules.clear();
    }
    state
}

fn build(specs: &[SandboxSpec], stp: bool, shape: u8) -> NetState {
    let mut state = NetState::default();
    for bridge in 0..2u8 {
        let used = specs.iter().any(|spec| spec.veth_on == Some(bridge) || spec.macvlan_on == Some(bridge));
        if used || shape == bridge {
            add_bridge(&mut state, bridge, stp);
        }
    }
    for (index, spec) in specs.iter().enumerate() {
        add_sandbox(&mut state, index as u8, spec);
    }
    state
}

fn add_bridge(state: &mut NetState, index: u8, stp: bool) {
    let host = state.scope(&Scope::Host);
    let bridge = name(&format!("br{index}"));
    // VLAN filtering is on with spanning tree, so that some bridges have both and some neither.
    let kind = Bridge { stp: Some(stp), vlan_filtering: Some(stp), ..Bridge::default() };
    let mut made = link(&bridge, Kind::Bridge(kind), &format!("bridge{index}"), None);
    made.attrs.vlans = stp.then(|| PortVlans::access(u16::from(index)));
    host.add_link(made);
    let net: IpNet = format!("10.0.{index}.1/24").parse().unwrap();
    host.add_address(Address { noprefixroute: true, ..Address::new(bridge.clone(), net) });
    host.add_route(Route { table: 7500, ..Route::on_link(net.trunc(), bridge) });
    host.rules.insert(Rule::from_address(format!("10.0.{index}.1/32").parse().unwrap(), 7500, 7500));
}

fn add_sandbox(state: &mut NetState, index: u8, spec: &SandboxSpec) {
    let scope = Scope::Sandbox(SandboxId(format!("s{index}")));
    let mut reachable = None;
    if let Some(bridge) = spec.veth_on {
        let (near, far) = (name("net1"), name(&format!("h{index}")));
        let id = format!("s{index}/net1");
        let pair = |scope: &Scope, name: &IfName| {
            Kind::Veth(Veth { peer: Some(VethPeer { scope: scope.clone(), name: name.clone() }) })
        };
        let mut host_end = link(&far, pair(&scope, &near), &id, spec.mtu);
        host_end.attrs.master = Some(Master::Link(name(&format!("br{bridge}"))));
        let trunk = |native| PortVlans::trunk(VlanSet::new([(100, 100), (200, 200 + native)]), native);
        host_end.attrs.vlans = spec.vlan.map(trunk);
        let rate = spec
            .mtu
            .filter(|_| spec.gateway)
            .map(|mtu| RateLimit::Limited(TokenBucket::new(8_000, None, mtu)));
        host_end.attrs.limit = Some(rate.unwrap_or(RateLimit::Unlimited));
        state.scope(&Scope::Host).add_link(host_end);
        state.scope(&scope).add_link(link(&near, pair(&Scope::Host, &far), &id, spec.mtu));
        state.scope(&scope).add_address(Address::new(
            near.clone(),
            format!("10.0.{bridge}.{}/24", 10 + index).parse().unwrap(),
        ));
        reachable = Some((near, bridge));
    }
    if let Some(bridge) = spec.macvlan_on {
        let kind = Macvlan { parent: Some(name(&format!("br{bridge}"))), mode: Some(MacvlanMode::Bridge) };
        let mut macvlan = link(&name("mv0"), Kind::Macvlan(kind), &format!("s{index}/mv0"), spec.mtu);
        macvlan.parent_scope = Some(Scope::Host);
        state.scope(&scope).add_link(macvlan);
    }
    if let Some(vni) = spec.vxlan {
        let parent = reachable.as_ref().map(|(near, _)| near.clone());
        let kind = Vxlan {
            vni: vni.into(),
            remote: None,
            local: None,
            port: Some(4789),
            parent,
            ttl: None,
            learning: Some(false),
            fdb_ageing: None,
            fdb: Some([(Mac::derived(&format!("{:?}", spec.mtu)), IpAddr::from([10, 0, 0, vni]))].into()),
            flood: None,
        };
        state.scope(&scope).add_link(link(&name("vx0"), Kind::Vxlan(kind), &format!("s{index}/vx0"), None));
    }
    if let Some((near, bridge)) = &reachable {
        // The hardware address differs with the MTU, so that a neighbour is replaced.
        let mac = Some(Mac::derived(&format!("{:?}", spec.mtu)));
        let address = format!("10.0.{bridge}.99").parse().unwrap();
        state.scope(&scope).add_neighbour(Neighbour { link: near.clone(), address, mac, owned: true });
    }
    if let (Some((near, bridge)), true) = (reachable, spec.gateway) {
        let gateway = Some(format!("10.0.{bridge}.1").parse().unwrap());
        let hop = NextHop { gateway, link: near, weight: 1, onlink: false };
        let route = Route { table: MAIN_TABLE, ..Route::through("0.0.0.0/0".parse().unwrap(), hop) };
        state.scope(&scope).add_route(route);
    }
}

fn link(name: &IfName, kind: Kind, id: &str, mtu: Option<u32>) -> Link {
    let mut link = Link::new(name.clone(), kind);
    link.attrs = Attrs { mtu: Some(mtu.unwrap_or(1500)), up: Some(true), ..Attrs::default() };
    link.owner = owner(id);
    link
}

fn name(text: &str) -> IfName {
    IfName::new(text).expect("generated names are valid")
}
