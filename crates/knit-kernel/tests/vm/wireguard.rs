//! WireGuard: created, used, changed without packet loss, and removed without a trace. No private key appears in
//! plans, states or messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use knit_kernel::{DeleteMode, PrivateKeySource};
use knit_model::link::{Kind, Link, WireGuard, WireGuardPeer};
use knit_model::{Address, KeyRef, NetState, PrivateKey, PublicKey, SecretKey};
use knit_testbed::eventually;

use crate::support::edits::{Edit, change_each};
use crate::support::faults::survive_every_fault_fast;
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{add_bridge, add_veth, link, name, net};

const KEYS: [(&str, u8); 5] =
    [("a", 0x11), ("b", 0x22), ("other", 0x33), ("shared", 0x44), ("another", 0x55)];

/// Keys by name; also found by their public keys.
#[derive(Debug)]
struct Keys;

fn private(of: &str) -> PrivateKey {
    let (_, number) = KEYS.iter().find(|(name, _)| *name == of).unwrap();
    PrivateKey::from_bytes([*number; 32])
}

fn public(of: &str) -> PublicKey {
    private(of).public()
}

/// A reference to the key, as desired state has it.
fn secret(of: &str) -> SecretKey {
    SecretKey { source: Some(KeyRef::Generated { id: of.to_owned() }), public: Some(public(of)) }
}

impl PrivateKeySource for Keys {
    fn key(&self, requested: &SecretKey) -> Result<PrivateKey, String> {
        let mut all = KEYS.iter().map(|(name, _)| private(name));
        let is_it = |key: &PrivateKey| Some(key.public()) == requested.public;
        all.find(is_it).ok_or_else(|| "no such key".to_owned())
    }
}

fn peer(ranges: &[&str], endpoint: Option<&str>) -> WireGuardPeer {
    WireGuardPeer {
        preshared_key: Some(SecretKey::none()),
        endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
        allowed_ips: Some(ranges.iter().map(|range| range.parse().unwrap()).collect()),
        keepalive: Some(0),
    }
}

fn add_tunnel(
    state: &mut NetState,
    id: &str,
    port: u16,
    peers: &[(&str, WireGuardPeer)],
    addresses: &[&str],
) {
    let scope = sandbox(id);
    let peers: BTreeMap<PublicKey, WireGuardPeer> =
        peers.iter().map(|(of, peer)| (public(of), peer.clone())).collect();
    let tunnel = WireGuard {
        private_key: Some(secret(id)),
        listen_port: Some(port),
        fwmark: Some(0),
        peers: Some(peers),
    };
    let mut tunnel = link(&scope, "wg0", Kind::WireGuard(tunnel));
    tunnel.attrs.mtu = Some(1420);
    let here = state.scope(&scope);
    here.add_link(tunnel);
    for address in addresses {
        here.add_address(Address::new(name("wg0"), net(address)));
    }
}

/// The sysctl that the kernel changes when a tunnel goes up.
fn set_redirects(state: &mut NetState, value: &str) {
    for id in ["a", "b"] {
        for (key, _) in Kind::WireGuard(WireGuard::default()).sysctls() {
            state.scope(&sandbox(id)).sysctls.insert((*key).to_owned(), value.to_owned());
        }
    }
}

/// Nothing is desired but the sysctl's old value.
fn nothing() -> NetState {
    let mut state = NetState::default();
    set_redirects(&mut state, "1");
    state
}

/// Two sandboxes on a bridge with a tunnel between them; b learns the endpoint of a.
fn two_ends() -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24", "fd50::3/64"]);
    let far = peer(&["10.56.0.3/32", "fd56::3/128"], Some("10.50.0.3:51820"));
    add_tunnel(&mut state, "a", 51820, &[("b", far)], &["10.56.0.2/24", "fd56::2/64"]);
    add_tunnel(
        &mut state,
        "b",
        51820,
        &[("a", peer(&["10.56.0.2/32", "fd56::2/128"], None))],
        &["10.56.0.3/24", "fd56::3/64"],
    );
    set_redirects(&mut state, "0");
    state
}

fn node(test: &str) -> TestNode {
    let mut node = TestNode::new(test, &["a", "b"]);
    node.set_key_source(Arc::new(Keys));
    for (key, _) in Kind::WireGuard(WireGuard::default()).sysctls() {
        ["a", "b"].iter().for_each(|id| node.observe_sysctl(&sandbox(id), key));
    }
    node
}

fn fields(link: &mut Link) -> &mut WireGuard {
    let Kind::WireGuard(tunnel) = &mut link.kind else { panic!("not a tunnel") };
    tunnel
}

fn peers(link: &mut Link) -> &mut BTreeMap<PublicKey, WireGuardPeer> {
    fields(link).peers.as_mut().unwrap()
}

fn far(link: &mut Link) -> &mut WireGuardPeer {
    peers(link).get_mut(&public("b")).unwrap()
}

/// A tunnel starts a handshake at most every five seconds, so that recovery may take that long.
fn reach(node: &TestNode, from: usize, to: &str) {
    let what = format!("sandbox {from} reaches {to}");
    eventually(&what, Duration::from_secs(30), || node.sandboxes[from].ping(to).is_ok());
}

/// Pings during an operation and expects no loss.
fn without_a_loss(node: &TestNode, during: impl FnOnce()) {
    let pod = node.sandboxes[0].clone();
    std::thread::scope(|scope| {
        let stream = scope.spawn(move || {
            pod.output("ping", &["-n", "-q", "-i", "0.02", "-c", "200", "-W", "5", "10.56.0.3"]).unwrap()
        });
        std::thread::sleep(Duration::from_millis(300));
        during();
        let printed = stream.join().unwrap();
        assert!(printed.contains("200 packets transmitted, 200 received"), "{printed}");
    });
}

/// Checks that no private key is in a text, in any encoding.
fn assert_nothing_secret(text: &str) {
    for (name, number) in KEYS {
        let raw = format!("{number}, {number}, {number}, {number}");
        let hex = format!("{number:02x}").repeat(4);
        for form in [private(name).reveal(), raw, hex] {
            assert!(!text.contains(&form), "key {name} shows as {form}");
        }
    }
}

#[test]
fn a_tunnel_carries_packets_and_is_removed_without_a_trace() {
    let node = node("wg");
    let before = node.dumps();
    let plan = node.converge(&two_ends());
    reach(&node, 0, "10.56.0.3");
    reach(&node, 1, "fd56::2");
    let shown = node.sandboxes[0].ip(&["-d", "-j", "link", "show", "wg0"]);
    assert!(shown.contains("wireguard") && shown.contains("\"mtu\":1420"), "{shown}");
    // b has learned the endpoint of a, which is not drift.
    let observed = node.observe().link(&sandbox("b"), &name("wg0")).unwrap().clone();
    let Kind::WireGuard(tunnel) = &observed.kind else { panic!("{observed:?}") };
    let learnt = &tunnel.peers.as_ref().unwrap()[&public("a")];
    assert_eq!(learnt.endpoint, Some("10.50.0.2:51820".parse().unwrap()));
    assert!(node.plan(&two_ends()).is_empty());

    for text in [
        format!("{plan:?}"),
        format!("{plan}"),
        serde_json::to_string(&plan).unwrap(),
        format!("{observed:?}"),
    ] {
        assert_nothing_secret(&text);
    }
    node.converge(&nothing());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn everything_but_the_key_changes_without_packet_loss() {
    let node = node("wg-live");
    let mut state = two_ends();
    node.converge(&state);
    reach(&node, 0, "10.56.0.3");
    let edits: &[Edit] = &[
        ("peers", |link| far(link).keepalive = Some(25)),
        ("peers", |link| far(link).allowed_ips.as_mut().unwrap().extend([net("10.57.0.0/16")])),
        ("peers", |link| {
            far(link).allowed_ips.as_mut().unwrap().retain(|range| *range != net("10.57.0.0/16"))
        }),
        ("peers", |link| drop(peers(link).insert(public("other"), peer(&["10.58.0.0/16"], None)))),
        ("peers", |link| {
            let other = peers(link).get_mut(&public("other")).unwrap();
            other.preshared_key = Some(secret("shared"));
            other.endpoint = Some("[fd50::9]:51820".parse().unwrap());
        }),
        ("peers", |link| {
            // An allowed range moves from one peer to another.
            peers(link).get_mut(&public("other")).unwrap().allowed_ips.as_mut().unwrap().clear();
            far(link).allowed_ips.as_mut().unwrap().insert(net("10.58.0.0/16"));
        }),
        ("peers", |link| drop(peers(link).remove(&public("other")))),
        ("peers", |link| far(link).endpoint = Some("[fd50::3]:51820".parse().unwrap())),
        ("fwmark", |link| fields(link).fwmark = Some(7)),
        ("mtu", |link| link.attrs.mtu = Some(1400)),
        ("txqueuelen", |link| link.attrs.txqueuelen = Some(77)),
        ("alias", |link| link.attrs.alias = Some("of a test".to_owned())),
        ("group", |link| link.attrs.group = Some(9)),
    ];
    without_a_loss(&node, || change_each(&node, &mut state, &sandbox("a"), "wg0", edits));

    // Another port: packets in flight to the old one are lost, the tunnel recovers.
    change_each(
        &node,
        &mut state,
        &sandbox("a"),
        "wg0",
        &[("listen_port", |link| {
            fields(link).listen_port = Some(51999);
        })],
    );
    reach(&node, 0, "10.56.0.3");

    // Both sides get a preshared key; the next handshake needs it.
    for (id, other) in [("a", "b"), ("b", "a")] {
        let link = state.scope(&sandbox(id)).links.get_mut(&name("wg0")).unwrap();
        peers(link).get_mut(&public(other)).unwrap().preshared_key = Some(secret("shared"));
    }
    let plan = node.converge(&state);
    assert!(plan.to_string().contains(&format!("peers.{}.preshared_key.public", public("b"))), "{plan}");
    reach(&node, 0, "10.56.0.3");

    // Another key of a, which b needs as well.
    fields(state.scope(&sandbox("a")).links.get_mut(&name("wg0")).unwrap()).private_key =
        Some(secret("another"));
    let known = peers(state.scope(&sandbox("b")).links.get_mut(&name("wg0")).unwrap());
    let a = known.remove(&public("a")).unwrap();
    known.insert(public("another"), a);
    let plan = node.converge(&state);
    assert!(
        plan.to_string().contains(&format!("private_key.public: {} -> {}", public("a"), public("another"))),
        "{plan}"
    );
    assert_nothing_secret(&format!("{plan:?}"));
    reach(&node, 0, "10.56.0.3");
}

#[test]
fn every_step_is_rolled_back() {
    let node = node("wg-faults");
    let mut state = two_ends();
    survive_every_fault_fast(&node, &node.plan(&state));
    node.converge(&state);
    let before = node.observe();

    let link = state.scope(&sandbox("a")).links.get_mut(&name("wg0")).unwrap();
    link.attrs.mtu = Some(1300);
    fields(link).private_key = Some(secret("another"));
    fields(link).listen_port = Some(7777);
    // No keepalive to the peer: it would send at once, and the peer would learn an endpoint meanwhile.
    *far(link) = WireGuardPeer { preshared_key: Some(secret("shared")), ..peer(&["10.60.0.0/16"], None) };
    let silent = WireGuardPeer { keepalive: Some(9), ..peer(&["10.59.0.0/16"], None) };
    peers(link).insert(public("other"), silent);
    state.scope(&sandbox("b")).addresses.remove(&(name("wg0"), net("10.56.0.3/24")));
    let link = state.scope(&sandbox("b")).links.get_mut(&name("wg0")).unwrap();
    // An endpoint is added to a peer without one, and rolled back.
    peers(link).get_mut(&public("a")).unwrap().endpoint = Some("10.50.0.2:51820".parse().unwrap());
    let plan = node.plan(&state);
    assert!(plan.steps.len() > 2, "{plan}");
    survive_every_fault_fast(&node, &plan);
    assert_eq!(kinds(&node.observe()), kinds(&before));

    let plan = node.plan(&nothing());
    survive_every_fault_fast(&node, &plan);
    assert_eq!(kinds(&node.observe()), kinds(&before));
    assert_nothing_secret(&format!("{:?}", node.kernel()));
}

fn kinds(state: &NetState) -> Vec<Kind> {
    let links = state.scopes.values().flat_map(|scope| scope.links.values());
    links.filter(|link| link.name == name("wg0")).map(|link| link.kind.clone()).collect()
}

#[test]
fn a_missing_key_is_reported_and_nothing_is_created() {
    let mut node = TestNode::new("wg-key", &["a", "b"]);
    node.set_key_source(Arc::new(knit_kernel::private_keys::NoPrivateKeys));
    let before = node.dumps();
    let plan = node.plan(&two_ends());
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut knit_kernel::fault::NoFaults).unwrap_err();
    assert_eq!(error.error.reason(), "NotFound");
    assert!(error.to_string().contains("set wireguard wg0 on sandbox"), "{error}");
    node.assert_unchanged(&before, "after a rejection");
}
