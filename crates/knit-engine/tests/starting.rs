//! Pods whose containers wait for their networks: when they wait no more, and what was there before the first container.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
}

use std::collections::BTreeSet;

use knit_engine::starting::Progress;
use knit_engine::{Event, StoredObject, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::intent::{IntentSpec, NameRule};
use knit_model::provenance::Dialect;
use knit_model::report::Attached;
use support::node::{Node, eth0_mtu, object, sandbox, veth, with_eth0};

fn wish(name: &str, prefix: &str) -> StoredObject {
    let range = if name == "one" { "192.168.100.0/24" } else { "192.168.101.0/24" };
    object("PodConfig", "cnf", name, vec![veth("x", prefix, &format!("br{name}"), range)])
}

fn id() -> SandboxId {
    SandboxId("a".to_owned())
}

fn progress(node: &Node) -> Progress {
    node.state.progress(&id(), &BTreeSet::new())
}

/// When the pod got what it has of each object, by the object's name; and the same from the object's side.
fn attached(node: &Node) -> Vec<(String, Option<Attached>)> {
    let pods = node.state.pod_states();
    let objects = pods.into_iter().flat_map(|pod| pod.objects);
    let all: Vec<_> = objects.map(|one| (one.object.name, one.attached)).collect();
    for (name, attached) in &all {
        let key = node.state.objects.keys().find(|key| key.name == *name).unwrap();
        assert_eq!(node.state.report(key).unwrap().pods[0].attached, *attached);
    }
    all
}

/// An object of an API server that needs no address.
fn pulled() -> StoredObject {
    let mut object = object("PodNetworkConfig", "cnf", "pulled", vec![eth0_mtu("x", 1400)]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

fn held() -> Node {
    let mut node = Node::holding(with_eth0(&["a"]));
    node.hear(Event::ObjectApplied(wish("one", "net")));
    node
}

#[test]
fn a_pod_that_nobody_means_or_knows_waits_for_nothing() {
    let mut node = held();
    assert_eq!(progress(&node), Progress::Nothing);
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "other")));
    assert_eq!(progress(&node), Progress::Nothing);
    let before = node.journal.len();
    node.hear(Event::Starting(id()));
    assert_eq!(node.journal.len(), before, "nothing is to be remembered of it");
}

#[test]
fn a_pod_waits_while_its_unit_is_worked_on_and_no_longer() {
    let mut node = held();
    // The kernel has been asked, and has not answered.
    step(&mut node.state, Event::SandboxSeen(sandbox("a", 7, "cnf", "x")), Time(1));
    assert_eq!(progress(&node), Progress::UnderWay(vec!["podconfig/one".to_owned()]));
    let mut node = held();
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    assert_eq!(progress(&node), Progress::Stands);
}

#[test]
fn what_cannot_stand_is_not_waited_for_unless_someone_is_asked_for_it() {
    let mut node = held();
    node.broken = Some("sandbox a".to_owned());
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    assert_eq!(progress(&node), Progress::Hindered(vec!["podconfig/one".to_owned()]));
    let waiting = BTreeSet::from([id()]);
    let under_way = node.state.progress(&id(), &waiting);
    assert_eq!(under_way, Progress::UnderWay(vec!["podconfig/one".to_owned()]));
}

#[test]
fn what_stood_before_the_first_container_is_told_from_what_came_later() {
    let mut node = held();
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    assert_eq!(attached(&node), [("one".to_owned(), None)]);
    node.hear(Event::Starting(id()));
    node.hear(Event::ObjectApplied(wish("two", "pc")));
    let both = [("one".to_owned(), Some(Attached::BeforeContainers)), ("two".to_owned(), None)];
    assert_eq!(attached(&node), both);
    node.hear(Event::Resync);
    assert_eq!(attached(&node), both, "looking again changes nothing");
    assert_eq!(node.replayed().started, node.state.started, "an agent that begins anew knows it, too");
}

#[test]
fn what_is_pulled_from_an_api_server_came_while_the_pod_runs_unless_its_runtime_waited() {
    let mut node = Node::holding(with_eth0(&["a"]));
    node.hear(Event::ObjectApplied(pulled()));
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    assert_eq!(attached(&node), [("pulled".to_owned(), Some(Attached::WhileRunning))]);
    node.hear(Event::Starting(id()));
    assert_eq!(attached(&node), [("pulled".to_owned(), Some(Attached::BeforeContainers))]);
}

#[test]
fn an_interface_that_is_made_anew_was_not_there_before_and_a_sandbox_that_is_gone_is_forgotten() {
    let mut node = held();
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    node.hear(Event::Starting(id()));
    let mut renamed = wish("one", "net");
    let IntentSpec::Interface(want) = &mut renamed.intents[0].spec else { panic!("a veth is an interface") };
    want.name = NameRule::Prefix("other".to_owned());
    node.hear(Event::ObjectApplied(renamed));
    assert_eq!(attached(&node), [("one".to_owned(), None)]);
    node.hear(Event::ObjectApplied(wish("one", "net")));
    node.hear(Event::Starting(id()));
    assert_eq!(attached(&node), [("one".to_owned(), Some(Attached::BeforeContainers))]);
    node.hear(Event::SandboxGone(id()));
    assert_eq!(node.state.started, Default::default());
}

#[test]
fn a_gate_opens_when_everything_is_there_and_stays_open_while_it_is_compared() {
    let mut node = held();
    let gate = |node: &Node| {
        let gate = node.state.gate("uid-a", &BTreeSet::new());
        gate.map(|gate| (gate.is_open, gate.reason, gate.message))
    };
    let says = |open: bool, reason: &str, message: &str| Some((open, reason.to_owned(), message.to_owned()));
    assert_eq!(gate(&node), says(false, "NoSandbox", "the pod's sandbox is not known yet"));
    step(&mut node.state, Event::SandboxSeen(sandbox("a", 7, "cnf", "x")), Time(1));
    assert_eq!(gate(&node), says(false, "Configuring", "is being made: podconfig/one"));
    let mut node = held();
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "x")));
    assert_eq!(gate(&node), says(true, "Configured", "all is there of podconfig/one"));
    let mut compared = Node::holding(with_eth0(&[]));
    compared.state = node.state.clone();
    step(&mut compared.state, Event::Resync, Time(2));
    assert_eq!(gate(&compared), None, "what it says stays");
    node.broken = Some("sandbox a".to_owned());
    node.hear(Event::ObjectApplied(wish("two", "pc")));
    let (is_open, reason, message) = gate(&node).unwrap();
    assert!(!is_open && reason == "KernelRefused" && message.contains("broken"), "{reason}: {message}");
    let mut node = held();
    node.hear(Event::SandboxSeen(sandbox("a", 7, "cnf", "other")));
    assert_eq!(gate(&node), says(true, "NothingAsked", "no object asks for anything"));
}
