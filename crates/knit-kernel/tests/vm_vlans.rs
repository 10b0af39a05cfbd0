//! VLANs of bridges' ports on a kernel that has them: access and trunk ports, changed while they live, with traffic, broken
//! at every step, and gone without a trace.
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

use knit_model::link::{Bridge, Kind, Link, Master, PortVlans, VlanProtocol};
use knit_model::{NetState, Scope};
use serde_json::Value;
use support::edits::{Edit, change_each, forget_neighbours};
use support::faults::survive_every_fault_leanly;
use support::l2::{add, edit, vlan};
use support::states::{add_bridge, add_veth, name};
use support::world::{World, sandbox};

fn bridge_fields(link: &mut Link) -> &mut Bridge {
    let Kind::Bridge(bridge) = &mut link.kind else { panic!("not a bridge") };
    bridge
}

fn trunk(tagged: &str, native: u16) -> PortVlans {
    PortVlans::trunk(tagged.parse().unwrap(), native)
}

/// A bridge that filters, whose own port is in VLAN 100.
fn add_filtering_bridge(state: &mut NetState, text: &str) {
    add_bridge(state, text, "10.60.0.1/24");
    let bridge = edit(state, &Scope::Host, text);
    bridge_fields(bridge).vlan_filtering = Some(true);
    bridge_fields(bridge).default_pvid = Some(1);
    bridge_fields(bridge).vlan_protocol = Some(VlanProtocol::Dot1q);
    bridge.attrs.vlans = Some(PortVlans::access(100));
}

/// Two access ports of one VLAN, one of another, and a trunk with an interface in each.
fn access_and_trunk() -> NetState {
    let mut state = NetState::default();
    add_filtering_bridge(&mut state, "br0");
    for (id, number, vlans) in [
        ("a", 2, PortVlans::access(100)),
        ("b", 3, PortVlans::access(100)),
        ("c", 4, PortVlans::access(200)),
        ("d", 5, trunk("100,200-300", 0)),
    ] {
        add_veth(&mut state, id, "br0", &[&format!("10.60.0.{number}/24")]);
        edit(&mut state, &Scope::Host, &format!("h{id}")).attrs.vlans = Some(vlans);
    }
    // The way back of the node's own answers.
    let back = knit_model::Route::on_link("10.60.0.0/24".parse().unwrap(), name("br0"));
    state.scope(&Scope::Host).add_route(back);
    let protocol = VlanProtocol::Dot1q;
    add(&mut state, "d", "v100", vlan("net1", 100, protocol), &["10.60.0.6/32"]);
    add(&mut state, "d", "v200", vlan("net1", 200, protocol), &["10.60.0.7/32"]);
    for (link, to) in [("v100", "10.60.0.2/32"), ("v200", "10.60.0.4/32")] {
        let route = knit_model::Route::on_link(to.parse().unwrap(), name(link));
        state.scope(&sandbox("d")).add_route(route);
    }
    state
}

/// What `bridge -j vlan` says of a port: each range with its flags.
fn shown(world: &World, port: &str) -> Vec<String> {
    let text = world.host.output("bridge", &["-j", "-compressvlans", "vlan", "show", "dev", port]).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let range = |vlan: &Value| {
        let flags: Vec<&str> =
            vlan["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let last = vlan.get("vlanEnd").map(|last| format!("-{last}")).unwrap_or_default();
        format!("{}{last} {}", vlan["vlan"], flags.join(" ")).trim().to_owned()
    };
    all[0]["vlans"].as_array().into_iter().flatten().map(range).collect()
}

#[test]
fn access_ports_of_two_vlans_and_a_trunk() {
    let world = World::new("vlans", &["a", "b", "c", "d"]);
    let before = world.dumps();
    let mut state = access_and_trunk();
    survive_every_fault_leanly(&world, &world.plan(&state));
    world.make(&state);
    assert_eq!(shown(&world, "br0"), ["100 PVID Egress Untagged"]);
    assert_eq!(shown(&world, "ha"), ["100 PVID Egress Untagged"]);
    assert_eq!(shown(&world, "hd"), ["100", "200-300"]);
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| &world.sandboxes[number]);
    a.ping("10.60.0.3").unwrap();
    // The node itself is in the same VLAN, the third pod is not.
    a.ping("10.60.0.1").unwrap();
    assert!(a.ping("10.60.0.4").is_err() && c.ping("10.60.0.1").is_err());
    // The trunk's end has an interface in each; without a tag nothing passes there.
    d.output("ping", &["-c1", "-i0.2", "-w5", "-I", "v100", "10.60.0.2"]).unwrap();
    d.output("ping", &["-c1", "-i0.2", "-w5", "-I", "v200", "10.60.0.4"]).unwrap();
    assert!(d.output("ping", &["-c1", "-W1", "-I", "net1", "10.60.0.3"]).is_err());

    // Each port changes while it lives, and what it says is all that changes.
    let ports: &[Edit] = &[
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(200))),
        ("vlans", |link| link.attrs.vlans = Some(trunk("5,7-9,4000-4094", 200))),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(0))),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(200))),
    ];
    change_each(&world, &mut state, &Scope::Host, "ha", ports);
    forget_neighbours(&world);
    a.ping("10.60.0.4").unwrap();
    assert!(a.ping("10.60.0.3").is_err() && b.ping("10.60.0.1").is_ok());
    let text = world.make(&access_and_trunk()).to_string();
    assert!(text.contains("vlans.pvid: 200 -> 100") && text.contains("vlans.untagged: 200 -> 100"), "{text}");

    survive_every_fault_leanly(&world, &world.plan(&NetState::default()));
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn a_port_that_moves_to_another_bridge_and_fields_of_the_bridge() {
    let world = World::new("vlanmove", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_filtering_bridge(&mut state, "br0");
    add_bridge(&mut state, "br1", "10.61.0.1/24");
    for id in ["a", "b"] {
        add_veth(&mut state, id, "br0", &[]);
        edit(&mut state, &Scope::Host, &format!("h{id}")).attrs.vlans = Some(trunk("100-110", 7));
    }
    world.make(&state);

    // The kernel forgets a port's VLANs with its bridge; the plan does not.
    let there = state.clone();
    edit(&mut state, &Scope::Host, "ha").attrs.master = Some(Master::Of(name("br1")));
    survive_every_fault_leanly(&world, &world.plan(&state));
    world.make(&state);
    assert_eq!(shown(&world, "ha"), ["7 PVID Egress Untagged", "100-110"]);
    edit(&mut state, &Scope::Host, "ha").attrs.vlans = None;
    survive_every_fault_leanly(&world, &world.plan(&there));
    world.make(&there);
    assert_eq!(shown(&world, "ha"), ["7 PVID Egress Untagged", "100-110"]);

    // Fields of the bridge, each by itself; its default VLAN takes ports along that have it.
    let mut state = there;
    for id in ["a", "b"] {
        edit(&mut state, &Scope::Host, &format!("h{id}")).attrs.vlans = Some(PortVlans::access(1));
    }
    world.make(&state);
    let other = |state: &NetState| {
        let mut other = state.clone();
        let bridge = edit(&mut other, &Scope::Host, "br0");
        bridge_fields(bridge).default_pvid = Some(5);
        bridge_fields(bridge).vlan_protocol = Some(VlanProtocol::Dot1ad);
        edit(&mut other, &Scope::Host, "hb").attrs.vlans = Some(PortVlans::access(5));
        other
    };
    survive_every_fault_leanly(&world, &world.plan(&other(&state)));
    // What was taken along and is to stay comes back with the next look.
    let plan = world.plan(&other(&state));
    world.apply_with(&plan, knit_kernel::Deletes::Now, &mut knit_kernel::fault::Unobserved).unwrap();
    world.make(&other(&state));
    assert_eq!(shown(&world, "ha"), ["1 PVID Egress Untagged"]);
    assert_eq!(shown(&world, "hb"), ["5 PVID Egress Untagged"]);
    let info = world.host.ip_json(&["-d", "link", "show", "dev", "br0"])[0]["linkinfo"]["info_data"].clone();
    assert_eq!((&info["vlan_protocol"], &info["vlan_default_pvid"]), (&"802.1ad".into(), &5.into()));
    world.make(&state);
    let fields: &[Edit] = &[
        ("vlan_protocol", |link| bridge_fields(link).vlan_protocol = Some(VlanProtocol::Dot1ad)),
        ("vlan_filtering", |link| bridge_fields(link).vlan_filtering = Some(false)),
        ("vlan_filtering", |link| bridge_fields(link).vlan_filtering = Some(true)),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(0))),
    ];
    change_each(&world, &mut state, &Scope::Host, "br0", fields);
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}
