//! A link kind that the kernel does not support: its object reports it, and all other objects are configured.

use knit_engine::{Event, ObjectKey, Record, StoredObject};
use knit_model::intent::{IntentSpec, NameRule};
use knit_model::link::{Dummy, Kind, Macvlan, MacvlanMode};
use knit_model::problem::{Problem, Reason};
use knit_model::report::Phase;

use crate::support::node::{Node, key, object, sandbox, veth, with_eth0};

/// An object with one interface of this kind, on `parent`, in pods with `net: x`.
fn interface(name: &str, kind: Kind, parent: Option<&str>) -> StoredObject {
    let IntentSpec::Interface(mut intent) = veth("x", "unused", "unused", "10.9.0.0/24") else {
        unreachable!()
    };
    intent.name = NameRule::Exact(name.parse().unwrap());
    (intent.kind, intent.master) = (kind, None);
    intent.parent = parent.map(str::to_owned);
    object("Dummy", "cnf", name, vec![IntentSpec::Interface(intent)])
}

/// A pod with a dummy, a macvlan on it, and a veth, on a kernel without dummies.
fn without_dummies() -> (Node, StoredObject, StoredObject, StoredObject) {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.missing_kind = Some("dummy");
    let dummy = interface("d0", Kind::Dummy(Dummy {}), None);
    let mode = Some(MacvlanMode::Bridge);
    let stacked = interface("m0", Kind::Macvlan(Macvlan { parent: None, mode }), Some("d0"));
    let pair = object("PodConfig", "cnf", "pair", vec![veth("x", "pc", "br0", "10.1.0.0/24")]);
    for object in [&dummy, &stacked, &pair] {
        node.handle(Event::ObjectApplied(object.clone()));
    }
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "x")));
    (node, dummy, stacked, pair)
}

#[test]
fn other_interfaces_of_the_pod_are_configured() {
    let (node, dummy, stacked, pair) = without_dummies();
    assert!(node.link("a", "pc1").is_some());
    assert_eq!(node.state.report(&key(&pair)).unwrap().phase, Phase::Configured);

    let report = node.state.report(&key(&dummy)).unwrap();
    let [problem] = report.problems.as_slice() else { panic!("{report:?}") };
    assert_eq!(problem.reason, Reason::KernelUnsupported);
    assert_eq!(
        problem.message,
        "interface d0 of pod cnf/a cannot be created: this kernel has no dummy: CONFIG"
    );
    let report = node.state.report(&key(&stacked)).unwrap();
    assert!(report.problems[0].message.contains("interface d0 of pod cnf/a, its parent"), "{report:?}");
    assert!(node.link("a", "d0").is_none() && node.link("a", "m0").is_none());
    assert_eq!(node.replayed(), node.state.persistent());
}

#[test]
fn unsupported_kind_is_retried_on_resync_and_on_object_changes_only() {
    for by_object in [true, false] {
        let (mut node, dummy, ..) = without_dummies();
        let steps = node.applied_steps;
        let mut pod = sandbox("a", 1, "cnf", "x");
        pod.labels.insert("another".to_owned(), "label".to_owned());
        node.handle(Event::SandboxUpdated(pod));
        assert_eq!(node.applied_steps, steps, "an unsupported kind is not retried on every event");

        node.missing_kind = None;
        node.handle(if by_object { Event::ObjectApplied(dummy) } else { Event::Resync });
        assert!(node.link("a", "d0").is_some() && node.link("a", "m0").is_some());
        assert_eq!(node.problems("d0"), Vec::<String>::new());
    }
}

#[test]
fn problem_stays_reported_during_a_retry() {
    let (mut node, dummy, ..) = without_dummies();
    let reported = node.state.report(&key(&dummy)).unwrap();
    let written = node.journal.len();
    node.handle(Event::Resync);
    assert_eq!(node.state.report(&key(&dummy)).unwrap(), reported);
    // No journal record reports success in between.
    for record in &node.journal[written..] {
        let Record::ChangeEnded(ended) = record else { continue };
        let lacks = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::KernelUnsupported;
        assert!(ended.problems.iter().any(lacks), "{ended:?}");
    }
    assert!(node.journal.len() > written, "it was retried");
}
