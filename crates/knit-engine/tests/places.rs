//! Calls that say where their addresses come from, and which device becomes their interface.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::call::{Asked, Detach, Device, Notes, RangeWish, Which, Wished};
use knit_engine::{Answer, Attach, CallId, Event, State};
use knit_model::intent::{IntentSpec, InterfaceIntent, NetworkIntent, UplinkIntent};
use knit_model::link::{Attrs, HostDevice, Kind, Lent, Link};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::{NetState, SandboxId, Scope};
use support::node::{Node, object, veth};

/// A host with a NIC `eno1`, and a network `blue` of both families in the namespace `cnf`.
fn node() -> Node {
    let mut state = NetState::default();
    let mut nic = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = Lent::returned(&Attrs::full_for_tests());
    state.scope(&Scope::Host).add_link(nic);
    let mut node = Node::holding(state);
    let ranges = ["10.75.0.0/24", "fd75::/64"].map(|range| range.parse().unwrap()).to_vec();
    let network = NetworkIntent { name: "blue".to_owned(), ranges, isolated: false, mtu: None, span: None };
    node.hear(Event::ObjectApplied(object(
        "VirtualNetwork",
        "cnf",
        "blue",
        vec![IntentSpec::Network(network)],
    )));
    node
}

fn attach(node: &mut Node, id: &str, network: &str, asked: &Asked) -> Result<Vec<String>, Problem> {
    node.hear(Event::AttachRequested(Box::new(Attach {
        call: CallId(format!("{id}-{}", node.journal.len())),
        dialect: Dialect::Cni,
        sandbox: Wished {
            id: id.to_owned(),
            netns: format!("/{id}"),
            namespace: "cnf".to_owned(),
            ..Wished::default()
        },
        interfaces: vec![("net1".parse().unwrap(), network.to_owned(), asked.clone())],
        notes: Notes::default(),
        fail_if_present: false,
        ticket: 7,
        began: 0,
    })));
    match node.answers.pop().unwrap() {
        Answer::Attached { interfaces, .. } => {
            let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
            Ok(addresses.map(ToString::to_string).collect())
        }
        Answer::Failed(problem) => Err(problem),
        other => panic!("{other:?}"),
    }
}

fn detach(node: &mut Node, id: &str) {
    let (call, sandbox) = (CallId(format!("{id}-away")), SandboxId(id.to_owned()));
    let (which, netns) = (Which::All, String::new());
    node.hear(Event::DetachRequested(Detach { call, sandbox, netns, which, forget: true, began: 0 }));
    assert_eq!(node.answers.pop(), Some(Answer::Detached));
}

fn sets(sets: &[&[&str]]) -> Asked {
    let wish =
        |subnet: &&str| RangeWish { subnet: subnet.parse().unwrap(), first: None, last: None, gateway: None };
    Asked { sets: sets.iter().map(|set| set.iter().map(wish).collect()).collect(), ..Asked::default() }
}

fn is_at_rest(node: &Node) -> bool {
    let state: &State = &node.state;
    let held = state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count();
    held == 0 && state.sandboxes.is_empty() && state.called.all().count() == 0
}

#[test]
fn each_set_gives_an_address_its_ranges_in_order_and_asking_again_gives_the_same() {
    let mut node = node();
    // Two addresses in the first range of the set, then the second range; the other family is as always.
    let asked = sets(&[&["10.75.0.64/30", "10.75.0.128/30"]]);
    for (id, v4, v6) in [
        ("a", "10.75.0.65/24", "fd75::2/64"),
        ("b", "10.75.0.66/24", "fd75::3/64"),
        ("c", "10.75.0.129/24", "fd75::4/64"),
    ] {
        assert_eq!(attach(&mut node, id, "blue", &asked).unwrap(), [v6, v4]);
    }
    // The first range has one again, but who has one of the second keeps it; so it is after a restart.
    detach(&mut node, "a");
    assert_eq!(attach(&mut node, "c", "blue", &asked).unwrap(), ["fd75::4/64", "10.75.0.129/24"]);
    node.state = node.replayed();
    node.hear(Event::Resync);
    assert_eq!(attach(&mut node, "c", "blue", &asked).unwrap(), ["fd75::4/64", "10.75.0.129/24"]);
    // Another place is another request.
    let refused = attach(&mut node, "c", "blue", &sets(&[&["10.75.0.64/30"]])).unwrap_err();
    assert_eq!(refused.reason, Reason::Conflict, "{refused}");
    // Two sets of one range give two addresses; one by value is the one of its set.
    let mut two = sets(&[&["10.75.0.32/29"], &["10.75.0.40/29"], &["fd75::100/120"]]);
    assert_eq!(
        attach(&mut node, "d", "blue", &two).unwrap(),
        ["10.75.0.33/24", "10.75.0.41/24", "fd75::101/64"]
    );
    two.addresses = vec!["10.75.0.43".parse().unwrap()];
    assert_eq!(
        attach(&mut node, "e", "blue", &two).unwrap(),
        ["10.75.0.34/24", "fd75::102/64", "10.75.0.43/24"]
    );
    ["b", "c", "d", "e"].iter().for_each(|id| detach(&mut node, id));
    assert!(is_at_rest(&node), "{:?}", node.state.called);
}

#[test]
fn a_set_that_is_full_or_not_the_networks_leaves_nothing_behind() {
    let mut node = node();
    let one = sets(&[&["10.75.0.9/32"], &["fd75::100/120"]]);
    attach(&mut node, "a", "blue", &one).unwrap();
    let full = attach(&mut node, "b", "blue", &one).unwrap_err();
    assert_eq!(full.reason, Reason::AddressesExhausted);
    assert!(full.message.contains("10.75.0.9-10.75.0.9 of 10.75.0.0/24 is exhausted"), "{full}");
    assert!(!node.state.sandboxes.contains_key(&SandboxId("b".to_owned())));
    detach(&mut node, "a");
    assert!(is_at_rest(&node));
    let before = node.journal.len();
    let refused = attach(&mut node, "b", "blue", &sets(&[&["10.75.0.0/28"], &["10.9.0.0/24"]])).unwrap_err();
    assert_eq!(
        (refused.reason, refused.field.as_str()),
        (Reason::InvalidValue, "interfaces[0].range_sets[1].ranges[0].subnet")
    );
    assert_eq!(node.journal.len(), before, "nothing was even written down");
    assert!(is_at_rest(&node));
}

/// The NIC of the device `0000:00:1f.6`, as the node sees it.
fn device(nic: Result<&str, &str>, network: Option<&str>) -> Asked {
    let IntentSpec::Interface(want) = veth("x", "unused", "unused", "10.9.0.0/24") else { unreachable!() };
    let link = InterfaceIntent {
        kind: Kind::HostDevice(HostDevice::default()),
        master: None,
        ranges: Vec::new(),
        network: network.map(str::to_owned),
        fixed: if network.is_none() { vec!["10.9.0.2/24".parse().unwrap()] } else { Vec::new() },
        ..*want
    };
    let nic = nic.map(|name| name.parse().unwrap()).map_err(str::to_owned);
    let device = Device { id: "0000:00:1f.6".to_owned(), nic };
    Asked { link: Some(Box::new(link)), device: Some(device), ..Asked::default() }
}

fn open(node: &mut Node, namespace: &str, kinds: &[&str]) {
    let uplink = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec![namespace.to_owned()],
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        vlans: Vec::new(),
        max_mtu: None,
    };
    node.hear(Event::ObjectApplied(object("Uplink", "", "fabric", vec![IntentSpec::Uplink(uplink)])));
}

#[test]
fn a_device_is_lent_where_an_uplink_says_so_and_comes_home() {
    let mut node = node();
    let home = node.host_link("eno1").unwrap();
    let here = device(Ok("eno1"), None);
    for (namespace, kinds) in [("other", &["host-device"][..]), ("cnf", &["macvlan"]), ("cnf", &[])] {
        open(&mut node, namespace, kinds);
        let refused = attach(&mut node, "a", "", &here).unwrap_err();
        assert_eq!(refused.reason, Reason::NotAllowed);
        assert!(refused.message.contains("NIC eno1 is not to be lent to pods of namespace cnf"), "{refused}");
        assert!(is_at_rest(&node) && node.host_link("eno1").as_ref() == Some(&home));
    }
    open(&mut node, "cnf", &["host-device"]);
    assert_eq!(attach(&mut node, "a", "", &here).unwrap(), ["10.9.0.2/24"]);
    assert!(node.link("a", "net1").is_some() && node.host_link("eno1").is_none());
    // The NIC of a device that is lent is not seen on the host: who has it is told so again, also after a restart.
    let lent = device(Err("device 0000:00:1f.6 has no NIC"), None);
    for _ in 0..2 {
        assert_eq!(attach(&mut node, "a", "", &lent).unwrap(), ["10.9.0.2/24"]);
        node.state = node.replayed();
        node.hear(Event::Resync);
    }
    let refused = attach(&mut node, "b", "", &lent).unwrap_err();
    assert_eq!(refused.reason, Reason::Conflict);
    assert!(refused.message.contains("device 0000:00:1f.6 is interface net1 of sandbox a"), "{refused}");
    detach(&mut node, "a");
    assert_eq!(node.host_link("eno1"), Some(home.clone()));
    let refused = attach(&mut node, "b", "", &lent).unwrap_err();
    assert_eq!(
        (refused.reason, refused.message.as_str()),
        (Reason::NotFound, "device 0000:00:1f.6 has no NIC")
    );

    // On a network it has addresses of it, and is no port of a bridge.
    let on_blue = device(Ok("eno1"), Some("blue"));
    assert_eq!(attach(&mut node, "b", "blue", &on_blue).unwrap(), ["10.75.0.2/24", "fd75::2/64"]);
    assert!(node.host_link("vn-blue").is_none());
    // Its uplink is closed: the NIC goes home, and the attachment says why it does not stand.
    open(&mut node, "cnf", &["macvlan"]);
    assert_eq!(node.host_link("eno1"), Some(home));
    detach(&mut node, "b");
    assert!(is_at_rest(&node));
}
