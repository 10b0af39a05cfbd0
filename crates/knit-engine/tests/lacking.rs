//! A kind of link that the kernel lacks: its object says so, and all others come.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, ObjectKey, Record, StoredObject};
use knit_model::intent::{IntentSpec, NameRule};
use knit_model::link::{Dummy, Kind, Macvlan, MacvlanMode};
use knit_model::problem::{Problem, Reason};
use knit_model::report::Phase;
use support::node::{Node, key, object, sandbox, veth, with_eth0};

/// An object with one interface of this kind, on `parent`, in pods with `net: x`.
fn interface(name: &str, kind: Kind, parent: Option<&str>) -> StoredObject {
    let IntentSpec::Interface(mut want) = veth("x", "unused", "unused", "10.9.0.0/24") else {
        unreachable!()
    };
    want.name = NameRule::Exact(name.parse().unwrap());
    (want.kind, want.master) = (kind, None);
    want.parent = parent.map(str::to_owned);
    object("Dummy", "cnf", name, vec![IntentSpec::Interface(want)])
}

/// A pod that is to have a dummy, a macvlan on the dummy, and a pair, on a kernel that has no dummies.
fn without_dummies() -> (Node, StoredObject, StoredObject, StoredObject) {
    let mut node = Node::holding(with_eth0(&["a"]));
    node.without = Some("dummy");
    let dummy = interface("d0", Kind::Dummy(Dummy {}), None);
    let mode = Some(MacvlanMode::Bridge);
    let on_it = interface("m0", Kind::Macvlan(Macvlan { parent: None, mode }), Some("d0"));
    let pair = object("PodConfig", "cnf", "pair", vec![veth("x", "pc", "br0", "10.1.0.0/24")]);
    for object in [&dummy, &on_it, &pair] {
        node.hear(Event::ObjectApplied(object.clone()));
    }
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "x")));
    (node, dummy, on_it, pair)
}

#[test]
fn the_other_interfaces_of_the_pod_come() {
    let (node, dummy, on_it, pair) = without_dummies();
    assert!(node.link("a", "pc1").is_some());
    assert_eq!(node.state.report(&key(&pair)).unwrap().phase, Phase::Configured);

    let report = node.state.report(&key(&dummy)).unwrap();
    let [problem] = report.problems.as_slice() else { panic!("{report:?}") };
    assert_eq!(problem.reason, Reason::KernelLacks);
    assert_eq!(problem.message, "interface d0 of pod cnf/a cannot be made: this kernel has no dummy: CONFIG");
    let report = node.state.report(&key(&on_it)).unwrap();
    assert!(report.problems[0].message.contains("interface d0 of pod cnf/a, which it sits on"), "{report:?}");
    assert!(node.link("a", "d0").is_none() && node.link("a", "m0").is_none());
    assert_eq!(node.replayed(), node.state.remembered());
}

#[test]
fn it_is_tried_once_and_again_when_everything_is_compared_or_an_object_asks() {
    for asks in [true, false] {
        let (mut node, dummy, ..) = without_dummies();
        let steps = node.steps;
        let mut pod = sandbox("a", 1, "cnf", "x");
        pod.labels.insert("another".to_owned(), "label".to_owned());
        node.hear(Event::SandboxSeen(pod));
        assert_eq!(node.steps, steps, "what is known to be missing is not tried on every look");

        node.without = None;
        node.hear(if asks { Event::ObjectApplied(dummy) } else { Event::Resync });
        assert!(node.link("a", "d0").is_some() && node.link("a", "m0").is_some());
        assert_eq!(node.problems("d0"), Vec::<String>::new());
    }
}

#[test]
fn while_it_is_tried_again_what_is_known_of_it_stays() {
    let (mut node, dummy, ..) = without_dummies();
    let known = node.state.report(&key(&dummy)).unwrap();
    let written = node.journal.len();
    node.hear(Event::Resync);
    assert_eq!(node.state.report(&key(&dummy)).unwrap(), known);
    // Whoever reads along hears at no moment that all is well.
    for record in &node.journal[written..] {
        let Record::Ended(ended) = record else { continue };
        let lacks = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::KernelLacks;
        assert!(ended.problems.iter().any(lacks), "{ended:?}");
    }
    assert!(node.journal.len() > written, "it was tried");
}
