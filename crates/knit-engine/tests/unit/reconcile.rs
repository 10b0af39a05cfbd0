//! Reconciliation of one node, event by event, against an in-memory kernel.

use knit_engine::recording::{Replay, Replayed};
use knit_engine::{Effect, Event, Unit};
use knit_model::intent::IntentSpec;
use knit_model::report::Phase;
use knit_model::{Rule, Scope};
use proptest::prelude::*;

use crate::support::cases;
use crate::support::node::{Node, bridge, eth0_mtu, key, object, sandbox, veth, with_eth0};

fn sample(name: &str, label: &str) -> knit_engine::StoredObject {
    object(
        "PodConfig",
        "cnf",
        name,
        vec![veth(label, "pc0", "pcbr0", "192.168.100.0/24"), veth(label, "pc1", "pcbr1", "192.168.99.0/24")],
    )
}

fn two_pods() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 2_841_804, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 2_841_798, "cnf", "x")));
    node
}

#[test]
fn sandbox_is_observed_as_new_until_something_is_configured() {
    let is_new = |node: &mut Node, event: Event| -> Vec<bool> {
        let effects = knit_engine::step(&mut node.state.clone(), event, knit_ipam::Time(1));
        let request = |effect| match effect {
            Effect::Observe { unit: Unit::Sandbox(_), request: look } => Some(look.is_new),
            _ => None,
        };
        effects.into_iter().filter_map(request).collect()
    };
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("sample-a", "y")));
    let change = Event::ObjectApplied(object("PodNetworkConfig", "cnf", "mtu", vec![eth0_mtu("x", 1400)]));
    assert_eq!(is_new(&mut node, change.clone()), [true, true]);
    node.handle(change);
    assert_eq!(is_new(&mut node, Event::Resync), [false, false]);

    let mut ruled = veth("x", "pc0", "pcbr9", "192.168.98.0/24");
    let IntentSpec::Interface(intent) = &mut ruled else { panic!("veth() returns an interface") };
    intent.rules.push(Rule::from_address("192.168.98.2/32".parse().unwrap(), 80, 80));
    intent.master = None;
    let mut node = two_pods();
    let ruled = Event::ObjectApplied(object("PodConfig", "cnf", "ruled", vec![ruled]));
    assert_eq!(is_new(&mut node, ruled), [false, false]);
}

#[test]
fn walkthrough_yields_documented_names_addresses_and_bridges() {
    let mut node = two_pods();
    let object = sample("sample-a", "x");
    node.handle(Event::ObjectApplied(object.clone()));

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
fn main_routing_table_of_the_host_is_untouched() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    let host = &node.kernel.observe().scopes[&Scope::Host];
    assert!(host.addresses.values().all(|address| address.noprefixroute));
    assert!(host.routes.keys().all(|route| route.table == knit_model::kernel_ids::HOST_TABLE));
    assert_eq!(host.rules.len(), 2);
}

#[test]
fn deleting_the_object_restores_everything() {
    let mut node = two_pods();
    let before = node.kernel.observe();
    let object = sample("sample-a", "x");
    node.handle(Event::ObjectApplied(object.clone()));
    assert_ne!(node.kernel.observe(), before);
    node.handle(Event::ObjectDeleted(key(&object)));
    assert_eq!(node.kernel.observe(), before);
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
    assert!(node.state.units.is_empty());
}

#[test]
fn two_objects_share_a_bridge_and_one_may_be_deleted() {
    let mut node = two_pods();
    node.handle(Event::SandboxUpdated(sandbox("c", 77, "cnf", "y")));
    let (first, second) = (
        sample("first", "x"),
        object("PodConfig", "cnf", "second", vec![veth("y", "q0", "pcbr0", "192.168.100.0/24")]),
    );
    node.handle(Event::ObjectApplied(first.clone()));
    node.handle(Event::ObjectApplied(second));
    assert_eq!(
        node.state.report(&node.state.objects.keys().nth(1).unwrap().clone()).unwrap().pods[0].interfaces[0]
            .addresses[0]
            .to_string(),
        "192.168.100.4/24"
    );
    node.handle(Event::ObjectDeleted(key(&first)));
    assert!(node.host_link("pcbr0").is_some() && node.link("c", "q077").is_some());
    assert!(node.host_link("pcbr1").is_none());
}

#[test]
fn pod_that_loses_its_label_loses_only_those_interfaces() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    let mut unlabelled = sandbox("a", 2_841_804, "cnf", "x");
    unlabelled.labels.clear();
    node.handle(Event::SandboxUpdated(unlabelled));
    assert!(node.link("a", "pc02841804").is_none() && node.host_link("hpc02841804").is_none());
    assert!(node.link("a", "eth0").is_some() && node.link("b", "pc02841798").is_some());
}

#[test]
fn deleted_sandbox_leaves_nothing_on_the_host() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    // Another process still holds the netns, so the host ends exist until they are deleted.
    for name in ["a", "b"] {
        node.handle(Event::SandboxRemoved(knit_model::SandboxId(name.to_owned())));
    }
    assert!(
        node.kernel
            .observe()
            .scopes
            .get(&Scope::Host)
            .is_none_or(|host| host.links.is_empty() && host.rules.is_empty())
    );
    assert!(node.state.units.is_empty());
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
}

#[test]
fn original_values_of_eth0_are_restored() {
    let mut node = two_pods();
    let object = object("PrimaryNetwork", "cnf", "mtu", vec![eth0_mtu("x", 1300)]);
    node.handle(Event::ObjectApplied(object.clone()));
    assert_eq!(node.link("a", "eth0").unwrap().attrs.mtu, Some(1300));
    // A second change does not overwrite the stored original value.
    let again = crate::support::node::object("PrimaryNetwork", "cnf", "mtu", vec![eth0_mtu("x", 1200)]);
    node.handle(Event::ObjectApplied(again));
    assert_eq!(node.link("b", "eth0").unwrap().attrs.mtu, Some(1200));
    node.handle(Event::ObjectDeleted(key(&object)));
    assert_eq!(node.link("a", "eth0").unwrap().attrs.mtu, Some(1450));
    assert!(node.state.original_values.is_empty());
}

#[test]
fn first_object_keeps_an_interface_that_two_request() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("first", "x")));
    node.handle(Event::ObjectApplied(object(
        "PodConfig",
        "cnf",
        "second",
        vec![veth("x", "pc0", "other0", "10.5.0.0/24")],
    )));
    assert_eq!(node.problems("first"), Vec::<String>::new());
    assert_eq!(
        node.problems("second"),
        [
            "spec.entries[0]: interface pc02841804 of pod cnf/a is already requested by podconfig/first in cnf, which is older",
            "spec.entries[0]: interface pc02841798 of pod cnf/b is already requested by podconfig/first in cnf, which is older",
        ]
    );
    // Deleting the first object configures the second.
    let first = node.state.objects.keys().find(|key| key.name == "first").unwrap().clone();
    node.handle(Event::ObjectDeleted(first));
    assert_eq!(node.problems("second"), Vec::<String>::new());
    assert!(node.link("a", "pc02841804").is_some());
}

#[test]
fn two_tenants_may_use_the_same_names_and_ranges() {
    let mut node = two_pods();
    node.handle(Event::SandboxUpdated(sandbox("c", 77, "other", "x")));
    node.handle(Event::ObjectApplied(sample("mine", "x")));
    node.handle(Event::ObjectApplied(object(
        "PodConfig",
        "other",
        "theirs",
        vec![veth("x", "pc0", "pcbr0", "192.168.100.0/24")],
    )));
    let theirs = node.state.objects.keys().find(|key| key.name == "theirs").unwrap().clone();
    let report = node.state.report(&theirs).unwrap();
    assert_eq!(report.phase, Phase::Configured);
    assert_eq!(report.bridges[0].requested, "pcbr0");
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
fn exhausted_range_is_reported_and_other_pods_are_configured() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(object(
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
    // When the pod with the address is deleted, the other pod gets it at once.
    let has = |unit: &&Unit| {
        node.state.units[*unit].interfaces.iter().any(|(_, one)| one.name.as_str().starts_with('t'))
    };
    let Some(Unit::Sandbox(first)) = node.state.units.keys().find(has).cloned() else {
        panic!("no sandbox has the address")
    };
    node.handle(Event::SandboxRemoved(first));
    assert_eq!(node.problems("tiny"), Vec::<String>::new());
    assert_eq!(node.state.report(&tiny).unwrap().phase, Phase::Configured);
}

#[test]
fn bridge_named_like_an_existing_host_link_is_rejected() {
    let mut kernel = with_eth0(&["a"]);
    kernel.scope(&Scope::Host).add_link(knit_model::Link::new(
        "hostbr0".parse().unwrap(),
        knit_model::Kind::Other { name: "bridge".to_owned() },
    ));
    let before = kernel.clone();
    let mut node = Node::with_kernel(kernel);
    node.handle(Event::SandboxUpdated(sandbox("a", 5, "cnf", "x")));
    let greedy = object("PodConfig", "cnf", "greedy", vec![veth("x", "g", "hostbr0", "10.0.0.0/24")]);
    node.handle(Event::ObjectApplied(greedy.clone()));
    assert!(
        node.problems("greedy")[0].contains("hostbr0 exists and is not owned by Knit"),
        "{:?}",
        node.problems("greedy")
    );
    // The tables for the bridge's ports wait for it, without elements.
    let mut host = node.kernel.observe().scopes[&Scope::Host].clone();
    assert!(std::mem::take(&mut host.filter).elements.is_empty());
    assert_eq!(host, before.scopes[&Scope::Host]);
    let steps = node.applied_steps;
    node.handle(Event::Resync);
    assert_eq!(node.applied_steps, steps);
    node.handle(Event::ObjectDeleted(key(&greedy)));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn failed_attach_leaves_no_lease_and_no_bridge() {
    let mut node = two_pods();
    node.failing_unit = Some("sandbox".to_owned());
    let before = node.kernel.observe();
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    assert!(node.problems("sample-a").iter().any(|problem| problem.contains("injected failure")));
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
    // Its pods still match, so the bridges stay for the retry; deleting the object deletes them.
    let object = node.state.objects.keys().next().unwrap().clone();
    node.handle(Event::ObjectDeleted(object));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn bridge_object_exists_without_pods_and_stays_while_it_is_used() {
    let mut node = two_pods();
    let bridge_object = object("Bridge", "cnf", "br", vec![bridge("pcbr0", "192.168.100.0/24")]);
    node.handle(Event::ObjectApplied(bridge_object.clone()));
    assert_eq!(node.state.report(&key(&bridge_object)).unwrap().phase, Phase::Configured);
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    node.handle(Event::ObjectDeleted(key(&bridge_object)));
    assert!(node.host_link("pcbr0").is_some());
    node.handle(Event::ObjectDeleted(key(&sample("sample-a", "x"))));
    assert!(node.host_link("pcbr0").is_none());
}

#[test]
fn resync_restores_what_was_deleted_by_hand() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(sample("sample-a", "x")));
    let before = node.kernel.observe();
    let mut damaged = before.clone();
    damaged.scope(&crate::support::node::scope("a")).addresses.clear();
    node.kernel = crate::support::kernel::FakeKernel::with_state(damaged);
    node.handle(Event::Resync);
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn field_removed_from_an_object_returns_to_its_default() {
    let mut node = two_pods();
    let mut customized = object("Bridge", "cnf", "br", vec![bridge("pcbr0", "192.168.100.0/24")]);
    let plain = customized.clone();
    if let knit_model::intent::IntentSpec::Bridge(intent) = &mut customized.intents[0].spec {
        intent.bridge.stp = Some(true);
        intent.attrs.mtu = Some(9000);
    }
    let attributes = |node: &Node| {
        let link = node.host_link("pcbr0").unwrap();
        let knit_model::Kind::Bridge(bridge) = link.kind else { panic!("{link:?}") };
        (bridge.stp, link.attrs.mtu)
    };
    node.handle(Event::ObjectApplied(customized));
    assert_eq!(attributes(&node), (Some(true), Some(9000)));
    node.handle(Event::ObjectApplied(plain));
    assert_eq!(attributes(&node), (Some(false), Some(1500)));
}

#[derive(Clone, Debug)]
enum Operation {
    Apply(u8, u8),
    Delete(u8),
    Pod(u8, u8),
    Gone(u8),
    Resync,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0u8..3, 0u8..4).prop_map(|(object, shape)| Operation::Apply(object, shape)),
        (0u8..3).prop_map(Operation::Delete),
        (0u8..3, 0u8..3).prop_map(|(pod, label)| Operation::Pod(pod, label)),
        (0u8..3).prop_map(Operation::Gone),
        Just(Operation::Resync),
    ]
}

fn perform(node: &mut Node, operation: &Operation) {
    let shaped = |index: u8, shape: u8| {
        let label = format!("l{}", index % 3);
        let intents = match shape {
            0 => vec![veth(&label, "a", "br0", "10.0.0.0/29")],
            1 => vec![veth(&label, "a", "br0", "10.0.0.0/29"), veth(&label, "b", "br1", "10.1.0.0/24")],
            2 => vec![bridge("br1", "10.1.0.0/24"), eth0_mtu(&label, 1300)],
            _ => vec![veth(&label, "a", "br1", "10.1.0.0/24"), eth0_mtu(&label, 1200)],
        };
        object("PodConfig", "cnf", &format!("o{index}"), intents)
    };
    match operation {
        Operation::Apply(index, shape) => node.handle(Event::ObjectApplied(shaped(*index, *shape))),
        Operation::Delete(index) => node.handle(Event::ObjectDeleted(key(&shaped(*index, 0)))),
        Operation::Pod(pod, label) => node.handle(Event::SandboxUpdated(sandbox(
            &format!("p{pod}"),
            100 + u32::from(*pod),
            "cnf",
            &format!("l{label}"),
        ))),
        Operation::Gone(pod) => {
            let name = format!("p{pod}");
            let recreated = with_eth0(&[&name]).scopes.into_values().next().unwrap();
            node.kernel.replace_namespace(&crate::support::node::scope(&name), recreated);
            node.handle(Event::SandboxRemoved(knit_model::SandboxId(name)));
        }
        Operation::Resync => node.handle(Event::Resync),
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// For any order of operations: a resync changes nothing, replaying the journal gives the same state, and
    /// deleting all objects restores the kernel.
    #[test]
    fn any_history_converges_replays_and_can_be_undone(operations in prop::collection::vec(operation(), 1..25)) {
        let mut node = Node::with_kernel(with_eth0(&["p0", "p1", "p2"]));
        node.start_recording();
        let before = node.kernel.observe();
        for operation in &operations {
            perform(&mut node, operation);
            let steps = node.applied_steps;
            node.handle(Event::Resync);
            prop_assert_eq!(node.applied_steps, steps, "a resync found more to do after {:?}", operation);
            prop_assert_eq!(&node.replayed(), &node.state.persistent());
        }
        for index in 0..3 {
            perform(&mut node, &Operation::Delete(index));
        }
        prop_assert_eq!(node.kernel.observe(), before);
        prop_assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()));
        prop_assert!(node.state.units.keys().all(|unit| !matches!(unit, Unit::Bridge(_))));
        let mut replay = Replay::default();
        for line in node.recording.take().unwrap() {
            let replayed = replay.next(serde_json::from_str(&line).unwrap());
            prop_assert!(matches!(replayed, Replayed::Same(_) | Replayed::Nothing), "{line}\n{replayed:?}");
        }
        prop_assert_eq!(replay.state(), &node.state);
    }
}
