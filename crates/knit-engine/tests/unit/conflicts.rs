//! Conflicts of names, ranges and lower links, against an in-memory kernel.

use knit_engine::{Effect, Event, step};
use knit_ipam::Time;
use knit_model::Scope;
use knit_model::intent::{IntentSpec, NetworkIntent};

use crate::support::node::{Node, key, object, sandbox, scope, veth, with_eth0};

fn sample(name: &str, label: &str) -> knit_engine::StoredObject {
    object("PodConfig", "cnf", name, vec![veth(label, "pc0", "pcbr0", "192.168.100.0/24")])
}

fn two_pods() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 2_841_804, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 2_841_798, "cnf", "x")));
    node
}

#[test]
fn colliding_host_end_names_are_made_unique_and_kept() {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 12, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 2, "cnf", "y")));
    let (first, second) = (
        object("PodConfig", "cnf", "first", vec![veth("x", "pc", "br0", "10.0.0.0/24")]),
        object("PodConfig", "cnf", "second", vec![veth("y", "pc1", "br0", "10.0.0.0/24")]),
    );
    node.handle(Event::ObjectApplied(first.clone()));
    node.handle(Event::ObjectApplied(second.clone()));
    assert_eq!((node.problems("first"), node.problems("second")), (vec![], vec![]));
    let peer = |node: &Node| {
        let report = node.state.report(&key(&second)).unwrap();
        report.pods[0].interfaces[0].peer.clone().unwrap()
    };
    let derived = peer(&node);
    assert!(derived.as_str().starts_with("knit"), "{derived}");
    assert!(node.host_link("hpc12").is_some() && node.host_link(derived.as_str()).is_some());
    // The name is free now, but a rename would replace the veth pair.
    node.handle(Event::ObjectDeleted(key(&first)));
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!((peer(&node), node.applied_steps), (derived, steps));
    assert!(node.host_link("hpc12").is_none());
}

#[test]
fn names_are_unique_also_when_all_are_created_at_once() {
    let mut node = Node::with_kernel(with_eth0(&["a", "b", "c"]));
    node.handle(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "o",
        vec![veth("x", "pc", "br0", "10.0.0.0/24"), veth("y", "pc1", "br0", "10.0.0.0/24")],
    )));
    node.handle(Event::ObjectApplied(object(
        "PodConfig",
        "other",
        "o",
        vec![veth("x", "pc", "br0", "10.0.0.0/24")],
    )));
    // The sandboxes are known and nothing is configured yet: a start after losing the journal's tail.
    for sandbox in [sandbox("a", 12, "cnf", "x"), sandbox("b", 2, "cnf", "y"), sandbox("c", 3, "other", "x")]
    {
        node.state.record(&knit_engine::Record::SandboxUpdated(sandbox));
    }
    node.handle(Event::Resync);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    let mut names: Vec<_> = node.state.units.values().flat_map(|made| &made.host_links).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5, "two bridges and three ends: {names:?}");
}

#[test]
fn a_started_sandbox_keeps_its_labels_unless_it_is_another_instance() {
    let mut node = two_pods();
    let labelled = |label: &str, cookie: u64| {
        let mut started = sandbox("a", 2_841_804, "cnf", label);
        started.instance.cookie = cookie;
        started
    };
    node.handle(Event::SandboxUpdated(labelled("y", 7)));
    node.handle(Event::ObjectApplied(sample("o", "x")));
    // Reported again by a runtime that does not know the new label.
    node.handle(Event::SandboxStarted(labelled("x", 7)));
    assert!(node.link("a", "pc02841804").is_none());
    node.handle(Event::SandboxStarted(labelled("x", 8)));
    assert!(node.link("a", "pc02841804").is_some());
}

#[test]
fn network_moved_to_another_bridge_keeps_its_address() {
    let mut node = two_pods();
    let on = |bridge: &str| object("Veth", "cnf", "net", vec![veth("x", "n", bridge, "10.0.0.0/24")]);
    node.handle(Event::ObjectApplied(on("br1")));
    node.handle(Event::ObjectApplied(on("br2")));
    let report = node.state.report(&key(&on("br2"))).unwrap();
    assert_eq!(report.bridges[0].addresses[0].to_string(), "10.0.0.1/24");
    assert_eq!(report.warnings, Vec::<String>::new());
    assert!(node.host_link("br1").is_none());
}

#[test]
fn interface_recreated_as_another_kind_gets_its_sysctls() {
    let mut node = two_pods();
    let ra = |node: &Node| {
        let state = node.kernel.observe();
        state.scopes[&scope("a")].sysctls.get("net/ipv6/conf/n2841804/accept_ra").cloned()
    };
    let kind = |parent: Option<&str>| {
        let IntentSpec::Interface(mut intent) = veth("x", "n", "br1", "10.0.0.0/24") else { unreachable!() };
        if let Some(parent) = parent {
            intent.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
            (intent.parent, intent.master) = (Some(parent.to_owned()), None);
        }
        object("Veth", "cnf", "net", vec![IntentSpec::Interface(intent)])
    };
    node.handle(Event::ObjectApplied(kind(None)));
    assert_eq!(ra(&node).as_deref(), Some("0"));
    let mut changed = kind(None);
    let IntentSpec::Interface(intent) = &mut changed.intents[0].spec else { unreachable!() };
    intent.sysctls = [("ipv6/accept_ra".to_owned(), "2".to_owned())].into();
    node.handle(Event::ObjectApplied(changed));
    assert_eq!(ra(&node).as_deref(), Some("2"));
    node.handle(Event::ObjectApplied(kind(Some("eth0"))));
    assert_eq!(node.problems("net"), Vec::<String>::new());
    assert_eq!(ra(&node).as_deref(), Some("0"));
    assert!(
        node.state.original_values.is_empty(),
        "values of Knit's own interfaces are not restored: {:?}",
        node.state.original_values
    );
    // A stacked link has the MTU of its parent.
    assert_eq!(node.link("a", "n2841804").unwrap().attrs.mtu, Some(1450));
    // A missing parent is reported and the interface is deleted; other interfaces are not affected.
    node.handle(Event::ObjectApplied(kind(Some("eth9"))));
    let problems = node.problems("net");
    assert!(
        problems[0].contains("link n2841804: parent link eth9 does not exist on sandbox a"),
        "{problems:?}"
    );
    assert!(node.link("a", "n2841804").is_none());
}

#[test]
fn a_link_without_its_parent_is_a_problem_of_its_object_only() {
    let mut node = two_pods();
    let healthy = object("Veth", "cnf", "healthy", vec![veth("x", "v", "br1", "10.0.0.0/24")]);
    node.handle(Event::ObjectApplied(healthy.clone()));
    let IntentSpec::Interface(mut intent) = veth("x", "m", "br1", "10.1.0.0/24") else { unreachable!() };
    intent.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
    (intent.parent, intent.master) = (Some("eth9".to_owned()), None);
    let orphan = object("Macvlan", "cnf", "orphan", vec![IntentSpec::Interface(intent)]);
    node.handle(Event::ObjectApplied(orphan.clone()));
    assert_eq!(node.problems("healthy"), Vec::<String>::new());
    assert!(
        node.problems("orphan")[0].contains("parent link eth9 does not exist"),
        "{:?}",
        node.problems("orphan")
    );
    let ready = |object| node.state.report(&key(object)).unwrap().pods[0].interfaces[0].ready;
    assert!(ready(&healthy));
    assert!(!ready(&orphan), "the interface itself is not ready");
}

#[test]
fn an_object_that_cannot_be_satisfied_costs_nothing_but_its_own_pods() {
    let mut node = Node::with_kernel(with_eth0(&["a", "b", "c"]));
    for (id, number, namespace) in [("a", 1, "cnf"), ("b", 2, "cnf"), ("c", 3, "other")] {
        node.handle(Event::SandboxUpdated(sandbox(id, number, namespace, id)));
    }
    let orphan = |label: &str, parent: &str| {
        let IntentSpec::Interface(mut intent) = veth(label, "m", "br1", "10.1.0.0/24") else {
            unreachable!()
        };
        intent.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
        (intent.parent, intent.master) = (Some(parent.to_owned()), None);
        object("Macvlan", "cnf", "orphan", vec![IntentSpec::Interface(intent)])
    };
    node.handle(Event::ObjectApplied(orphan("a", "eth8")));
    for (namespace, label) in [("cnf", "b"), ("other", "c")] {
        let specs = vec![veth(label, "v", "br1", "10.0.0.0/24")];
        node.handle(Event::ObjectApplied(object("Veth", namespace, "healthy", specs)));
    }
    assert!(!node.problems("orphan").is_empty());
    let observed = |event: Event| {
        let mut state = node.state.clone();
        let effects = step(&mut state, event, Time(0)).into_iter();
        let units = effects.filter_map(|effect| match effect {
            Effect::Observe { unit, .. } => Some(unit.to_string()),
            _ => None,
        });
        units.collect::<Vec<_>>()
    };
    assert_eq!(observed(Event::ObjectApplied(orphan("a", "eth9"))), ["sandbox a"]);
    // A change in its namespace may solve the problem; one in another namespace cannot.
    let change = |namespace: &str| {
        let specs = vec![veth("no-such-pod", "w", "br2", "10.2.0.0/24")];
        Event::ObjectApplied(object("Veth", namespace, "new", specs))
    };
    assert_eq!(observed(change("cnf")), ["sandbox a"]);
    assert_eq!(observed(change("other")), [""; 0]);
}

#[test]
fn macvlan_on_a_macvlan_has_the_lower_link_as_parent() {
    let mut node = two_pods();
    let macvlan = |prefix: &str, parent: &str| {
        let IntentSpec::Interface(mut intent) = veth("x", prefix, "br1", "10.0.0.0/24") else {
            unreachable!()
        };
        intent.kind = knit_model::Kind::Macvlan(knit_model::link::Macvlan { parent: None, mode: None });
        (intent.parent, intent.master) = (Some(parent.to_owned()), None);
        IntentSpec::Interface(intent)
    };
    node.handle(Event::ObjectApplied(object(
        "Macvlan",
        "cnf",
        "tower",
        vec![macvlan("t", "l"), macvlan("l", "eth0")],
    )));
    assert_eq!(node.problems("tower"), Vec::<String>::new());
    let top = node.link("a", "t2841804").unwrap();
    assert_eq!(top.kind.parent().unwrap().as_str(), "eth0");
}

#[test]
fn network_created_after_its_interfaces_updates_their_bridge() {
    let mut node = two_pods();
    let IntentSpec::Interface(mut intent) = veth("x", "n", "vn-blue", "10.0.0.0/24") else { unreachable!() };
    (intent.ranges, intent.network) = (Vec::new(), Some("blue".to_owned()));
    node.handle(Event::ObjectApplied(object("Veth", "cnf", "net", vec![IntentSpec::Interface(intent)])));
    assert!(node.problems("net")[0].contains("there is no VirtualNetwork blue"));
    let blue = |isolated| {
        let ranges = vec!["10.0.0.0/24".parse().unwrap()];
        let intent = NetworkIntent { name: "blue".to_owned(), ranges, isolated, mtu: None, overlay: None };
        object("VirtualNetwork", "cnf", "blue", vec![IntentSpec::Network(intent)])
    };
    for isolated in [false, true, false] {
        node.handle(Event::ObjectApplied(blue(isolated)));
        let steps = node.applied_steps;
        node.handle(Event::Resync);
        assert_eq!(node.applied_steps, steps, "the resync had nothing to do");
        let host = &node.kernel.observe().scopes[&Scope::Host];
        assert_eq!(host.addresses.len(), usize::from(!isolated));
    }
}

#[test]
fn address_of_an_interface_that_failed_is_released() {
    let mut node = two_pods();
    let both = |range: &str| {
        let IntentSpec::Interface(mut intent) = veth("x", "t", "t0", "10.0.0.0/24") else { unreachable!() };
        intent.ranges.push(range.parse().unwrap());
        object("PodConfig", "cnf", "tiny", vec![IntentSpec::Interface(intent)])
    };
    node.handle(Event::ObjectApplied(both("10.9.0.0/30")));
    // The second pod gets an address of the first range and none of the second.
    assert!(node.problems("tiny")[0].contains("10.9.0.0/30 is exhausted"), "{:?}", node.problems("tiny"));
    assert_eq!(node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count(), 2);
    assert_eq!(node.replayed(), node.state.persistent());
}

#[test]
fn failed_deletion_is_reported_and_retried() {
    let mut node = two_pods();
    let before = node.kernel.observe();
    let object = sample("sample-a", "x");
    node.handle(Event::ObjectApplied(object.clone()));
    node.failing_unit = Some("sandbox a".to_owned());
    node.handle(Event::ObjectDeleted(key(&object)));
    let objects: Vec<_> =
        node.state.problems.values().flatten().map(|(object, _)| object.name.as_str()).collect();
    assert_eq!(objects, ["sample-a"]);
    node.failing_unit = None;
    node.handle(Event::Resync);
    assert_eq!(node.kernel.observe(), before);
    assert!(node.state.problems.is_empty());
}
