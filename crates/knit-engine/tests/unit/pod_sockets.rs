//! PodSockets: which listeners are requested, and what is reported about them.

use knit_engine::sockets::SocketListener;
use knit_engine::{Effect, Event, State, StoredObject, step};
use knit_ipam::Time;
use knit_model::intent::{IntentSpec, Selector, Socket, SocketBinding, SocketIntent};
use knit_model::problem::Reason;
use knit_model::report::Phase;

use crate::support::node::{key, object, sandbox};

fn socket(port: u16) -> IntentSpec {
    let bound = SocketBinding { to: ([0, 0, 0, 0], port).into(), interface: None };
    let name = format!("p{port}");
    let pods = Selector::label("net", "x");
    IntentSpec::Socket(Box::new(SocketIntent { pods, uid: None, name, socket: Socket::Tcp(bound) }))
}

fn tools(ports: &[u16]) -> StoredObject {
    object("PodSocket", "shop", "tools", ports.iter().map(|port| socket(*port)).collect())
}

/// The listeners that the engine requests, if any.
fn requested_listeners(state: &mut State, event: Event) -> Option<Vec<SocketListener>> {
    let effects = step(state, event, Time(0));
    effects.into_iter().find_map(|effect| match effect {
        Effect::OfferSockets(listeners) => Some(listeners),
        _ => None,
    })
}

fn pods_of(listeners: &[SocketListener]) -> Vec<(&str, usize)> {
    listeners.iter().map(|one| (one.sandbox.pod.as_str(), one.sockets.len())).collect()
}

#[test]
fn each_selected_pod_gets_a_listener_and_status_reports_readiness() {
    let mut state = State::default();
    requested_listeners(&mut state, Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    requested_listeners(&mut state, Event::SandboxUpdated(sandbox("b", 8, "other", "x")));
    let object = tools(&[80, 443]);
    let listeners = requested_listeners(&mut state, Event::ObjectApplied(object.clone())).unwrap();
    assert_eq!(pods_of(&listeners), [("a", 2)]);
    let report = state.report(&key(&object)).unwrap();
    assert_eq!(report.phase, Phase::Configuring);

    // Later changes are requested after the current request completes.
    assert_eq!(requested_listeners(&mut state, Event::SandboxUpdated(sandbox("c", 9, "shop", "x"))), None);
    let done = listeners.iter().map(|one| one.result(Ok(()))).collect();
    let listeners = requested_listeners(&mut state, Event::SocketsOffered(done)).unwrap();
    assert_eq!(pods_of(&listeners), [("a", 2), ("c", 2)]);
    let [one, listener] = &listeners[..] else { panic!("{listeners:?}") };
    let failed = listener.rejected(Reason::KernelError, "address already in use".to_owned());
    let done = vec![one.result(Ok(())), failed];
    assert_eq!(requested_listeners(&mut state, Event::SocketsOffered(done)), None);
    let report = state.report(&key(&object)).unwrap();
    assert_eq!(report.phase, Phase::Configuring);
    assert_eq!(report.problems[0].message, "address already in use");
    assert_eq!(report.pods[0].items[1].to_string(), "socket p443 tcp 0.0.0.0:443");
    let ready: Vec<bool> = report.pods.iter().map(|pod| pod.items.iter().all(|item| item.ready)).collect();
    assert_eq!(ready, [true, false]);

    // A failure is retried on resync.
    let listeners = requested_listeners(&mut state, Event::Resync).unwrap();
    let done = listeners.iter().map(|one| one.result(Ok(()))).collect();
    requested_listeners(&mut state, Event::SocketsOffered(done));
    let report = state.report(&key(&object)).unwrap();
    assert_eq!((report.phase, report.problems.len()), (Phase::Configured, 0));
}

#[test]
fn listener_is_removed_with_pod_label_or_object() {
    let mut state = State::default();
    let complete = |state: &mut State, listeners: Vec<SocketListener>| {
        let done = listeners.iter().map(|one| one.result(Ok(()))).collect();
        assert_eq!(requested_listeners(state, Event::SocketsOffered(done)), None);
    };
    for name in ["a", "b"] {
        requested_listeners(&mut state, Event::SandboxUpdated(sandbox(name, 7, "shop", "x")));
    }
    let listeners = requested_listeners(&mut state, Event::ObjectApplied(tools(&[80]))).unwrap();
    complete(&mut state, listeners);
    let listeners =
        requested_listeners(&mut state, Event::SandboxUpdated(sandbox("a", 7, "shop", "y"))).unwrap();
    assert_eq!(pods_of(&listeners), [("b", 1)]);
    complete(&mut state, listeners);
    let id = sandbox("b", 7, "shop", "x").id;
    let listeners = requested_listeners(&mut state, Event::SandboxRemoved(id)).unwrap();
    assert_eq!(pods_of(&listeners), []);
    complete(&mut state, listeners);
    let listeners =
        requested_listeners(&mut state, Event::SandboxUpdated(sandbox("b", 7, "shop", "x"))).unwrap();
    complete(&mut state, listeners);
    let listeners = requested_listeners(&mut state, Event::ObjectDeleted(key(&tools(&[80])))).unwrap();
    assert_eq!(pods_of(&listeners), []);
}
