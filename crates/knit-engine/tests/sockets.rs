//! Sockets that pods may ask for: who listens where, and what is said about it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::sockets::Listener;
use knit_engine::{Effect, Event, State, StoredObject, step};
use knit_ipam::Time;
use knit_model::intent::{Bound, IntentSpec, Selector, Socket, SocketIntent};
use knit_model::problem::Reason;
use knit_model::report::Phase;
use support::node::{key, object, sandbox};

fn socket(port: u16) -> IntentSpec {
    let bound = Bound { to: ([0, 0, 0, 0], port).into(), interface: None };
    let name = format!("p{port}");
    let pods = Selector::label("net", "x");
    IntentSpec::Socket(Box::new(SocketIntent { pods, uid: None, name, socket: Socket::Tcp(bound) }))
}

fn tools(ports: &[u16]) -> StoredObject {
    object("PodSocket", "shop", "tools", ports.iter().map(|port| socket(*port)).collect())
}

/// What the host is asked to offer, if it is asked.
fn offers(state: &mut State, event: Event) -> Option<Vec<Listener>> {
    let effects = step(state, event, Time(0));
    effects.into_iter().find_map(|effect| match effect {
        Effect::Offer(offers) => Some(offers),
        _ => None,
    })
}

fn who(offers: &[Listener]) -> Vec<(&str, usize)> {
    offers.iter().map(|one| (one.sandbox.pod.as_str(), one.sockets.len())).collect()
}

#[test]
fn every_pod_that_is_meant_gets_a_listener_and_the_status_says_when_it_stands() {
    let mut state = State::default();
    offers(&mut state, Event::SandboxSeen(sandbox("a", 7, "shop", "x")));
    offers(&mut state, Event::SandboxSeen(sandbox("b", 8, "other", "x")));
    let object = tools(&[80, 443]);
    let asked = offers(&mut state, Event::ObjectApplied(object.clone())).unwrap();
    assert_eq!(who(&asked), [("a", 2)]);
    let report = state.report(&key(&object)).unwrap();
    assert_eq!(report.phase, Phase::Configuring);

    // What comes meanwhile follows, once the host has done what it was asked.
    assert_eq!(offers(&mut state, Event::SandboxSeen(sandbox("c", 9, "shop", "x"))), None);
    let done = asked.iter().map(|one| one.answer(Ok(()))).collect();
    let asked = offers(&mut state, Event::Offered(done)).unwrap();
    assert_eq!(who(&asked), [("a", 2), ("c", 2)]);
    let refused = asked[1].refused(Reason::KernelRefused, "someone listens there".to_owned());
    let done = vec![asked[0].answer(Ok(())), refused];
    assert_eq!(offers(&mut state, Event::Offered(done)), None);
    let report = state.report(&key(&object)).unwrap();
    assert_eq!(report.phase, Phase::Configuring);
    assert_eq!(report.problems[0].message, "someone listens there");
    assert_eq!(report.pods[0].items[1].what, "socket p443 tcp 0.0.0.0:443");
    let ready: Vec<bool> = report.pods.iter().map(|pod| pod.items.iter().all(|item| item.ready)).collect();
    assert_eq!(ready, [true, false]);

    // It is tried again when everything is compared.
    let asked = offers(&mut state, Event::Resync).unwrap();
    let done = asked.iter().map(|one| one.answer(Ok(()))).collect();
    offers(&mut state, Event::Offered(done));
    let report = state.report(&key(&object)).unwrap();
    assert_eq!((report.phase, report.problems.len()), (Phase::Configured, 0));
}

#[test]
fn a_listener_goes_with_the_pod_the_label_and_the_object() {
    let mut state = State::default();
    let done = |state: &mut State, asked: Vec<Listener>| {
        let done = asked.iter().map(|one| one.answer(Ok(()))).collect();
        assert_eq!(offers(state, Event::Offered(done)), None);
    };
    for name in ["a", "b"] {
        offers(&mut state, Event::SandboxSeen(sandbox(name, 7, "shop", "x")));
    }
    let asked = offers(&mut state, Event::ObjectApplied(tools(&[80]))).unwrap();
    done(&mut state, asked);
    let asked = offers(&mut state, Event::SandboxSeen(sandbox("a", 7, "shop", "y"))).unwrap();
    assert_eq!(who(&asked), [("b", 1)]);
    done(&mut state, asked);
    let id = sandbox("b", 7, "shop", "x").id;
    let asked = offers(&mut state, Event::SandboxGone(id)).unwrap();
    assert_eq!(who(&asked), []);
    done(&mut state, asked);
    let asked = offers(&mut state, Event::SandboxSeen(sandbox("b", 7, "shop", "x"))).unwrap();
    done(&mut state, asked);
    let asked = offers(&mut state, Event::ObjectDeleted(key(&tools(&[80])))).unwrap();
    assert_eq!(who(&asked), []);
}
