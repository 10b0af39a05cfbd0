//! Pods whose containers wait for their networks: when the wait ends, and what was attached before the first
//! container.

use std::collections::BTreeSet;

use knit_engine::pod_start::{PodStart, StartProgress, StartingSandbox};
use knit_engine::{CallId, CallResult, Event, StoredObject, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::intent::{IntentSpec, NameRule};
use knit_model::provenance::Dialect;
use knit_model::report::AttachTiming;

use crate::support::node::{Node, eth0_mtu, object, sandbox, veth, with_eth0};

fn veth_object(name: &str, prefix: &str) -> StoredObject {
    let range = if name == "one" { "192.168.100.0/24" } else { "192.168.101.0/24" };
    object("PodConfig", "cnf", name, vec![veth("x", prefix, &format!("br{name}"), range)])
}

fn id() -> SandboxId {
    SandboxId("a".to_owned())
}

fn progress(node: &Node) -> StartProgress {
    node.state.start_progress(&id())
}

/// The runtime starts the pod and waits.
fn start(label: &str) -> Event {
    let sandbox = StartingSandbox::Local(sandbox("a", 7, "cnf", label));
    Event::PodStarting(Box::new(PodStart { call: CallId("start".to_owned()), id: id(), sandbox }))
}

/// When the pod got the interfaces of each object, by object name, from the pod's and the object's reports.
fn attached(node: &Node) -> Vec<(String, Option<AttachTiming>)> {
    let pods = node.state.pod_states();
    let objects = pods.into_iter().flat_map(|pod| pod.objects);
    let all: Vec<_> = objects.map(|one| (one.object.name, one.attached)).collect();
    for (name, attached) in &all {
        let key = node.state.objects.keys().find(|key| key.name == *name).unwrap();
        assert_eq!(node.state.report(key).unwrap().pods[0].attached, *attached);
    }
    all
}

/// A Kubernetes object that needs no address.
fn kubernetes_object() -> StoredObject {
    let mut object = object("PodNetworkConfig", "cnf", "from-api", vec![eth0_mtu("x", 1400)]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

fn node_with_object() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::ObjectApplied(veth_object("one", "net")));
    node
}

#[test]
fn unselected_or_unknown_pod_waits_for_nothing() {
    let mut node = node_with_object();
    assert_eq!(progress(&node), StartProgress::NothingRequested);
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "other")));
    assert_eq!(progress(&node), StartProgress::NothingRequested);
    let before = node.journal.len();
    node.handle(start("other"));
    assert_eq!(node.results, [CallResult::PodStarted(StartProgress::NothingRequested)]);
    assert_eq!(node.journal.len(), before, "nothing is journalled");
}

#[test]
fn pod_waits_while_its_sandbox_is_reconciled() {
    let mut node = node_with_object();
    // The effect has not completed.
    step(&mut node.state, Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")), Time(1));
    assert_eq!(progress(&node), StartProgress::InProgress(vec!["podconfig/one".to_owned()]));
    let mut node = node_with_object();
    node.handle(start("x"));
    assert_eq!(progress(&node), StartProgress::Ready);
    assert_eq!(node.results, [CallResult::PodStarted(StartProgress::Ready)]);
    assert_eq!(attached(&node), [("one".to_owned(), None)], "the runtime may not have waited so long");
    node.handle(Event::ContainersStarting(id()));
    assert_eq!(attached(&node), [("one".to_owned(), Some(AttachTiming::BeforeContainers))]);
}

#[test]
fn start_that_the_runtime_no_longer_waits_for_is_not_answered() {
    let mut node = node_with_object();
    let effects = step(&mut node.state, start("x"), Time(1));
    let call = CallId("start".to_owned());
    step(&mut node.state, Event::CallCancelled { call, ticket: 0 }, Time(2));
    node.resume(effects);
    assert_eq!(node.results, [], "the caller is gone");
    assert_eq!(attached(&node), [("one".to_owned(), None)]);
}

#[test]
fn failed_sandbox_is_not_waited_for() {
    let mut node = node_with_object();
    node.failing_unit = Some("sandbox a".to_owned());
    node.handle(start("x"));
    let blocked = StartProgress::Blocked(vec!["podconfig/one".to_owned()]);
    assert_eq!(node.results, [CallResult::PodStarted(blocked)]);
}

#[test]
fn attached_before_the_first_container_is_distinguished_from_later() {
    let mut node = node_with_object();
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    assert_eq!(attached(&node), [("one".to_owned(), None)]);
    node.handle(Event::ContainersStarting(id()));
    node.handle(Event::ObjectApplied(veth_object("two", "pc")));
    let both = [("one".to_owned(), Some(AttachTiming::BeforeContainers)), ("two".to_owned(), None)];
    assert_eq!(attached(&node), both);
    node.handle(Event::Resync);
    assert_eq!(attached(&node), both, "a resync changes nothing");
    assert_eq!(node.replayed().started, node.state.started, "it survives a restart");
}

#[test]
fn kubernetes_object_is_attached_while_running_unless_the_runtime_waited() {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::ObjectApplied(kubernetes_object()));
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    assert_eq!(attached(&node), [("from-api".to_owned(), Some(AttachTiming::WhileRunning))]);
    node.handle(Event::ContainersStarting(id()));
    assert_eq!(attached(&node), [("from-api".to_owned(), Some(AttachTiming::BeforeContainers))]);
}

#[test]
fn recreated_interface_counts_as_later_and_deleted_sandbox_is_forgotten() {
    let mut node = node_with_object();
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    node.handle(Event::ContainersStarting(id()));
    let mut renamed = veth_object("one", "net");
    let IntentSpec::Interface(intent) = &mut renamed.intents[0].spec else {
        panic!("veth() returns an interface")
    };
    intent.name = NameRule::Prefix("other".to_owned());
    node.handle(Event::ObjectApplied(renamed));
    assert_eq!(attached(&node), [("one".to_owned(), None)]);
    node.handle(Event::ObjectApplied(veth_object("one", "net")));
    node.handle(Event::ContainersStarting(id()));
    assert_eq!(attached(&node), [("one".to_owned(), Some(AttachTiming::BeforeContainers))]);
    node.handle(Event::SandboxRemoved(id()));
    assert_eq!(node.state.started, Default::default());
}

#[test]
fn readiness_gate_opens_when_configured_and_stays_open_during_a_resync() {
    let mut node = node_with_object();
    let gate = |node: &Node| {
        let gate = node.state.readiness_gate("uid-a", &BTreeSet::new());
        gate.map(|gate| (gate.is_open, gate.reason, gate.message))
    };
    let condition =
        |open: bool, reason: &str, message: &str| Some((open, reason.to_owned(), message.to_owned()));
    assert_eq!(gate(&node), condition(false, "NoSandbox", "the pod's sandbox is not known yet"));
    step(&mut node.state, Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")), Time(1));
    assert_eq!(gate(&node), condition(false, "Configuring", "in progress: podconfig/one"));
    let mut node = node_with_object();
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "x")));
    assert_eq!(gate(&node), condition(true, "Configured", "ready: podconfig/one"));
    let mut resyncing = Node::with_kernel(with_eth0(&[]));
    resyncing.state = node.state.clone();
    step(&mut resyncing.state, Event::Resync, Time(2));
    assert_eq!(gate(&resyncing), None, "the condition is unchanged");
    node.failing_unit = Some("sandbox a".to_owned());
    node.handle(Event::ObjectApplied(veth_object("two", "pc")));
    let (is_open, reason, message) = gate(&node).unwrap();
    assert!(
        !is_open && reason == "KernelError" && message.contains("injected failure"),
        "{reason}: {message}"
    );
    let mut node = node_with_object();
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "cnf", "other")));
    assert_eq!(gate(&node), condition(true, "NothingAsked", "no object selects the pod"));
}
