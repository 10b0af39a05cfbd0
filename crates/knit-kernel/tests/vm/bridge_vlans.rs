//! VLANs of bridge ports: access and trunk ports, changed in place, with traffic, failed at every step, and removed
//! without a trace.

use knit_model::link::{Bridge, Kind, Link, Master, PortVlans, VlanProtocol};
use knit_model::{NetState, Scope};
use serde_json::Value;

use crate::support::edits::{Edit, change_each, flush_neighbours};
use crate::support::faults::survive_every_fault_fast;
use crate::support::l2::{add, edit, vlan};
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{add_bridge, add_veth, name};

fn bridge_fields(link: &mut Link) -> &mut Bridge {
    let Kind::Bridge(bridge) = &mut link.kind else { panic!("not a bridge") };
    bridge
}

fn trunk(tagged: &str, native: u16) -> PortVlans {
    PortVlans::trunk(tagged.parse().unwrap(), native)
}

/// A bridge with VLAN filtering, itself in VLAN 100.
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
    // The route for the node's replies.
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

/// The VLANs of a port as `bridge -j vlan` shows them: each range with its flags.
fn shown(node: &TestNode, port: &str) -> Vec<String> {
    let text = node.host.output("bridge", &["-j", "-compressvlans", "vlan", "show", "dev", port]).unwrap();
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
    let node = TestNode::new("vlans", &["a", "b", "c", "d"]);
    let before = node.dumps();
    let mut state = access_and_trunk();
    survive_every_fault_fast(&node, &node.plan(&state));
    node.converge(&state);
    assert_eq!(shown(&node, "br0"), ["100 PVID Egress Untagged"]);
    assert_eq!(shown(&node, "ha"), ["100 PVID Egress Untagged"]);
    assert_eq!(shown(&node, "hd"), ["100", "200-300"]);
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| &node.sandboxes[number]);
    a.ping("10.60.0.3").unwrap();
    // The node itself is in the same VLAN, the third pod is not.
    a.ping("10.60.0.1").unwrap();
    assert!(a.ping("10.60.0.4").is_err() && c.ping("10.60.0.1").is_err());
    // The pod on the trunk has an interface in each VLAN; untagged packets do not pass.
    d.output("ping", &["-c1", "-i0.2", "-w5", "-I", "v100", "10.60.0.2"]).unwrap();
    d.output("ping", &["-c1", "-i0.2", "-w5", "-I", "v200", "10.60.0.4"]).unwrap();
    assert!(d.output("ping", &["-c1", "-W1", "-I", "net1", "10.60.0.3"]).is_err());

    // Each port changes in place, and nothing else changes.
    let ports: &[Edit] = &[
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(200))),
        ("vlans", |link| link.attrs.vlans = Some(trunk("5,7-9,4000-4094", 200))),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(0))),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(200))),
    ];
    change_each(&node, &mut state, &Scope::Host, "ha", ports);
    flush_neighbours(&node);
    a.ping("10.60.0.4").unwrap();
    assert!(a.ping("10.60.0.3").is_err() && b.ping("10.60.0.1").is_ok());
    let text = node.converge(&access_and_trunk()).to_string();
    assert!(text.contains("vlans.pvid: 200 -> 100") && text.contains("vlans.untagged: 200 -> 100"), "{text}");

    survive_every_fault_fast(&node, &node.plan(&NetState::default()));
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn a_port_that_moves_to_another_bridge_and_fields_of_the_bridge() {
    let node = TestNode::new("vlanmove", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_filtering_bridge(&mut state, "br0");
    add_bridge(&mut state, "br1", "10.61.0.1/24");
    for id in ["a", "b"] {
        add_veth(&mut state, id, "br0", &[]);
        edit(&mut state, &Scope::Host, &format!("h{id}")).attrs.vlans = Some(trunk("100-110", 7));
    }
    node.converge(&state);

    // The kernel removes a port's VLANs with its bridge; the plan restores them.
    let there = state.clone();
    edit(&mut state, &Scope::Host, "ha").attrs.master = Some(Master::Link(name("br1")));
    survive_every_fault_fast(&node, &node.plan(&state));
    node.converge(&state);
    assert_eq!(shown(&node, "ha"), ["7 PVID Egress Untagged", "100-110"]);
    edit(&mut state, &Scope::Host, "ha").attrs.vlans = None;
    survive_every_fault_fast(&node, &node.plan(&there));
    node.converge(&there);
    assert_eq!(shown(&node, "ha"), ["7 PVID Egress Untagged", "100-110"]);

    // Fields of the bridge, one by one; changing its default VLAN changes ports that use it.
    let mut state = there;
    for id in ["a", "b"] {
        edit(&mut state, &Scope::Host, &format!("h{id}")).attrs.vlans = Some(PortVlans::access(1));
    }
    node.converge(&state);
    let other = |state: &NetState| {
        let mut other = state.clone();
        let bridge = edit(&mut other, &Scope::Host, "br0");
        bridge_fields(bridge).default_pvid = Some(5);
        bridge_fields(bridge).vlan_protocol = Some(VlanProtocol::Dot1ad);
        edit(&mut other, &Scope::Host, "hb").attrs.vlans = Some(PortVlans::access(5));
        other
    };
    survive_every_fault_fast(&node, &node.plan(&other(&state)));
    // Ports that should keep their VLAN are restored by the next plan.
    let plan = node.plan(&other(&state));
    node.apply_with(&plan, knit_kernel::DeleteMode::Immediate, &mut knit_kernel::fault::NoFaults).unwrap();
    node.converge(&other(&state));
    assert_eq!(shown(&node, "ha"), ["1 PVID Egress Untagged"]);
    assert_eq!(shown(&node, "hb"), ["5 PVID Egress Untagged"]);
    let info = node.host.ip_json(&["-d", "link", "show", "dev", "br0"])[0]["linkinfo"]["info_data"].clone();
    assert_eq!((&info["vlan_protocol"], &info["vlan_default_pvid"]), (&"802.1ad".into(), &5.into()));
    node.converge(&state);
    let fields: &[Edit] = &[
        ("vlan_protocol", |link| bridge_fields(link).vlan_protocol = Some(VlanProtocol::Dot1ad)),
        ("vlan_filtering", |link| bridge_fields(link).vlan_filtering = Some(false)),
        ("vlan_filtering", |link| bridge_fields(link).vlan_filtering = Some(true)),
        ("vlans", |link| link.attrs.vlans = Some(PortVlans::access(0))),
    ];
    change_each(&node, &mut state, &Scope::Host, "br0", fields);
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}
