//! WireGuard keys: generated on the node or read from a Secret; the engine holds public keys only.

use knit_engine::pod_start::StartProgress;
use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule};
use knit_model::link::{Kind, WireGuard};
use knit_model::report::Phase;
use knit_model::{KeyRef, NetState, SecretKey};

use crate::support::node::{Node, key, object, sandbox, veth};

fn tunnel(from: KeyRef) -> StoredObject {
    let IntentSpec::Interface(intent) = veth("x", "wg", "br0", "10.0.0.0/24") else { unreachable!() };
    let kind = WireGuard {
        private_key: Some(SecretKey::from_source(from)),
        listen_port: Some(51820),
        fwmark: Some(0),
        peers: Some([].into()),
    };
    let name = NameRule::Exact("wg0".parse().unwrap());
    let intent = InterfaceIntent { name, kind: Kind::WireGuard(kind), master: None, ..*intent };
    object("WireGuard", "default", "t", vec![IntentSpec::Interface(Box::new(intent))])
}

fn node() -> Node {
    let mut node = Node::with_kernel(NetState::default());
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "default", "x")));
    node
}

#[test]
fn generated_key_is_reported_by_its_public_key() {
    let mut node = node();
    let tunnel = tunnel(KeyRef::Generated { id: String::new() });
    node.handle(Event::ObjectApplied(tunnel.clone()));
    let report = node.state.report(&key(&tunnel)).unwrap();
    assert_eq!(report.phase, Phase::Configured, "{report:?}");
    let link = node.link("a", "wg0").unwrap();
    let Kind::WireGuard(wireguard) = &link.kind else { panic!("{link:?}") };
    let key = wireguard.private_key.clone().unwrap();
    assert_eq!(key.source, Some(KeyRef::Generated { id: link.owner.unwrap().0 }));
    let shown = &report.pods[0].interfaces[0].details;
    let port = ("listenPort".to_owned(), "51820".to_owned());
    assert_eq!(*shown, [("publicKey".to_owned(), key.public.unwrap().to_string()), port]);
}

#[test]
fn missing_secret_creates_nothing_and_keeps_the_existing_interface() {
    let mut node = node();
    let from = KeyRef::Secret { namespace: "default".into(), name: "keys".into(), key: "private".into() };
    let tunnel = tunnel(from.clone());
    node.handle(Event::ObjectApplied(tunnel.clone()));
    let problem =
        "spec.entries[0]: interface wg0: key private of Secret keys in namespace default does not exist";
    assert_eq!(node.problems("t"), [problem]);
    assert_eq!(node.link("a", "wg0"), None);

    node.secrets.insert(from.clone());
    let changed = |name: &str| Event::SecretChanged { namespace: "default".into(), name: name.into() };
    node.handle(changed("others"));
    assert_eq!(node.problems("t"), [problem]);
    node.handle(changed("keys"));
    assert_eq!(node.problems("t"), Vec::<String>::new());
    let link = node.link("a", "wg0").unwrap();

    node.secrets.clear();
    node.handle(changed("keys"));
    assert_eq!(node.problems("t"), [problem]);
    assert_eq!(node.link("a", "wg0").unwrap(), link);

    node.handle(Event::ObjectDeleted(key(&tunnel)));
    assert_eq!(node.link("a", "wg0"), None);
}

#[test]
fn only_secrets_used_by_local_pods_are_needed() {
    let mut node = Node::with_kernel(NetState::default());
    let from = KeyRef::Secret { namespace: "default".into(), name: "keys".into(), key: "private".into() };
    let tunnel = tunnel(from);
    node.handle(Event::ObjectApplied(tunnel.clone()));
    assert!(node.state.required_secrets().is_empty(), "no local pod is selected");
    let pod = sandbox("a", 7, "default", "x");
    node.handle(Event::SandboxUpdated(pod.clone()));
    let name = ("default".to_owned(), "keys".to_owned());
    assert_eq!(node.state.required_secrets(), [(name, [pod.id].into())].into());
    node.handle(Event::ObjectDeleted(key(&tunnel)));
    assert!(node.state.required_secrets().is_empty());
}

#[test]
fn pod_waits_for_a_secret_that_is_not_known_yet() {
    let mut node = Node::with_kernel(NetState::default());
    let from = KeyRef::Secret { namespace: "default".into(), name: "keys".into(), key: "private".into() };
    node.unknown_secrets.insert(from.clone());
    node.handle(Event::ObjectApplied(tunnel(from.clone())));
    let pod = sandbox("a", 7, "default", "x");
    node.handle(Event::SandboxUpdated(pod.clone()));
    assert_eq!(node.state.awaiting_api_server(), [pod.id.clone()].into());
    assert!(matches!(node.state.start_progress(&pod.id), StartProgress::InProgress(_)));
    node.unknown_secrets.clear();
    node.handle(Event::SecretChanged { namespace: "default".to_owned(), name: "keys".to_owned() });
    assert_eq!(node.state.awaiting_api_server(), [].into(), "the API server has answered: it does not exist");
    assert!(matches!(node.state.start_progress(&pod.id), StartProgress::Blocked(_)));
}
