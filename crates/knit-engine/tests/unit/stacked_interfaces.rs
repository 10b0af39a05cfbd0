//! Interfaces stacked on each other, on a VRF of the pod, or on an Uplink and its limits.

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule, UplinkIntent};
use knit_model::link::{
    Bond, Ipvlan, IpvlanFlag, IpvlanMode, Kind, Macvlan, MacvlanMode, Macvtap, Master, Vlan, Vrf,
};
use knit_model::report::Phase;
use knit_model::{Link, Scope};

use crate::support::node::{Node, key, object, sandbox, scope, veth, with_eth0};

/// An interface with this name in pods with `net: x`.
fn interface(name: &str, kind: Kind, edit: impl FnOnce(&mut InterfaceIntent)) -> IntentSpec {
    let IntentSpec::Interface(mut intent) = veth("x", "unused", "unused", "10.9.0.0/24") else {
        unreachable!()
    };
    intent.name = NameRule::Exact(name.parse().unwrap());
    intent.kind = kind;
    intent.master = None;
    intent.ranges.clear();
    edit(&mut intent);
    IntentSpec::Interface(intent)
}

fn vlan(id: u16) -> Kind {
    Kind::Vlan(Vlan {
        parent: None,
        id,
        protocol: None,
        reorder_header: None,
        gvrp: None,
        mvrp: None,
        loose_binding: None,
        ingress_qos: None,
        egress_qos: None,
    })
}

fn on(parent: &str) -> impl FnOnce(&mut InterfaceIntent) {
    let parent = parent.to_owned();
    move |intent| intent.parent = Some(parent)
}

fn pair(name: &str, edit: impl FnOnce(&mut InterfaceIntent)) -> IntentSpec {
    interface(name, Kind::Veth(knit_model::link::Veth::default()), |intent| {
        intent.master = Some("br0".to_owned());
        edit(intent);
    })
}

fn uplink(vlans: Vec<(u16, u16)>, max_mtu: Option<u32>) -> StoredObject {
    let intent = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec!["cnf".to_owned()],
        kinds: Vec::new(),
        vlans,
        max_mtu,
    };
    object("Uplink", "", "fabric", vec![IntentSpec::Uplink(intent)])
}

/// A node with a NIC and one pod.
fn node() -> Node {
    let mut state = with_eth0(&["a"]);
    let mut nic = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs.mtu = Some(9000);
    state.scope(&Scope::Host).add_link(nic);
    let mut node = Node::with_kernel(state);
    node.handle(Event::SandboxUpdated(sandbox("a", 5, "cnf", "x")));
    node
}

#[test]
fn stacked_interface_is_created_after_its_parent_in_any_order_of_objects() {
    let mut node = node();
    let before = node.kernel.observe();
    let inner = object("Vlan", "cnf", "inner", vec![interface("vl8", vlan(8), on("vl7"))]);
    let outer = object("Vlan", "cnf", "outer", vec![interface("vl7", vlan(7), on("net1"))]);
    let below = object("Veth", "cnf", "below", vec![pair("net1", |intent| intent.attrs.mtu = Some(1400))]);
    let early = object("Vlan", "cnf", "early", vec![interface("vl9", vlan(9), on("eth0"))]);
    for object in [&inner, &early, &outer, &below] {
        node.handle(Event::ObjectApplied(object.clone()));
    }
    for object in [&inner, &outer, &below, &early] {
        assert_eq!(node.state.report(&key(object)).unwrap().phase, Phase::Configured);
    }
    let top = node.link("a", "vl8").unwrap();
    assert_eq!(top.kind.parent().unwrap().as_str(), "vl7");
    assert_eq!(top.attrs.mtu, Some(1400), "the MTU follows the parent");
    // Without their parent they are deleted, and recreated with it.
    node.handle(Event::ObjectDeleted(key(&outer)));
    assert!(node.link("a", "vl8").is_none() && node.link("a", "net1").is_some());
    node.handle(Event::ObjectApplied(outer.clone()));
    assert!(node.link("a", "vl8").is_some());
    for object in [&below, &outer, &inner, &early] {
        node.handle(Event::ObjectDeleted(key(object)));
    }
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn parent_cycle_is_rejected_and_other_interfaces_are_configured() {
    let mut node = node();
    let cycle = vec![
        interface("vl1", vlan(1), on("vl2")),
        interface("vl2", vlan(2), on("vl1")),
        pair("net1", |_| ()),
    ];
    node.handle(Event::ObjectApplied(object("PodConfig", "cnf", "cycle", cycle)));
    assert_eq!(
        node.problems("cycle"),
        [
            "spec.entries[0]: interface vl2 of pod cnf/a, its parent, cannot be created",
            "spec.entries[1]: interface vl1 of pod cnf/a, its parent, cannot be created",
        ]
    );
    assert!(node.link("a", "net1").is_some());
}

#[test]
fn uplink_limits_vlans_and_mtu() {
    let mut node = node();
    node.handle(Event::ObjectApplied(uplink(vec![(100, 199), (300, 300)], Some(2000))));
    let big = |intent: &mut InterfaceIntent| {
        intent.parent = Some("fabric".to_owned());
        intent.attrs.mtu = Some(2001);
    };
    let macvlan = Kind::Macvlan(Macvlan { parent: None, mode: Some(MacvlanMode::Bridge) });
    let intents = vec![
        interface("vl150", vlan(150), on("fabric")),
        interface("vl50", vlan(50), on("fabric")),
        interface("vl151", vlan(151), big),
        interface("mv0", macvlan, on("fabric")),
        // The tag of a VLAN on the macvlan leaves through the uplink unchanged.
        interface("hidden", vlan(51), on("mv0")),
        interface("shown", vlan(152), on("mv0")),
        // Inside an allowed VLAN the inner tag is not limited.
        interface("second", vlan(51), on("vl150")),
    ];
    node.handle(Event::ObjectApplied(object("PodConfig", "cnf", "tags", intents)));
    assert_eq!(
        node.problems("tags"),
        [
            "spec.entries[1]: uplink fabric is not open to VLAN 50, open VLANs are 100-199, 300",
            "spec.entries[2]: uplink fabric allows an MTU of at most 2000",
            "spec.entries[4]: uplink fabric is not open to VLAN 51, open VLANs are 100-199, 300",
        ]
    );
    let link = node.link("a", "vl150").unwrap();
    assert_eq!((link.parent_scope.as_ref(), link.attrs.mtu), (Some(&Scope::Host), Some(2000)));
    assert!(node.link("a", "shown").is_some() && node.link("a", "second").is_some());
    // No VLAN is allowed by default.
    node.handle(Event::ObjectApplied(uplink(Vec::new(), None)));
    assert_eq!(
        node.problems("tags")[0],
        "spec.entries[0]: uplink fabric is not open to VLAN 150, no VLAN is open"
    );
    assert!(node.link("a", "vl150").is_none());
}

#[test]
fn routes_of_a_vrf_port_are_in_the_vrfs_table() {
    let mut node = node();
    let before = node.kernel.observe();
    let port = pair("net1", |intent| {
        intent.vrf = Some("red".to_owned());
        intent.ranges = vec!["10.9.0.0/24".parse().unwrap()];
        intent.gateways = vec!["10.9.0.1".parse().unwrap()];
    });
    let port = object("Veth", "cnf", "port", vec![port]);
    let red = object(
        "Vrf",
        "cnf",
        "red",
        vec![interface("red", Kind::Vrf(Vrf { table: 1010 }), |intent| intent.ranges.clear())],
    );
    node.handle(Event::ObjectApplied(port.clone()));
    assert_eq!(
        node.problems("port"),
        ["spec.entries[0]: there is no VRF red in pod cnf/a: a Vrf object makes one"]
    );
    node.handle(Event::ObjectApplied(red.clone()));
    assert_eq!(node.problems("port"), Vec::<String>::new());
    let pod = node.kernel.observe().scopes[&scope("a")].clone();
    let link = &pod.links[&"net1".parse().unwrap()];
    assert_eq!(link.attrs.master, Some(Master::Link("red".parse().unwrap())));
    assert!(pod.routes.keys().filter(|route| route.to.prefix_len() == 0).all(|route| route.table == 1010));
    assert_eq!(pod.rules.iter().filter(|rule| rule.vrf).count(), 2);
    let report = node.state.report(&key(&port)).unwrap();
    let interface = &report.pods[0].interfaces[0];
    assert_eq!(interface.vrf.as_ref().unwrap().as_str(), "red");
    assert_eq!(interface.master.as_ref().unwrap().as_str(), "br0");
    // Without its VRF the interface is deleted instead of using the pod's main table.
    node.handle(Event::ObjectDeleted(key(&red)));
    assert!(node.link("a", "net1").is_none() && node.link("a", "red").is_none());
    node.handle(Event::ObjectDeleted(key(&port)));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn ipvlans_on_one_parent_share_the_mode_of_the_first_object() {
    let mut node = node();
    let ipvlan =
        |mode| Kind::Ipvlan(Ipvlan { parent: None, mode: Some(mode), flag: Some(IpvlanFlag::Bridge) });
    node.handle(Event::ObjectApplied(uplink(Vec::new(), None)));
    let first =
        object("Ipvlan", "cnf", "first", vec![interface("iv0", ipvlan(IpvlanMode::L2), on("fabric"))]);
    let second =
        object("Ipvlan", "cnf", "second", vec![interface("iv1", ipvlan(IpvlanMode::L3), on("fabric"))]);
    let apart = object("Ipvlan", "cnf", "apart", vec![interface("iv2", ipvlan(IpvlanMode::L3), on("eth0"))]);
    for object in [&first, &second, &apart] {
        node.handle(Event::ObjectApplied((*object).clone()));
    }
    assert_eq!(
        node.problems("second"),
        [
            "spec.entries[0]: all ipvlans on fabric share mode and flag, and ipvlan/first in cnf, which is older, requests different ones"
        ]
    );
    assert!(node.link("a", "iv0").is_some() && node.link("a", "iv2").is_some());
    let link = node.link("a", "iv0").unwrap();
    assert_eq!((link.attrs.mac, link.attrs.arp), (None, Some(true)));
    assert_eq!(node.link("a", "iv2").unwrap().attrs.arp, Some(false));
}

#[test]
fn dummy_has_a_single_address_and_no_arp() {
    let mut node = node();
    let dummy = Kind::Dummy(knit_model::link::Dummy {});
    let intent = interface("own0", dummy, |intent| intent.fixed = vec!["10.9.0.1/32".parse().unwrap()]);
    node.handle(Event::ObjectApplied(object("Dummy", "cnf", "own", vec![intent])));
    assert_eq!(node.problems("own"), Vec::<String>::new());
    let attrs = node.link("a", "own0").unwrap().attrs;
    assert_eq!((attrs.arp, attrs.multicast, attrs.mac.is_some()), (Some(false), Some(false), true));
}

fn bond(ports: &[&str]) -> IntentSpec {
    let ports = ports.iter().map(|port| (*port).to_owned()).collect();
    interface("bond0", Kind::Bond(Bond::default()), |intent| {
        intent.ports = ports;
        intent.attrs.mtu = Some(1400);
    })
}

#[test]
fn members_of_a_bond_are_its_ports_and_have_its_mtu() {
    let mut node = node();
    let members = vec![pair("m1", |_| ()), pair("m2", |_| ())];
    let members = object("PodConfig", "cnf", "members", members);
    node.handle(Event::ObjectApplied(members.clone()));
    let own_mac = node.link("a", "m1").unwrap().attrs.mac;
    // A member that is missing is reported, and the bond works with the others.
    let incomplete = object("Bond", "cnf", "both", vec![bond(&["m1", "m2", "m3"])]);
    node.handle(Event::ObjectApplied(incomplete));
    assert_eq!(node.problems("both"), ["spec.entries[0]: there is no interface m3 of Knit in pod cnf/a"]);
    for name in ["m1", "m2"] {
        let member = node.link("a", name).unwrap();
        assert_eq!(member.attrs.master, Some(Master::Link("bond0".parse().unwrap())));
        assert_eq!(member.attrs.mtu, Some(1400));
    }
    // Another bond cannot have the same member.
    let complete = object("Bond", "cnf", "both", vec![bond(&["m1", "m2"])]);
    node.handle(Event::ObjectApplied(complete.clone()));
    let other =
        interface("bond1", Kind::Bond(Bond::default()), |intent| intent.ports = vec!["m1".to_owned()]);
    let other = object("Bond", "cnf", "other", vec![other]);
    node.handle(Event::ObjectApplied(other.clone()));
    assert_eq!(node.problems("other"), ["spec.entries[0]: interface m1 of pod cnf/a is a port of bond0"]);
    node.handle(Event::ObjectDeleted(key(&other)));
    // Without the bond they are interfaces of their own again.
    node.handle(Event::ObjectDeleted(key(&complete)));
    let member = node.link("a", "m1").unwrap();
    assert_eq!((&member.attrs.master, member.attrs.mac), (&Some(Master::None), own_mac));
}

#[test]
fn a_member_of_a_bond_has_no_other_master() {
    let mut node = node();
    let vrf = interface("red", Kind::Vrf(Vrf { table: 10 }), |_| ());
    let member = pair("m1", |intent| intent.vrf = Some("red".to_owned()));
    node.handle(Event::ObjectApplied(object("PodConfig", "cnf", "all", vec![vrf, bond(&["m1"]), member])));
    assert_eq!(
        node.problems("all"),
        ["spec.entries[2]: interface m1 is a port of bond0, so it can have no other master"]
    );
}

#[test]
fn a_macvtap_on_a_macvlan_is_on_the_parent_of_both() {
    let mut node = node();
    node.handle(Event::ObjectApplied(uplink(Vec::new(), None)));
    let macvlan = Kind::Macvlan(Macvlan { parent: None, mode: Some(MacvlanMode::Bridge) });
    let intents = vec![
        interface("mv0", macvlan, on("fabric")),
        interface("mt0", Kind::Macvtap(Macvtap::default()), on("mv0")),
    ];
    node.handle(Event::ObjectApplied(object("PodConfig", "cnf", "stack", intents)));
    let macvtap = node.link("a", "mt0").unwrap();
    assert_eq!(macvtap.kind.parent().unwrap().as_str(), "eno1");
    assert_eq!(macvtap.parent_scope, Some(Scope::Host));
}
