//! VLAN, ipvlan, VRF and dummy on a kernel that has them: made on running sandboxes, seen by `ip`, changed field by
//! field, used, broken at every step, and gone without a trace.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod edits;
    pub mod faults;
    pub mod l2;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_model::link::{IpvlanFlag, IpvlanMode, Kind, Link, Master, Vlan, VlanProtocol};
use knit_model::{Mac, NetState, Plan, Scope};
use serde_json::{Value, json};
use support::edits::{COMMON, Edit, change_each, forget_neighbours};
use support::faults::survive_every_fault_leanly;
use support::l2::{add, add_red, dummy, edit, ipvlan, vlan};
use support::states::{add_bridge, add_veth, name};
use support::world::{World, sandbox};

/// What every link lets be changed, for kinds that do neither ARP nor multicast by themselves.
fn common_of_quiet_kinds() -> Vec<Edit> {
    let is_loud = |field: &str| matches!(field, "arp" | "multicast");
    let mut edits: Vec<Edit> = COMMON.iter().copied().filter(|(field, _)| !is_loud(field)).collect();
    edits.push(("multicast", |link| link.attrs.multicast = Some(true)));
    edits.push(("arp", |link| link.attrs.arp = Some(true)));
    edits.push(("arp", |link| link.attrs.arp = Some(false)));
    edits
}

/// What `ip -d -j link` says of a link.
fn shown(world: &World, sandbox: usize, link: &str) -> Value {
    let text = world.sandboxes[sandbox].ip(&["-d", "-j", "link", "show", "dev", link]);
    let all: Value = serde_json::from_str(&text).unwrap();
    all[0].clone()
}

/// Makes a state and takes it away again, with a fault at every step of both.
fn survive_making_and_removing(world: &World, state: &NetState) {
    survive_every_fault_leanly(world, &world.plan(state));
    world.make(state);
    survive_every_fault_leanly(world, &world.plan(&NetState::default()));
}

/// Changes a state, with a fault at every step. The text of the plan says what had to be done.
fn survive_changing(world: &World, state: &NetState) -> Plan {
    let plan = world.plan(state);
    survive_every_fault_leanly(world, &plan);
    world.make(state)
}

fn remove_all(world: &World, before: &[(String, knit_testbed::Dump)]) {
    world.make(&NetState::default());
    world.assert_as_before(before, "after removal");
}

fn vlan_fields(link: &mut Link) -> &mut Vlan {
    let Kind::Vlan(vlan) = &mut link.kind else { panic!("not a vlan") };
    vlan
}

#[test]
fn dummy_holds_an_address() {
    let world = World::new("dummy", &["a"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add(&mut state, "a", "dm0", dummy(), &["10.9.0.1/32", "fd09::1/128"]);
    survive_making_and_removing(&world, &state);
    assert_eq!(shown(&world, 0, "dm0")["linkinfo"]["info_kind"], "dummy");
    change_each(&world, &mut state, &sandbox("a"), "dm0", &common_of_quiet_kinds());
    for address in ["10.9.0.1", "fd09::1"] {
        world.sandboxes[0].ping(address).unwrap();
    }
    remove_all(&world, &before);
}

#[test]
fn vlan_on_an_added_pair_with_a_trunk_between() {
    // Two pods with the same VLAN on a bridge that carries tags, and a third one on the trunk without it.
    let world = World::new("vlan", &["a", "b", "c"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, number) in [("a", 2), ("b", 3), ("c", 4)] {
        add_veth(&mut state, id, "br0", &[&format!("10.50.0.{number}/24")]);
        if id != "c" {
            let addresses = [format!("10.51.0.{number}/24"), format!("fd51::{number}/64")];
            let addresses = addresses.each_ref().map(String::as_str);
            add(&mut state, id, "vl100", vlan("net1", 100, VlanProtocol::Dot1q), &addresses);
        }
    }
    world.make(&state);
    let reach = || {
        forget_neighbours(&world);
        world.sandboxes[0].ping("10.51.0.3").unwrap();
        world.sandboxes[1].ping("fd51::2").unwrap();
        world.sandboxes[0].ping("10.50.0.4").unwrap();
    };
    reach();
    change_each(&world, &mut state, &sandbox("a"), "vl100", COMMON);
    let own: &[Edit] = &[
        ("gvrp", |link| vlan_fields(link).gvrp = Some(true)),
        ("mvrp", |link| vlan_fields(link).mvrp = Some(true)),
        ("loose_binding", |link| vlan_fields(link).loose_binding = Some(true)),
        ("reorder_header", |link| vlan_fields(link).reorder_header = Some(false)),
        ("ingress_qos", |link| vlan_fields(link).ingress_qos = Some(vec![(1, 6), (7, 2)])),
        ("egress_qos", |link| vlan_fields(link).egress_qos = Some(vec![(2, 7), (65_536, 1)])),
    ];
    change_each(&world, &mut state, &sandbox("a"), "vl100", own);
    let info = &shown(&world, 0, "vl100")["linkinfo"];
    assert_eq!(info["info_kind"], "vlan");
    let data = &info["info_data"];
    assert_eq!((&data["id"], &data["protocol"]), (&json!(100), &json!("802.1Q")));
    assert_eq!(data["flags"], json!(["GVRP", "MVRP", "LOOSE_BINDING"]));
    assert_eq!(data["ingress_qos"], json!([{ "from": 1, "to": 6 }, { "from": 7, "to": 2 }]));
    // And each goes back while it lives.
    let back: &[Edit] = &[
        ("egress_qos", |link| vlan_fields(link).egress_qos = Some(vec![(2, 3)])),
        ("ingress_qos", |link| vlan_fields(link).ingress_qos = Some(Vec::new())),
        ("reorder_header", |link| vlan_fields(link).reorder_header = Some(true)),
        ("gvrp", |link| vlan_fields(link).gvrp = Some(false)),
    ];
    change_each(&world, &mut state, &sandbox("a"), "vl100", back);
    reach();

    // Another number is another VLAN: made again, and no longer the other pod's.
    vlan_fields(edit(&mut state, &sandbox("a"), "vl100")).id = 101;
    let text = world.make(&state).to_string();
    assert!(
        text.contains("made again: the kernel does not make this change of `id` on a living vlan"),
        "{text}"
    );
    forget_neighbours(&world);
    assert!(world.sandboxes[0].ping("10.51.0.3").is_err());
    remove_all(&world, &before);
}

#[test]
fn vlan_faults_tags_in_tags_and_parents_that_grow() {
    let world = World::new("qinq", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, number) in [("a", 2), ("b", 3)] {
        add_veth(&mut state, id, "br0", &[]);
        add(&mut state, id, "outer", vlan("net1", 7, VlanProtocol::Dot1ad), &[]);
        add(
            &mut state,
            id,
            "inner",
            vlan("outer", 8, VlanProtocol::Dot1q),
            &[&format!("10.52.0.{number}/24")],
        );
    }
    survive_making_and_removing(&world, &state);
    assert_eq!(shown(&world, 0, "outer")["linkinfo"]["info_data"]["protocol"], "802.1ad");
    world.sandboxes[0].ping("10.52.0.3").unwrap();

    // All three grow together, the lowest first; then they shrink together, the highest first.
    for mtu in [9000, 1400] {
        for link in ["net1", "outer", "inner"] {
            edit(&mut state, &sandbox("a"), link).attrs.mtu = Some(mtu);
        }
        edit(&mut state, &Scope::Host, "ha").attrs.mtu = Some(mtu);
        survive_changing(&world, &state);
        assert_eq!(shown(&world, 0, "inner")["mtu"], json!(mtu));
    }
    remove_all(&world, &before);
}

#[test]
fn ipvlan_in_every_mode() {
    // Three pods: two with an ipvlan each on a link of the host, the third far away on the wire.
    let world = World::new("ipvlan", &["a", "b", "c"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "c", "br0", &["10.53.0.9/24"]);
    // Both sit on one end of a pair of the host, whose other end is a port of the bridge.
    let pair = |scope: &str, peer: &str| {
        let peer = knit_model::link::Peer { scope: Scope::Host, name: name(peer) };
        support::states::link(&Scope::Host, scope, Kind::Veth(knit_model::link::Veth { peer: Some(peer) }))
    };
    let mut up0 = pair("up0", "up1");
    let mut up1 = Link { owner: up0.owner.clone(), ..pair("up1", "up0") };
    up0.attrs.mac = Some(Mac::derived("up0"));
    up1.attrs.mac = Some(Mac::derived("up1"));
    up1.attrs.master = Some(Master::Of(name("br0")));
    let host = state.scope(&Scope::Host);
    host.add_link(up0);
    host.add_link(up1);
    for (id, number) in [("a", 2), ("b", 3)] {
        let addresses = [format!("10.53.0.{number}/24"), format!("fd53::{number}/64")];
        add(&mut state, id, "iv0", ipvlan("up0", IpvlanMode::L2), &addresses.each_ref().map(String::as_str));
        edit(&mut state, &sandbox(id), "iv0").born_from = Some(Scope::Host);
    }
    survive_making_and_removing(&world, &state);
    let reach = |far: bool| {
        forget_neighbours(&world);
        world.sandboxes[0].ping("10.53.0.3").unwrap();
        if far {
            world.sandboxes[0].ping("10.53.0.9").unwrap();
        }
    };
    reach(true);
    world.sandboxes[1].ping("fd53::2").unwrap();
    let common: Vec<Edit> = COMMON.iter().copied().filter(|(field, _)| *field != "mac").collect();
    change_each(&world, &mut state, &sandbox("a"), "iv0", &common);
    edit(&mut state, &sandbox("a"), "iv0").attrs.arp = None;

    // All ipvlans of one link share mode and flag, so both are told.
    for (mode, word) in [(IpvlanMode::L3, "l3"), (IpvlanMode::L3s, "l3s"), (IpvlanMode::L2, "l2")] {
        for id in ["a", "b"] {
            let Kind::Ipvlan(ipvlan) = &mut edit(&mut state, &sandbox(id), "iv0").kind else { panic!() };
            ipvlan.mode = Some(mode);
        }
        world.make(&state);
        let data = shown(&world, 1, "iv0")["linkinfo"]["info_data"].clone();
        assert_eq!((&data["mode"], &data["bridge"]), (&json!(word), &json!(true)), "{data}");
        reach(mode == IpvlanMode::L2);
    }
    for (flag, word) in [(IpvlanFlag::Private, "private"), (IpvlanFlag::Vepa, "vepa")] {
        for id in ["a", "b"] {
            let Kind::Ipvlan(ipvlan) = &mut edit(&mut state, &sandbox(id), "iv0").kind else { panic!() };
            ipvlan.flag = Some(flag);
        }
        let plan = world.make(&state);
        assert_eq!(plan.steps.len(), 2, "{plan}");
        let data = shown(&world, 1, "iv0")["linkinfo"]["info_data"].clone();
        assert_eq!(data[word], json!(true), "{data}");
        forget_neighbours(&world);
        assert!(world.sandboxes[0].ping("10.53.0.3").is_err());
        world.sandboxes[0].ping("10.53.0.9").unwrap();
    }
    // The MTU of what lies below takes theirs along, up and down.
    for mtu in [9000, 1300] {
        edit(&mut state, &Scope::Host, "up0").attrs.mtu = Some(mtu);
        edit(&mut state, &sandbox("a"), "iv0").attrs.mtu = Some(mtu.min(1400));
        survive_changing(&world, &state);
        assert_eq!(shown(&world, 0, "iv0")["mtu"], json!(mtu.min(1400)));
    }
    remove_all(&world, &before);
}

#[test]
fn vrf_keeps_its_ports_to_itself() {
    let world = World::new("vrf", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.54.0.1/24");
    add_red(&mut state, "a", "br0", &["10.54.0.2/24", "fd54::2/64"], "10.54.0.3");
    add_veth(&mut state, "b", "br0", &["10.54.0.3/24", "fd54::3/64", "10.77.0.1/32"]);
    survive_making_and_removing(&world, &state);

    let info = shown(&world, 0, "red");
    assert_eq!(
        (&info["linkinfo"]["info_kind"], &info["linkinfo"]["info_data"]["table"]),
        (&json!("vrf"), &json!(1010))
    );
    assert_eq!(shown(&world, 0, "net1")["master"], "red");
    let pod = &world.sandboxes[0];
    let inside = |to: &str| pod.output("ping", &["-c1", "-i0.2", "-w5", "-I", "red", to]);
    for to in ["10.54.0.3", "fd54::3", "10.77.0.1"] {
        inside(to).unwrap();
    }
    // Outside of the VRF nothing leads there.
    assert!(pod.ping("10.54.0.3").is_err());
    change_each(&world, &mut state, &sandbox("a"), "red", &common_of_quiet_kinds());

    // A port leaves and comes back with its addresses and routes, while it lives.
    let (inside_state, mut outside) = (state.clone(), state.clone());
    edit(&mut outside, &sandbox("a"), "net1").attrs.master = Some(Master::Nothing);
    let route = outside.scope(&sandbox("a")).routes.keys().find(|key| key.metric == 0).unwrap().clone();
    outside.scope(&sandbox("a")).routes.remove(&route);
    let text = survive_changing(&world, &outside).to_string();
    assert!(!text.contains("veth net1 "), "{text}");
    forget_neighbours(&world);
    pod.ping("10.54.0.3").unwrap();
    pod.ping("fd54::3").unwrap();
    survive_changing(&world, &inside_state);
    inside("fd54::3").unwrap();

    // Another table makes the VRF again; its port stays.
    let mut other = inside_state;
    let Kind::Vrf(vrf) = &mut edit(&mut other, &sandbox("a"), "red").kind else { panic!() };
    vrf.table = 1011;
    let here = other.scope(&sandbox("a"));
    here.routes = std::mem::take(&mut here.routes)
        .into_values()
        .map(|route| knit_model::Route { table: 1011, ..route })
        .map(|route| (route.key(), route))
        .collect();
    let text = survive_changing(&world, &other).to_string();
    assert!(
        text.contains("made again: the kernel does not make this change of `table` on a living vrf"),
        "{text}"
    );
    inside("10.77.0.1").unwrap();
    remove_all(&world, &before);
}
