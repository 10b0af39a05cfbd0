//! Every link kind: created, observed, changed in place, used, and removed without a trace.

use knit_kernel::DeleteMode;
use knit_kernel::fault::NoFaults;
use knit_model::link::{Attrs, Kind, Link, MacvlanMode, Master};
use knit_model::{NetState, Scope};

use crate::support::edits::{COMMON, Edit, change_each, flush_neighbours};
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{
    self, add_bridge, add_macvlan, add_tunnels, add_veth, add_vxlan, entries, name,
};

fn bridge_fields(link: &mut Link) -> &mut knit_model::link::Bridge {
    let Kind::Bridge(bridge) = &mut link.kind else { panic!("not a bridge") };
    bridge
}

fn vxlan_fields(link: &mut Link) -> &mut knit_model::link::Vxlan {
    let Kind::Vxlan(vxlan) = &mut link.kind else { panic!("not a vxlan") };
    vxlan
}

#[test]
fn two_pods_on_a_bridge() {
    let node = TestNode::new("veth", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24", "fd50::3/64"]);
    node.converge(&state);

    let reach = || {
        flush_neighbours(&node);
        node.sandboxes[0].ping("10.50.0.3").unwrap();
        node.sandboxes[1].ping("fd50::2").unwrap();
    };
    reach();
    // With a queue per CPU each creation would wait for all CPUs, and the kernel would use only one of them.
    for (namespace, link) in [(&node.host, "ha"), (&node.sandboxes[0], "net1")] {
        let shown = namespace.ip(&["-d", "link", "show", link]);
        assert!(shown.contains("numtxqueues 1 numrxqueues 1 "), "{shown}");
    }
    change_each(&node, &mut state, &sandbox("a"), "net1", COMMON);
    change_each(&node, &mut state, &Scope::Host, "hb", COMMON);
    change_each(&node, &mut state, &Scope::Host, "br0", COMMON);
    let own: &[Edit] = &[
        ("stp", |link| bridge_fields(link).stp = Some(true)),
        ("forward_delay", |link| bridge_fields(link).forward_delay = Some(4)),
        ("ageing", |link| bridge_fields(link).ageing = Some(60)),
        ("priority", |link| bridge_fields(link).priority = Some(4096)),
        ("multicast_snooping", |link| bridge_fields(link).multicast_snooping = Some(false)),
        ("stp", |link| bridge_fields(link).stp = Some(false)),
    ];
    change_each(&node, &mut state, &Scope::Host, "br0", own);
    change_each(
        &node,
        &mut state,
        &Scope::Host,
        "hb",
        &[
            ("master", |link| link.attrs.master = Some(Master::None)),
            ("master", |link| link.attrs.master = Some(Master::Link(name("br0")))),
            ("up", |link| link.attrs.up = Some(false)),
            ("up", |link| link.attrs.up = Some(true)),
        ],
    );
    reach();

    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn hairpin_mode_is_set_at_creation_and_kept_on_another_bridge() {
    let node = TestNode::new("hairpin", &["a"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_bridge(&mut state, "br1", "10.51.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let port = |state: &mut NetState, change: fn(&mut Attrs)| {
        change(&mut state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs);
    };
    port(&mut state, |attrs| attrs.hairpin = Some(true));
    let shown = || node.host.output("bridge", &["-d", "link", "show", "dev", "ha"]).unwrap();
    node.converge(&state);
    assert!(shown().contains("master br0") && shown().contains("hairpin on"), "{}", shown());
    for (on, word) in [(false, "hairpin off"), (true, "hairpin on")] {
        state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.hairpin = Some(on);
        node.converge(&state);
        assert!(shown().contains(word), "{}", shown());
    }
    // The kernel resets it with the bridge.
    port(&mut state, |attrs| attrs.master = Some(Master::Link(name("br1"))));
    node.converge(&state);
    assert!(shown().contains("master br1") && shown().contains("hairpin on"), "{}", shown());

    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn two_macvlans_of_two_pods_on_one_link() {
    let node = TestNode::new("macvlan", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    // Without a port that is up, a bridge has no carrier, and macvlans on it do not reach each other.
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &[]);
    add_macvlan(&mut state, "a", "br0", &["10.51.0.2/24", "fd51::2/64"]);
    add_macvlan(&mut state, "b", "br0", &["10.51.0.3/24", "fd51::3/64"]);
    node.converge(&state);
    let observed = node.observe();
    let mv0 = observed.link(&sandbox("a"), &name("mv0")).unwrap();
    assert_eq!((mv0.kind.parent(), &mv0.parent_scope), (Some(&name("br0")), &Some(Scope::Host)));

    let reach = || {
        flush_neighbours(&node);
        node.sandboxes[0].ping("10.51.0.3").unwrap();
        node.sandboxes[1].ping("fd51::2").unwrap();
    };
    reach();
    change_each(&node, &mut state, &sandbox("a"), "mv0", COMMON);
    let mode: &[Edit] = &[
        ("mode", |link| {
            let Kind::Macvlan(macvlan) = &mut link.kind else { panic!("not a macvlan") };
            macvlan.mode = Some(MacvlanMode::Private);
        }),
        ("mode", |link| {
            let Kind::Macvlan(macvlan) = &mut link.kind else { panic!("not a macvlan") };
            macvlan.mode = Some(MacvlanMode::Bridge);
        }),
    ];
    change_each(&node, &mut state, &sandbox("a"), "mv0", mode);
    reach();

    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn a_tunnel_between_two_pods() {
    let node = TestNode::new("vxlan", &["a", "b"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, near, far, inner) in
        [("a", "10.50.0.2", "10.50.0.3", "10.52.0.2/24"), ("b", "10.50.0.3", "10.50.0.2", "10.52.0.3/24")]
    {
        add_veth(&mut state, id, "br0", &[&format!("{near}/24")]);
        add_vxlan(&mut state, id, [near, far], &[inner]);
    }
    node.converge(&state);
    node.sandboxes[0].ping("10.52.0.3").unwrap();

    change_each(&node, &mut state, &sandbox("a"), "vx0", COMMON);
    let own: &[Edit] = &[
        ("ttl", |link| vxlan_fields(link).ttl = Some(33)),
        ("fdb_ageing", |link| vxlan_fields(link).fdb_ageing = Some(60)),
        ("remote", |link| vxlan_fields(link).remote = Some("0.0.0.0".parse().unwrap())),
        ("remote", |link| vxlan_fields(link).remote = Some("10.50.0.3".parse().unwrap())),
    ];
    change_each(&node, &mut state, &sandbox("a"), "vx0", own);
    node.sandboxes[0].ping("10.52.0.3").unwrap();

    // A field that is fixed at creation recreates the link, with its address.
    for id in ["a", "b"] {
        vxlan_fields(state.scope(&sandbox(id)).links.get_mut(&name("vx0")).unwrap()).vni = 78;
    }
    let plan = node.converge(&state);
    assert!(
        plan.to_string()
            .contains("recreated: the kernel cannot make this change of `vni` on an existing vxlan"),
        "{plan}"
    );
    node.sandboxes[0].ping("10.52.0.3").unwrap();

    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn a_tunnel_sends_only_to_its_forwarding_entries() {
    let node = TestNode::new("entries", &["a"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_tunnels(&mut state);
    node.converge(&state);
    let shown = || node.host.output("bridge", &["fdb", "show", "dev", "vx1"]).unwrap();
    assert!(shown().contains("02:00:00:00:00:01 dst 10.50.0.2 self permanent"), "{}", shown());
    // One entry is removed, one changes and one is added; then none.
    let own: &[Edit] = &[
        ("fdb", |link| {
            let other = [("02:00:00:00:00:02", "10.50.0.9"), ("02:00:00:00:00:03", "10.50.0.4")];
            vxlan_fields(link).fdb = Some(entries(&other));
        }),
        ("fdb", |link| vxlan_fields(link).fdb = Some(entries(&[]))),
        ("fdb", |link| vxlan_fields(link).fdb = Some(entries(&[("02:00:00:00:00:04", "10.50.0.5")]))),
    ];
    change_each(&node, &mut state, &Scope::Host, "vx1", own);
    assert!(!shown().contains("02:00:00:00:00:02") && shown().contains("02:00:00:00:00:04"), "{}", shown());
    // An entry added by hand is removed, and one removed by hand is restored.
    node.host
        .output("bridge", &["fdb", "add", "02:00:00:00:00:0a", "dev", "vx1", "dst", "10.50.0.7"])
        .unwrap();
    node.host
        .output("bridge", &["fdb", "del", "02:00:00:00:00:04", "dev", "vx1", "dst", "10.50.0.5"])
        .unwrap();
    assert_eq!(node.converge(&state).steps.len(), 1);
    assert!(!shown().contains("02:00:00:00:00:0a") && shown().contains("02:00:00:00:00:04"), "{}", shown());
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn one_of_everything_is_created_observed_and_removed() {
    let mut node = TestNode::new("all", &["a"]);
    node.observe_sysctl(&sandbox("a"), "net/ipv4/ip_forward");
    let before = node.dumps();
    let plan = node.converge(&states::everything());
    node.apply_with(&plan.inverse(), DeleteMode::Immediate, &mut NoFaults).unwrap();
    node.assert_unchanged(&before, "after the inverse");
}

#[test]
fn a_bridge_keeps_its_mtu_despite_its_ports() {
    let node = TestNode::new("mtu", &["a"]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &[]);
    state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.mtu = Some(1300);
    node.converge(&state);
    let link = node.observe().link(&Scope::Host, &name("br0")).unwrap().clone();
    assert_eq!(link.attrs.mtu, Some(1500));
}

#[test]
fn both_ends_of_a_pair_may_be_in_one_namespace() {
    let node = TestNode::new("pair", &[]);
    let before = node.dumps();
    let mut state = NetState::default();
    let veth = |peer: &str| {
        let peer = knit_model::link::VethPeer { scope: Scope::Host, name: name(peer) };
        Kind::Veth(knit_model::link::Veth { peer: Some(peer) })
    };
    let one = states::link(&Scope::Host, "one", veth("two"));
    let two = Link { owner: one.owner.clone(), ..states::link(&Scope::Host, "two", veth("one")) };
    state.scope(&Scope::Host).add_link(one);
    state.scope(&Scope::Host).add_link(two);
    node.converge(&state);
    for delete_mode in [DeleteMode::Immediate, DeleteMode::Deferred] {
        node.converge(&state);
        let plan = node.plan(&NetState::default());
        let applied = node.apply_with(&plan, delete_mode, &mut NoFaults).unwrap();
        node.kernel().delete_deferred(&applied.deferred_deletes, &mut node.namespaces()).unwrap();
        node.assert_unchanged(&before, "after removal");
    }
}

#[test]
fn foreign_objects_are_not_touched() {
    let node = TestNode::new("foreign", &["a"]);
    let (host, pod) = (&node.host, &node.sandboxes[0]);
    host.ip(&["link", "add", "ext0", "type", "bridge"]);
    host.ip(&["link", "set", "ext0", "up"]);
    host.ip(&["addr", "add", "10.40.0.1/24", "dev", "ext0"]);
    host.ip(&["route", "add", "10.41.0.0/16", "via", "10.40.0.9", "dev", "ext0"]);
    host.ip(&["rule", "add", "from", "10.40.0.1", "lookup", "7500", "priority", "7499"]);
    host.ip(&["neigh", "add", "10.40.0.7", "lladdr", "02:00:00:00:00:07", "dev", "ext0", "nud", "permanent"]);
    host.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pod.name()]);
    pod.ip(&["addr", "add", "10.40.1.2/24", "dev", "eth0"]);
    pod.ip(&["link", "set", "eth0", "up"]);
    let before = node.dumps();

    let mut state = states::everything();
    // Only the inverse of the plan restores a sysctl.
    state.scope(&sandbox("a")).sysctls.clear();
    node.converge(&state);
    // Only the given field of a foreign link is changed, and the inverse restores it.
    let mut eth0 = Link::new(name("eth0"), Kind::Other { name: "veth".to_owned() });
    eth0.attrs = Attrs { mtu: Some(1400), ..Attrs::default() };
    state.scope(&sandbox("a")).add_link(eth0);
    let plan = node.converge(&state);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    node.apply_with(&plan.inverse(), DeleteMode::Immediate, &mut NoFaults).unwrap();
    state.scope(&sandbox("a")).links.remove(&name("eth0"));
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}
