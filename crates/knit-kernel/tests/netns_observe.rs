//! What a look sees, and what verifying says.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::{Look, ScopeLook};
use knit_model::link::Kind;
use knit_model::{Scope, marks};
use support::states::{self, name, net};
use support::world::{World, sandbox};

fn world(test: &str) -> World {
    let mut world = World::new(test, &["a"]);
    world.look_at_sysctl(&sandbox("a"), "net/ipv4/ip_forward");
    world
}

#[test]
fn a_look_at_named_links_sees_them_as_a_look_at_all_does() {
    let world = world("named");
    world.make(&states::everything());
    let all = world.observe();
    let look =
        ScopeLook { neighbours: true, rules: true, ..ScopeLook::named([name("br0"), name("nowhere")]) };
    let look = Look::default().at(Scope::Host, look);
    let mut seen = world.kernel().observe(&look, &mut world.places()).unwrap();
    let (some, all) = (seen.scope(&Scope::Host).clone(), &all.scopes[&Scope::Host]);
    assert_eq!(some.links.keys().collect::<Vec<_>>(), [&name("br0")]);
    assert_eq!(some.links[&name("br0")], all.links[&name("br0")]);
    let mut neighbours = all.neighbours.clone();
    neighbours.retain(|key, _| key.link == name("br0"));
    assert_eq!((&some.rules, some.neighbours.len(), &some.neighbours), (&all.rules, 2, &neighbours));
    for (key, address) in some.addresses.iter().filter(|(_, address)| address.owned) {
        assert_eq!((&address.link, Some(address)), (&name("br0"), all.addresses.get(key)));
    }
    assert!(some.routes.values().any(|route| route.table == marks::HOST_TABLE && route.owned));
    assert!(some.routes.values().all(|route| route.via.iter().all(|hop| hop.link == name("br0"))));

    let look = ScopeLook { tables: Some([80].into()), ..ScopeLook::everything() };
    let mut seen =
        world.kernel().observe(&Look::default().at(sandbox("a"), look), &mut world.places()).unwrap();
    let tables: Vec<u32> = seen.scope(&sandbox("a")).routes.keys().map(|key| key.table).collect();
    assert_eq!(tables, [80]);
}

#[test]
fn a_named_port_of_a_bridge_has_no_routes_of_its_own() {
    let world = world("port");
    let host = &world.host;
    host.ip(&["link", "add", "bridge", "type", "bridge"]);
    host.ip(&["link", "add", "port", "type", "veth", "peer", "name", "far"]);
    host.ip(&["link", "set", "port", "up"]);
    host.ip(&["route", "add", "10.66.0.0/16", "dev", "port"]);
    let look = Look::default().at(Scope::Host, ScopeLook::named([name("port")]));
    let routes = || {
        let mut seen = world.kernel().observe(&look, &mut world.places()).unwrap();
        seen.scope(&Scope::Host).routes.values().map(|route| route.to.to_string()).collect::<Vec<_>>()
    };
    assert!(routes().contains(&"10.66.0.0/16".to_owned()), "{:?}", routes());
    host.ip(&["link", "set", "port", "master", "bridge"]);
    assert_eq!(routes(), [""; 0]);
}

#[test]
fn routes_of_knits_own_that_lead_nowhere_are_seen_without_a_link() {
    let world = world("deadends");
    let (host, mark, table) = (&world.host, marks::PROTOCOL.to_string(), marks::HOST_TABLE.to_string());
    let seen = |dead_ends: bool| {
        let look = ScopeLook { dead_ends, ..ScopeLook::named([]) };
        let look = Look::default().at(Scope::Host, look);
        let mut seen = world.kernel().observe(&look, &mut world.places()).unwrap();
        seen.scope(&Scope::Host).routes.values().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(seen(true), [""; 0], "also without the table");
    for (to, place, by) in [
        ("10.66.0.0/16", table.as_str(), mark.as_str()),
        ("fd66::/64", &table, &mark),
        ("10.67.0.0/16", "main", &mark),
        ("10.68.0.0/16", &table, "static"),
    ] {
        host.ip(&["route", "add", "unreachable", to, "table", place, "proto", by]);
    }
    assert_eq!(
        seen(true),
        [
            "unreachable 10.66.0.0/16 table 7500".to_owned(),
            "unreachable fd66::/64 metric 1024 table 7500".to_owned()
        ]
    );
    assert_eq!(seen(false), [""; 0]);
}

#[test]
fn of_a_sandbox_without_a_mark_only_links_and_routes_are_seen() {
    let world = world("unmarked");
    let (pod, scope) = (&world.sandboxes[0], sandbox("a"));
    pod.ip(&["link", "set", "lo", "up"]);
    pod.ip(&["rule", "add", "from", "10.9.0.1", "lookup", "80", "protocol", &marks::PROTOCOL.to_string()]);
    pod.ip(&["route", "add", "blackhole", "10.77.0.0/16"]);
    let look = ScopeLook { only_if_marked: true, ..ScopeLook::everything() };
    let look = Look::default().at(scope.clone(), look);
    let seen = || world.kernel().observe(&look, &mut world.places()).unwrap().scopes[&scope].clone();
    let unmarked = seen();
    assert_eq!(unmarked.links.keys().collect::<Vec<_>>(), [&name("lo")]);
    assert_eq!(unmarked.routes.values().filter(|route| route.to == net("10.77.0.0/16")).count(), 1);
    assert!(unmarked.addresses.is_empty() && unmarked.rules.is_empty());

    // A mark left behind by a Knit that has lost its memory: everything is seen, so that all of it can go.
    let everything =
        || world.kernel().observe(&whole(&scope), &mut world.places()).unwrap().scopes[&scope].clone();
    let left = ["blackhole", "10.78.0.0/16", "proto", &marks::PROTOCOL.to_string()];
    pod.ip(&[&["route", "add"][..], &left[..]].concat());
    let marked = seen();
    assert_eq!((marked.rules.len(), &marked), (1, &everything()));
    pod.ip(&[&["route", "del"][..], &left[..]].concat());
    assert!(seen().rules.is_empty());
    pod.ip(&["link", "property", "add", "dev", "lo", "altname", "knit-left"]);
    let marked = seen();
    assert_eq!(marked, everything());
    assert_eq!((marked.rules.len(), marked.addresses.is_empty()), (1, false));
}

fn whole(scope: &Scope) -> Look {
    Look::default().at(scope.clone(), ScopeLook::everything())
}

#[test]
fn a_look_at_one_family_leaves_out_the_other() {
    let world = world("family");
    world.make(&states::everything());
    for ipv6 in [false, true] {
        let look = ScopeLook { ipv6: Some(ipv6), ..ScopeLook::everything() };
        let look = Look::default().at(sandbox("a"), look);
        let mut seen = world.kernel().observe(&look, &mut world.places()).unwrap();
        let mut all = world.observe();
        let (seen, all) = (seen.scope(&sandbox("a")), all.scope(&sandbox("a")));
        all.addresses.retain(|_, address| address.address.addr().is_ipv6() == ipv6);
        all.routes.retain(|_, route| route.to.addr().is_ipv6() == ipv6);
        assert!(!all.addresses.is_empty() && !all.routes.is_empty());
        assert_eq!((&seen.addresses, &seen.routes), (&all.addresses, &all.routes));
    }
}

#[test]
fn what_the_kernel_or_others_made_is_seen_without_the_mark() {
    let world = world("marks");
    world.make(&states::everything());
    let pod = &world.sandboxes[0];
    pod.ip(&["addr", "add", "10.50.7.7/32", "dev", "net1"]);
    pod.ip(&["route", "add", "10.77.0.0/16", "via", "10.50.0.1", "dev", "net1"]);
    let seen = world.observe();
    let seen = &seen.scopes[&sandbox("a")];
    assert!(!seen.addresses[&(name("net1"), net("10.50.7.7/32"))].owned);
    assert!(seen.addresses[&(name("net1"), net("fd50::2/64"))].owned);
    let owned = |to: &str| seen.routes.values().find(|route| route.to == net(to)).unwrap().owned;
    assert_eq!([owned("10.77.0.0/16"), owned("10.50.0.0/24"), owned("0.0.0.0/0")], [false, false, true]);
    assert!(seen.routes.keys().all(|key| key.table != 255), "the local table is the kernel's own");
    assert_eq!(seen.links[&name("lo")].owner, None);
    assert_eq!(seen.links[&name("lo")].kind, Kind::Other { name: String::new() });
    assert!(seen.links[&name("mv0")].owner.is_some());
}

#[test]
fn verifying_says_in_words_what_is_missing() {
    let world = world("verify");
    let plan = world.make(&states::everything());
    let pod = &world.sandboxes[0];
    pod.ip(&["route", "del", "default"]);
    pod.ip(&["addr", "del", "fd50::2/64", "dev", "net1"]);
    pod.ip(&["link", "set", "vx0", "mtu", "1300"]);
    pod.ip(&["link", "del", "mv0"]);
    pod.set_sysctl("net/ipv4/ip_forward", "0");
    world.host.ip(&["-6", "rule", "del", "priority", "7501"]);
    world.host.ip(&["link", "set", "ha", "down"]);
    world.host.ip(&["neigh", "del", "10.50.0.99", "dev", "br0"]);
    let missing = world.kernel().verify(&plan, &mut world.places()).unwrap();
    for words in [
        "sandbox a: route 0.0.0.0/0 via 10.50.0.1 dev net1 is missing",
        "sandbox a: address fd50::2/64 dev net1 is missing",
        "sandbox a: link vx0: mtu is 1300, not 1400",
        "sandbox a: link mv0 is missing",
        "sandbox a: link net1 is up, but its far end is not",
        "sandbox a: sysctl net/ipv4/ip_forward is 0, not 1",
        "host: link ha: up is false, not true",
        "host: neighbour 10.50.0.99 lladdr 02:00:00:00:00:99 dev br0 is missing",
    ] {
        assert!(missing.iter().any(|line| line == words), "{words:?} is not in {missing:#?}");
    }
    assert!(missing.iter().any(|line| line.starts_with("host: rule 7501: ")), "{missing:#?}");
}
