//! What the engine decides on one node, event by event, with a kernel made of plain data.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Effect, Event, Unit};
use knit_model::intent::IntentSpec;
use knit_model::report::Phase;
use knit_model::{Rule, Scope};
use proptest::prelude::*;
use support::node::{Node, bridge, eth0_mtu, key, object, sandbox, veth, with_eth0};

fn sample(name: &str, label: &str) -> knit_engine::StoredObject {
    object(
        "PodConfig",
        "cnf",
        name,
        vec![veth(label, "pc0", "pcbr0", "192.168.100.0/24"), veth(label, "pc1", "pcbr1", "192.168.99.0/24")],
    )
}

fn two_pods() -> Node {
    let mut node = Node::holding(with_eth0(&["a", "b"]));
    node.hear(Event::SandboxSeen(sandbox("a", 2_841_804, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 2_841_798, "cnf", "x")));
    node
}

#[test]
fn a_sandbox_is_new_until_something_is_known_of_it() {
    let looks = |node: &mut Node, event: Event| -> Vec<bool> {
        let effects = knit_engine::step(&mut node.state.clone(), event, knit_ipam::Time(1));
        let look = |effect| match effect {
            Effect::Observe { unit: Unit::Sandbox(_), look } => Some(look.is_new),
            _ => None,
        };
        effects.into_iter().filter_map(look).collect()
    };
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("sample-a", "y")));
    let change = Event::ObjectApplied(object("PodNetworkConfig", "cnf", "mtu", vec![eth0_mtu("x", 1400)]));
    assert_eq!(looks(&mut node, change.clone()), [true, true]);
    node.hear(change);
    assert_eq!(looks(&mut node, Event::Resync), [false, false]);

    let mut ruled = veth("x", "pc0", "pcbr9", "192.168.98.0/24");
    let IntentSpec::Interface(want) = &mut ruled else { panic!("a veth is an interface") };
    want.rules.push(Rule::from_address("192.168.98.2/32".parse().unwrap(), 80, 80));
    want.master = None;
    let mut node = two_pods();
    let ruled = Event::ObjectApplied(object("PodConfig", "cnf", "ruled", vec![ruled]));
    assert_eq!(looks(&mut node, ruled), [false, false]);
}

#[test]
fn the_walkthrough_gives_its_names_addresses_and_bridges() {
    let mut node = two_pods();
    let object = sample("sample-a", "x");
    node.hear(Event::ObjectApplied(object.clone()));

    let report = node.state.report(&key(&object)).unwrap();
    assert_eq!((report.phase, report.problems.len()), (Phase::Configured, 0));
    let lines: Vec<String> = report
        .pods
        .iter()
        .flat_map(|pod| &pod.interfaces)
        .map(|interface| {
            format!(
                "{} {} {} {}",
                interface.name,
                interface.addresses[0],
                interface.peer.as_ref().unwrap(),
                interface.master.as_ref().unwrap()
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            "pc02841804 192.168.100.2/24 hpc02841804 pcbr0",
            "pc12841804 192.168.99.2/24 hpc12841804 pcbr1",
            "pc02841798 192.168.100.3/24 hpc02841798 pcbr0",
            "pc12841798 192.168.99.3/24 hpc12841798 pcbr1",
        ]
    );
    let bridges: Vec<String> =
        report.bridges.iter().map(|bridge| format!("{} {}", bridge.name, bridge.addresses[0])).collect();
    assert_eq!(bridges, ["pcbr0 192.168.100.1/24", "pcbr1 192.168.99.1/24"]);
    assert!(node.link("a", "pc02841804").is_some() && node.host_link("hpc12841798").is_some());
}

#[test]
fn the_host_keeps_its_main_table_to_itself() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    let host = &node.kernel.observe().scopes[&Scope::Host];
    assert!(host.addresses.values().all(|address| address.noprefixroute));
    assert!(host.routes.keys().all(|route| route.table == knit_model::marks::HOST_TABLE));
    assert_eq!(host.rules.len(), 2);
}

#[test]
fn deleting_the_object_gives_back_everything() {
    let mut node = two_pods();
    let before = node.kernel.observe();
    let object = sample("sample-a", "x");
    node.hear(Event::ObjectApplied(object.clone()));
    assert_ne!(node.kernel.observe(), before);
    node.hear(Event::ObjectDeleted(key(&object)));
    assert_eq!(node.kernel.observe(), before);
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
    assert!(node.state.made.is_empty());
}

#[test]
fn two_objects_share_a_bridge_and_one_may_go() {
    let mut node = two_pods();
    node.hear(Event::SandboxSeen(sandbox("c", 77, "cnf", "y")));
    let (first, second) = (
        sample("first", "x"),
        object("PodConfig", "cnf", "second", vec![veth("y", "q0", "pcbr0", "192.168.100.0/24")]),
    );
    node.hear(Event::ObjectApplied(first.clone()));
    node.hear(Event::ObjectApplied(second));
    assert_eq!(
        node.state.report(&node.state.objects.keys().nth(1).unwrap().clone()).unwrap().pods[0].interfaces[0]
            .addresses[0]
            .to_string(),
        "192.168.100.4/24"
    );
    node.hear(Event::ObjectDeleted(key(&first)));
    assert!(node.host_link("pcbr0").is_some() && node.link("c", "q077").is_some());
    assert!(node.host_link("pcbr1").is_none());
}

#[test]
fn without_its_label_a_pod_loses_exactly_that() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    let mut unlabelled = sandbox("a", 2_841_804, "cnf", "x");
    unlabelled.labels.clear();
    node.hear(Event::SandboxSeen(unlabelled));
    assert!(node.link("a", "pc02841804").is_none() && node.host_link("hpc02841804").is_none());
    assert!(node.link("a", "eth0").is_some() && node.link("b", "pc02841798").is_some());
}

#[test]
fn a_sandbox_that_is_gone_leaves_nothing_on_the_host() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    // Someone still holds the namespace, so its host ends are there until they are cut off.
    for name in ["a", "b"] {
        node.hear(Event::SandboxGone(knit_model::SandboxId(name.to_owned())));
    }
    assert!(
        node.kernel
            .observe()
            .scopes
            .get(&Scope::Host)
            .is_none_or(|host| host.links.is_empty() && host.rules.is_empty())
    );
    assert!(node.state.made.is_empty());
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
}

#[test]
fn old_values_of_eth0_come_back() {
    let mut node = two_pods();
    let object = object("PrimaryNetwork", "cnf", "mtu", vec![eth0_mtu("x", 1300)]);
    node.hear(Event::ObjectApplied(object.clone()));
    assert_eq!(node.link("a", "eth0").unwrap().attrs.mtu, Some(1300));
    // A second change does not make the first one the old value.
    let again = support::node::object("PrimaryNetwork", "cnf", "mtu", vec![eth0_mtu("x", 1200)]);
    node.hear(Event::ObjectApplied(again));
    assert_eq!(node.link("b", "eth0").unwrap().attrs.mtu, Some(1200));
    node.hear(Event::ObjectDeleted(key(&object)));
    assert_eq!(node.link("a", "eth0").unwrap().attrs.mtu, Some(1450));
    assert!(node.state.held.is_empty());
}

#[test]
fn the_first_object_keeps_an_interface_that_two_want() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("first", "x")));
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "second",
        vec![veth("x", "pc0", "other0", "10.5.0.0/24")],
    )));
    assert_eq!(node.problems("first"), Vec::<String>::new());
    assert_eq!(
        node.problems("second"),
        [
            "spec.entries[0]: interface pc02841804 of pod cnf/a is asked for already by podconfig/first in cnf, which was first",
            "spec.entries[0]: interface pc02841798 of pod cnf/b is asked for already by podconfig/first in cnf, which was first",
        ]
    );
    // When the first goes, the second gets its turn.
    let first = node.state.objects.keys().find(|key| key.name == "first").unwrap().clone();
    node.hear(Event::ObjectDeleted(first));
    assert_eq!(node.problems("second"), Vec::<String>::new());
    assert!(node.link("a", "pc02841804").is_some());
}

#[test]
fn two_tenants_may_use_the_same_names_and_ranges() {
    let mut node = two_pods();
    node.hear(Event::SandboxSeen(sandbox("c", 77, "other", "x")));
    node.hear(Event::ObjectApplied(sample("mine", "x")));
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "other",
        "theirs",
        vec![veth("x", "pc0", "pcbr0", "192.168.100.0/24")],
    )));
    let theirs = node.state.objects.keys().find(|key| key.name == "theirs").unwrap().clone();
    let report = node.state.report(&theirs).unwrap();
    assert_eq!(report.phase, Phase::Configured);
    assert_eq!(report.bridges[0].asked, "pcbr0");
    assert_ne!(report.bridges[0].name.as_str(), "pcbr0");
    assert!(report.bridges[0].addresses.is_empty());
    assert!(
        report.warnings[0]
            .contains("has no address of 192.168.100.0/24: bridge pcbr0 of another namespace has it"),
        "{:?}",
        report.warnings
    );
    assert_eq!(report.pods[0].interfaces[0].addresses[0].to_string(), "192.168.100.2/24");
}

#[test]
fn an_exhausted_range_is_said_in_words_and_others_go_on() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "tiny",
        vec![veth("x", "t", "tiny0", "10.0.0.0/30")],
    )));
    let problems = node.problems("tiny");
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("10.0.0.0/30 is exhausted"), "{problems:?}");
    let tiny = node.state.objects.keys().next().unwrap().clone();
    let ready =
        node.state.report(&tiny).unwrap().pods.iter().filter(|pod| !pod.interfaces.is_empty()).count();
    assert_eq!((ready, node.state.report(&tiny).unwrap().phase), (1, Phase::Configuring));
    // When the one that has the address goes, the other has it at once.
    let has = |unit: &&Unit| {
        node.state.made[*unit].interfaces.iter().any(|(_, one)| one.name.as_str().starts_with('t'))
    };
    let Some(Unit::Sandbox(first)) = node.state.made.keys().find(has).cloned() else {
        panic!("nobody has it")
    };
    node.hear(Event::SandboxGone(first));
    assert_eq!(node.problems("tiny"), Vec::<String>::new());
    assert_eq!(node.state.report(&tiny).unwrap().phase, Phase::Configured);
}

#[test]
fn a_bridge_named_like_a_link_of_the_host_is_refused() {
    let mut kernel = with_eth0(&["a"]);
    kernel.scope(&Scope::Host).add_link(knit_model::Link::new(
        "docker0".parse().unwrap(),
        knit_model::Kind::Other { name: "bridge".to_owned() },
    ));
    let before = kernel.clone();
    let mut node = Node::holding(kernel);
    node.hear(Event::SandboxSeen(sandbox("a", 5, "cnf", "x")));
    node.hear(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "greedy",
        vec![veth("x", "g", "docker0", "10.0.0.0/24")],
    )));
    assert!(
        node.problems("greedy")[0].contains("docker0 exists, and Knit did not make it"),
        "{:?}",
        node.problems("greedy")
    );
    assert_eq!(node.kernel.observe().scopes[&Scope::Host], before.scopes[&Scope::Host]);
}

#[test]
fn an_attach_that_fails_leaves_no_address_and_no_bridge_behind() {
    let mut node = two_pods();
    node.broken = Some("sandbox".to_owned());
    let before = node.kernel.observe();
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    assert!(node.problems("sample-a").iter().any(|problem| problem.contains("it is broken")));
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
    // Its pods still match, so the bridges wait for the next try; when the object goes they go.
    let object = node.state.objects.keys().next().unwrap().clone();
    node.hear(Event::ObjectDeleted(object));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn a_bridge_object_stands_without_pods_and_stays_while_it_is_used() {
    let mut node = two_pods();
    let standing = object("Bridge", "cnf", "br", vec![bridge("pcbr0", "192.168.100.0/24")]);
    node.hear(Event::ObjectApplied(standing.clone()));
    assert_eq!(node.state.report(&key(&standing)).unwrap().phase, Phase::Configured);
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    node.hear(Event::ObjectDeleted(key(&standing)));
    assert!(node.host_link("pcbr0").is_some());
    node.hear(Event::ObjectDeleted(key(&sample("sample-a", "x"))));
    assert!(node.host_link("pcbr0").is_none());
}

#[test]
fn what_someone_deletes_by_hand_comes_back_at_the_next_look() {
    let mut node = two_pods();
    node.hear(Event::ObjectApplied(sample("sample-a", "x")));
    let whole = node.kernel.observe();
    let mut damaged = whole.clone();
    damaged.scope(&support::node::scope("a")).addresses.clear();
    node.kernel = support::kernel::Kernel::holding(damaged);
    node.hear(Event::Resync);
    assert_eq!(node.kernel.observe(), whole);
}

#[test]
fn a_field_that_is_taken_out_of_an_object_goes_back() {
    let mut node = two_pods();
    let mut loud = object("Bridge", "cnf", "br", vec![bridge("pcbr0", "192.168.100.0/24")]);
    let quiet = loud.clone();
    if let knit_model::intent::IntentSpec::Bridge(want) = &mut loud.intents[0].spec {
        want.bridge.stp = Some(true);
        want.attrs.mtu = Some(9000);
    }
    let seen = |node: &Node| {
        let link = node.host_link("pcbr0").unwrap();
        let knit_model::Kind::Bridge(bridge) = link.kind else { panic!("{link:?}") };
        (bridge.stp, link.attrs.mtu)
    };
    node.hear(Event::ObjectApplied(loud));
    assert_eq!(seen(&node), (Some(true), Some(9000)));
    node.hear(Event::ObjectApplied(quiet));
    assert_eq!(seen(&node), (Some(false), Some(1500)));
}

#[derive(Clone, Debug)]
enum Act {
    Apply(u8, u8),
    Delete(u8),
    Pod(u8, u8),
    Gone(u8),
    Resync,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0u8..3, 0u8..4).prop_map(|(object, shape)| Act::Apply(object, shape)),
        (0u8..3).prop_map(Act::Delete),
        (0u8..3, 0u8..3).prop_map(|(pod, label)| Act::Pod(pod, label)),
        (0u8..3).prop_map(Act::Gone),
        Just(Act::Resync),
    ]
}

fn hear(node: &mut Node, act: &Act) {
    let shaped = |index: u8, shape: u8| {
        let label = format!("l{}", index % 3);
        let wants = match shape {
            0 => vec![veth(&label, "a", "br0", "10.0.0.0/29")],
            1 => vec![veth(&label, "a", "br0", "10.0.0.0/29"), veth(&label, "b", "br1", "10.1.0.0/24")],
            2 => vec![bridge("br1", "10.1.0.0/24"), eth0_mtu(&label, 1300)],
            _ => vec![veth(&label, "a", "br1", "10.1.0.0/24"), eth0_mtu(&label, 1200)],
        };
        object("PodConfig", "cnf", &format!("o{index}"), wants)
    };
    match act {
        Act::Apply(index, shape) => node.hear(Event::ObjectApplied(shaped(*index, *shape))),
        Act::Delete(index) => node.hear(Event::ObjectDeleted(key(&shaped(*index, 0)))),
        Act::Pod(pod, label) => node.hear(Event::SandboxSeen(sandbox(
            &format!("p{pod}"),
            100 + u32::from(*pod),
            "cnf",
            &format!("l{label}"),
        ))),
        Act::Gone(pod) => {
            let name = format!("p{pod}");
            let newborn = with_eth0(&[&name]).scopes.into_values().next().unwrap();
            node.kernel.reborn(&support::node::scope(&name), newborn);
            node.hear(Event::SandboxGone(knit_model::SandboxId(name)));
        }
        Act::Resync => node.hear(Event::Resync),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order: a second look changes nothing, a restart knows the same, and when everything
    /// was taken away the kernel is as before.
    #[test]
    fn any_history_converges_replays_and_can_be_taken_away(acts in prop::collection::vec(act(), 1..25)) {
        let mut node = Node::holding(with_eth0(&["p0", "p1", "p2"]));
        let before = node.kernel.observe();
        for act in &acts {
            hear(&mut node, act);
            let steps = node.steps;
            node.hear(Event::Resync);
            prop_assert_eq!(node.steps, steps, "a second look found more to do after {:?}", act);
            prop_assert_eq!(&node.replayed(), &node.state.remembered());
        }
        for index in 0..3 {
            hear(&mut node, &Act::Delete(index));
        }
        prop_assert_eq!(node.kernel.observe(), before);
        prop_assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
        prop_assert!(node.state.made.keys().all(|unit| !matches!(unit, Unit::Bridge(_))));
    }
}
