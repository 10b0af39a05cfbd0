//! Every link kind on the real kernel: made, seen, changed while it lives, used, and gone without a trace.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod edits;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_kernel::fault::Unobserved;
use knit_model::link::{Attrs, Kind, Link, MacvlanMode, Master};
use knit_model::{NetState, Scope};
use support::edits::{COMMON, Edit, change_each, forget_neighbours};
use support::states::{self, add_bridge, add_macvlan, add_tunnels, add_veth, add_vxlan, entries, name};
use support::world::{World, sandbox};

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
    let world = World::new("veth", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24", "fd50::3/64"]);
    world.make(&state);

    let reach = || {
        forget_neighbours(&world);
        world.sandboxes[0].ping("10.50.0.3").unwrap();
        world.sandboxes[1].ping("fd50::2").unwrap();
    };
    reach();
    // With a queue per CPU each birth would wait for all CPUs, and one is all that the kernel would leave in use.
    for (place, link) in [(&world.host, "ha"), (&world.sandboxes[0], "net1")] {
        let shown = place.ip(&["-d", "link", "show", link]);
        assert!(shown.contains("numtxqueues 1 numrxqueues 1 "), "{shown}");
    }
    change_each(&world, &mut state, &sandbox("a"), "net1", COMMON);
    change_each(&world, &mut state, &Scope::Host, "hb", COMMON);
    change_each(&world, &mut state, &Scope::Host, "br0", COMMON);
    let own: &[Edit] = &[
        ("stp", |link| bridge_fields(link).stp = Some(true)),
        ("forward_delay", |link| bridge_fields(link).forward_delay = Some(4)),
        ("ageing", |link| bridge_fields(link).ageing = Some(60)),
        ("priority", |link| bridge_fields(link).priority = Some(4096)),
        ("multicast_snooping", |link| bridge_fields(link).multicast_snooping = Some(false)),
        ("stp", |link| bridge_fields(link).stp = Some(false)),
    ];
    change_each(&world, &mut state, &Scope::Host, "br0", own);
    change_each(
        &world,
        &mut state,
        &Scope::Host,
        "hb",
        &[
            ("master", |link| link.attrs.master = Some(Master::Nothing)),
            ("master", |link| link.attrs.master = Some(Master::Of(name("br0")))),
            ("up", |link| link.attrs.up = Some(false)),
            ("up", |link| link.attrs.up = Some(true)),
        ],
    );
    reach();

    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn a_port_that_sends_back_what_came_by_it_does_so_from_its_birth_and_on_the_next_bridge() {
    let world = World::new("hairpin", &["a"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_bridge(&mut state, "br1", "10.51.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let port = |state: &mut NetState, change: fn(&mut Attrs)| {
        change(&mut state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs);
    };
    port(&mut state, |attrs| attrs.hairpin = Some(true));
    let shown = || world.host.output("bridge", &["-d", "link", "show", "dev", "ha"]).unwrap();
    world.make(&state);
    assert!(shown().contains("master br0") && shown().contains("hairpin on"), "{}", shown());
    for (on, word) in [(false, "hairpin off"), (true, "hairpin on")] {
        state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.hairpin = Some(on);
        world.make(&state);
        assert!(shown().contains(word), "{}", shown());
    }
    // The kernel forgets it with the bridge.
    port(&mut state, |attrs| attrs.master = Some(Master::Of(name("br1"))));
    world.make(&state);
    assert!(shown().contains("master br1") && shown().contains("hairpin on"), "{}", shown());

    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn two_macvlans_of_two_pods_on_one_link() {
    let world = World::new("macvlan", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    // A bridge carries nothing, not even between macvlans on it, while no port of it is up.
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &[]);
    add_macvlan(&mut state, "a", "br0", &["10.51.0.2/24", "fd51::2/64"]);
    add_macvlan(&mut state, "b", "br0", &["10.51.0.3/24", "fd51::3/64"]);
    world.make(&state);
    let seen = world.observe();
    let mv0 = seen.link(&sandbox("a"), &name("mv0")).unwrap();
    assert_eq!((mv0.kind.parent(), &mv0.born_from), (Some(&name("br0")), &Some(Scope::Host)));

    let reach = || {
        forget_neighbours(&world);
        world.sandboxes[0].ping("10.51.0.3").unwrap();
        world.sandboxes[1].ping("fd51::2").unwrap();
    };
    reach();
    change_each(&world, &mut state, &sandbox("a"), "mv0", COMMON);
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
    change_each(&world, &mut state, &sandbox("a"), "mv0", mode);
    reach();

    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn a_tunnel_between_two_pods() {
    let world = World::new("vxlan", &["a", "b"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    for (id, near, far, inner) in
        [("a", "10.50.0.2", "10.50.0.3", "10.52.0.2/24"), ("b", "10.50.0.3", "10.50.0.2", "10.52.0.3/24")]
    {
        add_veth(&mut state, id, "br0", &[&format!("{near}/24")]);
        add_vxlan(&mut state, id, [near, far], &[inner]);
    }
    world.make(&state);
    world.sandboxes[0].ping("10.52.0.3").unwrap();

    change_each(&world, &mut state, &sandbox("a"), "vx0", COMMON);
    let own: &[Edit] = &[
        ("ttl", |link| vxlan_fields(link).ttl = Some(33)),
        ("fdb_ageing", |link| vxlan_fields(link).fdb_ageing = Some(60)),
        ("remote", |link| vxlan_fields(link).remote = Some("0.0.0.0".parse().unwrap())),
        ("remote", |link| vxlan_fields(link).remote = Some("10.50.0.3".parse().unwrap())),
    ];
    change_each(&world, &mut state, &sandbox("a"), "vx0", own);
    world.sandboxes[0].ping("10.52.0.3").unwrap();

    // What the kernel takes only at birth makes the link again, with its address.
    for id in ["a", "b"] {
        vxlan_fields(state.scope(&sandbox(id)).links.get_mut(&name("vx0")).unwrap()).vni = 78;
    }
    let plan = world.make(&state);
    assert!(
        plan.to_string()
            .contains("made again: the kernel does not make this change of `vni` on a living vxlan"),
        "{plan}"
    );
    world.sandboxes[0].ping("10.52.0.3").unwrap();

    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn a_tunnel_goes_only_where_its_entries_say() {
    let world = World::new("entries", &["a"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_tunnels(&mut state);
    world.make(&state);
    let shown = || world.host.output("bridge", &["fdb", "show", "dev", "vx1"]).unwrap();
    assert!(shown().contains("02:00:00:00:00:01 dst 10.50.0.2 self permanent"), "{}", shown());
    // One entry that goes, one that changes and one that comes; then none.
    let own: &[Edit] = &[
        ("fdb", |link| {
            let other = [("02:00:00:00:00:02", "10.50.0.9"), ("02:00:00:00:00:03", "10.50.0.4")];
            vxlan_fields(link).fdb = Some(entries(&other));
        }),
        ("fdb", |link| vxlan_fields(link).fdb = Some(entries(&[]))),
        ("fdb", |link| vxlan_fields(link).fdb = Some(entries(&[("02:00:00:00:00:04", "10.50.0.5")]))),
    ];
    change_each(&world, &mut state, &Scope::Host, "vx1", own);
    assert!(!shown().contains("02:00:00:00:00:02") && shown().contains("02:00:00:00:00:04"), "{}", shown());
    // What someone adds by hand goes, and what they take comes back.
    world
        .host
        .output("bridge", &["fdb", "add", "02:00:00:00:00:0a", "dev", "vx1", "dst", "10.50.0.7"])
        .unwrap();
    world
        .host
        .output("bridge", &["fdb", "del", "02:00:00:00:00:04", "dev", "vx1", "dst", "10.50.0.5"])
        .unwrap();
    assert_eq!(world.make(&state).steps.len(), 1);
    assert!(!shown().contains("02:00:00:00:00:0a") && shown().contains("02:00:00:00:00:04"), "{}", shown());
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn one_of_everything_is_made_seen_and_gone_again() {
    let mut world = World::new("all", &["a"]);
    world.look_at_sysctl(&sandbox("a"), "net/ipv4/ip_forward");
    let before = world.dumps();
    let plan = world.make(&states::everything());
    world.apply_with(&plan.inverse(), Deletes::Now, &mut Unobserved).unwrap();
    world.assert_as_before(&before, "after undoing");
}

#[test]
fn a_bridge_keeps_its_mtu_whatever_its_ports_have() {
    let world = World::new("mtu", &["a"]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &[]);
    state.scope(&Scope::Host).links.get_mut(&name("ha")).unwrap().attrs.mtu = Some(1300);
    world.make(&state);
    let link = world.observe().link(&Scope::Host, &name("br0")).unwrap().clone();
    assert_eq!(link.attrs.mtu, Some(1500));
}

#[test]
fn both_ends_of_a_pair_may_live_in_one_namespace() {
    let world = World::new("pair", &[]);
    let before = world.dumps();
    let mut state = NetState::default();
    let veth = |peer: &str| {
        let peer = knit_model::link::Peer { scope: Scope::Host, name: name(peer) };
        Kind::Veth(knit_model::link::Veth { peer: Some(peer) })
    };
    let one = states::link(&Scope::Host, "one", veth("two"));
    let two = Link { owner: one.owner.clone(), ..states::link(&Scope::Host, "two", veth("one")) };
    state.scope(&Scope::Host).add_link(one);
    state.scope(&Scope::Host).add_link(two);
    world.make(&state);
    for deletes in [Deletes::Now, Deletes::Deferred] {
        world.make(&state);
        let plan = world.plan(&NetState::default());
        let applied = world.apply_with(&plan, deletes, &mut Unobserved).unwrap();
        world.kernel().reap(&applied.to_reap, &mut world.places()).unwrap();
        world.assert_as_before(&before, "after removal");
    }
}

#[test]
fn what_others_made_stays_untouched() {
    let world = World::new("foreign", &["a"]);
    let (host, pod) = (&world.host, &world.sandboxes[0]);
    host.ip(&["link", "add", "ext0", "type", "bridge"]);
    host.ip(&["link", "set", "ext0", "up"]);
    host.ip(&["addr", "add", "10.40.0.1/24", "dev", "ext0"]);
    host.ip(&["route", "add", "10.41.0.0/16", "via", "10.40.0.9", "dev", "ext0"]);
    host.ip(&["rule", "add", "from", "10.40.0.1", "lookup", "7500", "priority", "7499"]);
    host.ip(&["neigh", "add", "10.40.0.7", "lladdr", "02:00:00:00:00:07", "dev", "ext0", "nud", "permanent"]);
    host.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pod.name()]);
    pod.ip(&["addr", "add", "10.40.1.2/24", "dev", "eth0"]);
    pod.ip(&["link", "set", "eth0", "up"]);
    let before = world.dumps();

    let mut state = states::everything();
    // Nothing takes a sysctl back but undoing the plan that set it.
    state.scope(&sandbox("a")).sysctls.clear();
    world.make(&state);
    // Only the stated field of a link that is not Knit's is changed, and it comes back.
    let mut eth0 = Link::new(name("eth0"), Kind::Other { name: "veth".to_owned() });
    eth0.attrs = Attrs { mtu: Some(1400), ..Attrs::default() };
    state.scope(&sandbox("a")).add_link(eth0);
    let plan = world.make(&state);
    assert_eq!(plan.steps.len(), 1, "{plan}");
    world.apply_with(&plan.inverse(), Deletes::Now, &mut Unobserved).unwrap();
    state.scope(&sandbox("a")).links.remove(&name("eth0"));
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}
