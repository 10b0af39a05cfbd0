//! Keys of tunnels: made on the node or taken from a Secret, known to the engine only by their public keys.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule};
use knit_model::link::{Kind, WireGuard};
use knit_model::report::Phase;
use knit_model::{KeyRef, NetState, SecretKey};
use support::node::{Node, key, object, sandbox, veth};

fn tunnel(from: KeyRef) -> StoredObject {
    let IntentSpec::Interface(want) = veth("x", "wg", "br0", "10.0.0.0/24") else { unreachable!() };
    let kind = WireGuard {
        private_key: Some(SecretKey::from(from)),
        listen_port: Some(51820),
        fwmark: Some(0),
        peers: Some([].into()),
    };
    let name = NameRule::Exact("wg0".parse().unwrap());
    let want = InterfaceIntent { name, kind: Kind::WireGuard(kind), master: None, ..*want };
    object("WireGuard", "default", "t", vec![IntentSpec::Interface(Box::new(want))])
}

fn node() -> Node {
    let mut node = Node::holding(NetState::default());
    node.hear(Event::SandboxSeen(sandbox("a", 7, "default", "x")));
    node
}

#[test]
fn a_key_that_the_node_makes_is_shown_by_its_public_key() {
    let mut node = node();
    let tunnel = tunnel(KeyRef::Made { id: String::new() });
    node.hear(Event::ObjectApplied(tunnel.clone()));
    let report = node.state.report(&key(&tunnel)).unwrap();
    assert_eq!(report.phase, Phase::Configured, "{report:?}");
    let link = node.link("a", "wg0").unwrap();
    let Kind::WireGuard(wireguard) = &link.kind else { panic!("{link:?}") };
    let made = wireguard.private_key.clone().unwrap();
    assert_eq!(made.from, Some(KeyRef::Made { id: link.owner.unwrap().0 }));
    let shown = &report.pods[0].interfaces[0].shown;
    let port = ("listenPort".to_owned(), "51820".to_owned());
    assert_eq!(*shown, [("publicKey".to_owned(), made.public.unwrap().to_string()), port]);
}

#[test]
fn without_its_secret_nothing_is_made_and_what_stands_stays() {
    let mut node = node();
    let from = KeyRef::Secret { namespace: "default".into(), name: "keys".into(), key: "private".into() };
    let tunnel = tunnel(from.clone());
    node.hear(Event::ObjectApplied(tunnel.clone()));
    let words =
        "spec.entries[0]: interface wg0: key private of Secret keys in namespace default is not there";
    assert_eq!(node.problems("t"), [words]);
    assert_eq!(node.link("a", "wg0"), None);

    node.secrets.insert(from.clone());
    node.hear(Event::Resync);
    assert_eq!(node.problems("t"), Vec::<String>::new());
    let made = node.link("a", "wg0").unwrap();

    node.secrets.clear();
    node.hear(Event::Resync);
    assert_eq!(node.problems("t"), [words]);
    assert_eq!(node.link("a", "wg0").unwrap(), made);

    node.hear(Event::ObjectDeleted(key(&tunnel)));
    assert_eq!(node.link("a", "wg0"), None);
}

#[test]
fn only_secrets_that_a_pod_needs_are_needed() {
    let mut node = Node::holding(NetState::default());
    let from = KeyRef::Secret { namespace: "default".into(), name: "keys".into(), key: "private".into() };
    let tunnel = tunnel(from);
    node.hear(Event::ObjectApplied(tunnel.clone()));
    assert!(node.state.secrets_needed().is_empty(), "no pod here is meant");
    let pod = sandbox("a", 7, "default", "x");
    node.hear(Event::SandboxSeen(pod.clone()));
    let name = ("default".to_owned(), "keys".to_owned());
    assert_eq!(node.state.secrets_needed(), [(name, [pod.id].into())].into());
    node.hear(Event::ObjectDeleted(key(&tunnel)));
    assert!(node.state.secrets_needed().is_empty());
}
