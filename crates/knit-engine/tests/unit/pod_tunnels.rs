//! Pod tunnels: the remote end can be another pod, which is followed, and the MTU leaves room for the
//! encapsulation.

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, InterfaceIntent, NameRule, Selector, UplinkIntent};
use knit_model::link::{Attrs, Geneve, Gre, Kind, TunnelFields, Vxlan};
use knit_model::report::Phase;
use knit_model::{Sandbox, SandboxId};

use crate::support::node::{Node, eth0_mtu, key, object, sandbox, veth, with_eth0};

/// A pod on the common network that also gets tunnels.
fn with_tunnels(name: &str, number: u32) -> Sandbox {
    let mut pod = sandbox(name, number, "cnf", "x");
    pod.labels.insert("tunnel".to_owned(), name.to_owned());
    pod
}

/// Interface `t0` of the pod, of this kind.
fn tunnel(pod: &str, kind: Kind) -> InterfaceIntent {
    InterfaceIntent {
        pods: Selector::label("tunnel", pod),
        name: NameRule::Exact("t0".parse().unwrap()),
        kind,
        attrs: Attrs::default(),
        parent: None,
        master: None,
        port: None,
        vrf: None,
        ports: Vec::new(),
        remote_pod: None,
        ranges: Vec::new(),
        network: None,
        fixed: Vec::new(),
        routes: Vec::new(),
        rules: Vec::new(),
        gateways: Vec::new(),
        sysctls: [].into(),
        limits: Default::default(),
        definition: None,
    }
}

fn gre_to(pod: &str, far: &str) -> InterfaceIntent {
    InterfaceIntent { remote_pod: Some(far.to_owned()), ..tunnel(pod, Kind::Gre(Gre::default())) }
}

fn tunnel_object(name: &str, intent: InterfaceIntent) -> StoredObject {
    object("Gre", "cnf", name, vec![IntentSpec::Interface(Box::new(intent))])
}

fn common_network(range: &str) -> StoredObject {
    object("PodConfig", "cnf", "common", vec![veth("x", "pc", "pcbr0", range)])
}

/// Two pods on one network.
fn two_pods() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a", "b", "b-again"]));
    node.handle(Event::SandboxUpdated(with_tunnels("a", 1)));
    node.handle(Event::SandboxUpdated(with_tunnels("b", 2)));
    node.handle(Event::ObjectApplied(common_network("192.168.100.0/24")));
    node
}

fn remote(node: &Node, pod: &str) -> Option<String> {
    let link = node.link(pod, "t0")?;
    match link.kind {
        Kind::Gre(gre) => gre.outer.remote.map(|remote| remote.to_string()),
        Kind::Geneve(geneve) => geneve.remote.map(|remote| remote.to_string()),
        Kind::Vxlan(vxlan) => vxlan.remote.map(|remote| remote.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tunnel_follows_its_remote_pod() {
    let mut node = two_pods();
    let object = tunnel_object("to-b", gre_to("a", "b"));
    node.handle(Event::ObjectApplied(object.clone()));
    assert_eq!(remote(&node, "a").as_deref(), Some("192.168.100.3"));
    assert_eq!(node.state.report(&key(&object)).unwrap().phase, Phase::Configured);

    // The network gets another range: both pods have new addresses.
    node.handle(Event::ObjectApplied(common_network("192.168.7.0/24")));
    assert_eq!(remote(&node, "a").as_deref(), Some("192.168.7.3"));

    // The pod is deleted, and the tunnel with it; a new pod of the same name has another address.
    node.handle(Event::SandboxRemoved(SandboxId("b".to_owned())));
    assert_eq!(remote(&node, "a"), None);
    assert!(
        node.problems("to-b")[0].contains("there is no pod cnf/b on this node"),
        "{:?}",
        node.problems("to-b")
    );
    let again = Sandbox { pod: "b".to_owned(), ..sandbox("b-again", 3, "cnf", "x") };
    node.handle(Event::SandboxUpdated(again));
    assert_eq!(remote(&node, "a").as_deref(), Some("192.168.7.4"));
    assert_eq!(node.problems("to-b"), Vec::<String>::new());
    assert_eq!(node.replayed(), node.state.persistent());

    // Without its label the remote pod is on no common network.
    let mut unlabelled = Sandbox { pod: "b".to_owned(), ..sandbox("b-again", 3, "cnf", "x") };
    unlabelled.labels.clear();
    node.handle(Event::SandboxUpdated(unlabelled));
    assert_eq!(remote(&node, "a"), None);
    assert!(node.problems("to-b")[0].contains("pod cnf/b has no address on a network of pod cnf/a"));
}

#[test]
fn two_pods_may_be_each_others_remote_in_any_order() {
    let mut node = Node::with_kernel(with_eth0(&["a", "b"]));
    node.handle(Event::ObjectApplied(tunnel_object("to-b", gre_to("a", "b"))));
    let vxlan = Vxlan { remote: None, local: None, ..Vxlan::full_for_tests() };
    let back = InterfaceIntent {
        remote_pod: Some("a".to_owned()),
        parent: Some("pc".to_owned()),
        ..tunnel("b", Kind::Vxlan(vxlan))
    };
    node.handle(Event::ObjectApplied(tunnel_object("to-a", back)));
    node.handle(Event::SandboxUpdated(with_tunnels("a", 1)));
    node.handle(Event::SandboxUpdated(with_tunnels("b", 2)));
    node.handle(Event::ObjectApplied(common_network("192.168.100.0/24")));
    assert_eq!(remote(&node, "a").as_deref(), Some("192.168.100.3"));
    assert_eq!(remote(&node, "b").as_deref(), Some("192.168.100.2"));
}

#[test]
fn remote_address_family_matches_the_tunnel() {
    let mut node = two_pods();
    node.handle(Event::ObjectApplied(common_network("fd00:100::/64")));
    let geneve = Kind::Geneve(Geneve { vni: 7, ..Geneve::default() });
    let intent = InterfaceIntent { remote_pod: Some("b".to_owned()), ..tunnel("a", geneve) };
    node.handle(Event::ObjectApplied(tunnel_object("to-b", intent)));
    assert_eq!(remote(&node, "a").as_deref(), Some("fd00:100::3"));
    node.handle(Event::ObjectApplied(tunnel_object("to-b", gre_to("a", "b"))));
    let Kind::Gre(gre) = node.link("a", "t0").unwrap().kind else { panic!("expected GRE") };
    assert_eq!((gre.form.name(), gre.outer.local.unwrap().to_string()), ("ip6gre", "fd00:100::2".to_owned()));
    let ipv4 = Gre { outer: TunnelFields::between(Some([10, 0, 0, 1].into()), None), ..Gre::default() };
    let intent = InterfaceIntent { kind: Kind::Gre(ipv4), ..gre_to("a", "b") };
    node.handle(Event::ObjectApplied(tunnel_object("to-b", intent)));
    let problems = node.problems("to-b");
    assert!(problems[0].contains("10.0.0.1 is of the other family"), "{problems:?}");
}

#[test]
fn invalid_remote_pod_is_rejected() {
    let mut node = two_pods();
    let mut rejection = |intent: InterfaceIntent| {
        node.handle(Event::ObjectApplied(tunnel_object("t", intent)));
        node.problems("t").join("\n")
    };
    assert!(rejection(gre_to("a", "a")).contains("pod cnf/a would be the remote end of its own tunnel"));
    assert!(rejection(gre_to("a", "nobody")).contains("there is no pod cnf/nobody on this node"));
    let over_eth0 = InterfaceIntent { parent: Some("eth0".to_owned()), ..gre_to("a", "b") };
    assert!(rejection(over_eth0).contains("eth0 is not Knit's: state the remote address"));
}

#[test]
fn gre_parent_must_be_an_interface_of_the_pod() {
    let mut node = two_pods();
    let uplink = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec!["*".to_owned()],
        kinds: Vec::new(),
        vlans: Vec::new(),
        max_mtu: None,
    };
    node.handle(Event::ObjectApplied(object("Uplink", "", "fabric", vec![IntentSpec::Uplink(uplink)])));
    for parent in ["fabric", "pcbr0"] {
        let intent =
            InterfaceIntent { parent: Some(parent.to_owned()), ..tunnel("a", Kind::Gre(Gre::default())) };
        node.handle(Event::ObjectApplied(tunnel_object("t", intent)));
        let problems = node.problems("t").join("\n");
        assert!(
            problems.contains("is on the node, but the parent of a gre link must be an interface of the pod"),
            "{problems}"
        );
    }
}

#[test]
fn mtu_subtracts_the_encapsulation() {
    let mut node = two_pods();
    let mut mtu = |parent: Option<&str>, mtu: Option<u32>| {
        let attrs = Attrs { mtu, ..Attrs::default() };
        let remote = Some([192, 168, 100, 3].into());
        let kind = Kind::Gre(Gre { outer: TunnelFields::between(None, remote), ..Gre::default() });
        let intent = InterfaceIntent { attrs, parent: parent.map(str::to_owned), ..tunnel("a", kind) };
        let object = tunnel_object("t", intent);
        node.handle(Event::ObjectApplied(object.clone()));
        (node.link("a", "t0").unwrap().attrs.mtu.unwrap(), node.state.report(&key(&object)).unwrap().warnings)
    };
    assert_eq!(mtu(None, None), (1476, Vec::new()));
    assert_eq!(mtu(Some("pc"), Some(1400)), (1400, Vec::new()));
    let warning = "MTU 1500 of t0 in pod cnf/a does not fit into pc1's 1500 minus 24: packets will be fragmented or dropped";
    assert_eq!(mtu(Some("pc"), Some(1500)), (1500, vec![warning.to_owned()]));
    assert!(mtu(None, Some(1500)).1[0].contains("the usual 1500 minus 24"));

    let mut small = common_network("192.168.100.0/24");
    let IntentSpec::Interface(intent) = &mut small.intents[0].spec else { panic!("expected an interface") };
    intent.attrs.mtu = Some(1400);
    node.handle(Event::ObjectApplied(small));
    node.handle(Event::ObjectApplied(object("PrimaryNetwork", "cnf", "jumbo", vec![eth0_mtu("x", 9000)])));
    let mut over = |parent: &str| {
        let kind = Kind::Gre(Gre {
            outer: TunnelFields::between(None, Some([192, 168, 100, 3].into())),
            ..Gre::default()
        });
        let intent = InterfaceIntent { parent: Some(parent.to_owned()), ..tunnel("a", kind) };
        node.handle(Event::ObjectApplied(tunnel_object("t", intent)));
        node.link("a", "t0").unwrap().attrs.mtu.unwrap()
    };
    assert_eq!((over("pc"), over("eth0")), (1376, 8976));
}

#[test]
fn first_address_of_a_range_is_usable_without_a_bridge() {
    let mut node = two_pods();
    let kind = Kind::Gre(Gre {
        outer: TunnelFields::between(None, Some([192, 168, 100, 3].into())),
        ..Gre::default()
    });
    let intent = InterfaceIntent { fixed: vec!["10.70.0.1/30".parse().unwrap()], ..tunnel("a", kind) };
    let object = tunnel_object("t", intent);
    node.handle(Event::ObjectApplied(object.clone()));
    let report = node.state.report(&key(&object)).unwrap();
    assert_eq!(report.problems, Vec::new());
    assert_eq!(report.pods[0].interfaces[0].addresses, ["10.70.0.1/30".parse().unwrap()]);
}
