//! Attach options: address ranges requested by the caller, and a host device that becomes the interface.

use knit_engine::call::{
    AttachmentMetadata, DetachRequest, DetachScope, InterfaceRequest, RangeRequest, RequestedDevice,
    SandboxRequest,
};
use knit_engine::{AttachRequest, CallId, CallResult, Event, State};
use knit_model::intent::{IntentSpec, InterfaceIntent, NetworkIntent, SegmentIntent, UplinkIntent};
use knit_model::link::{Attrs, HostDevice, Kind, Link, MovedDevice};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::{NetState, SandboxId, Scope};

use crate::support::node::{Node, object, veth};

/// A host with a NIC `eno1`, and a dual-stack network `blue` in namespace `cnf`.
fn node() -> Node {
    let mut state = NetState::default();
    let mut nic = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = MovedDevice::saved_attrs(&Attrs::full_for_tests());
    state.scope(&Scope::Host).add_link(nic);
    let mut node = Node::with_kernel(state);
    let ranges = ["10.75.0.0/24", "fd75::/64"].map(|range| range.parse().unwrap()).to_vec();
    let network =
        NetworkIntent { name: "blue".to_owned(), ranges, isolated: false, mtu: None, overlay: None };
    node.handle(Event::ObjectApplied(object(
        "VirtualNetwork",
        "cnf",
        "blue",
        vec![IntentSpec::Network(network)],
    )));
    node
}

fn attach(
    node: &mut Node,
    id: &str,
    network: &str,
    options: &InterfaceRequest,
) -> Result<Vec<String>, Problem> {
    node.handle(Event::AttachRequested(Box::new(AttachRequest {
        call: CallId(format!("{id}-{}", node.journal.len())),
        dialect: Dialect::Cni,
        sandbox: SandboxRequest {
            id: id.to_owned(),
            netns: format!("/{id}"),
            namespace: "cnf".to_owned(),
            ..SandboxRequest::default()
        },
        interfaces: vec![("net1".parse().unwrap(), network.to_owned(), options.clone())],
        metadata: AttachmentMetadata::default(),
        fail_if_present: false,
        ticket: 7,
        started_at: 0,
    })));
    match node.results.pop().unwrap() {
        CallResult::Attached { interfaces, .. } => {
            let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
            Ok(addresses.map(ToString::to_string).collect())
        }
        CallResult::Failed(problem) => Err(problem),
        other => panic!("{other:?}"),
    }
}

fn detach(node: &mut Node, id: &str) {
    let (call, sandbox) = (CallId(format!("{id}-detach")), SandboxId(id.to_owned()));
    let (which, netns) = (DetachScope::All, String::new());
    node.handle(Event::DetachRequested(DetachRequest {
        call,
        sandbox,
        netns,
        scope: which,
        forget_sandbox: true,
        started_at: 0,
    }));
    assert_eq!(node.results.pop(), Some(CallResult::Detached));
}

fn range_sets(sets: &[&[&str]]) -> InterfaceRequest {
    let range = |subnet: &&str| RangeRequest {
        subnet: subnet.parse().unwrap(),
        first: None,
        last: None,
        gateway: None,
    };
    InterfaceRequest {
        sets: sets.iter().map(|set| set.iter().map(range).collect()).collect(),
        ..InterfaceRequest::default()
    }
}

fn is_empty(node: &Node) -> bool {
    let state: &State = &node.state;
    let held = state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count();
    held == 0 && state.sandboxes.is_empty() && state.attachments.all().count() == 0
}

#[test]
fn each_range_set_yields_one_address_and_a_repeated_attach_yields_the_same() {
    let mut node = node();
    // Two addresses in the first range of the set, then the second range; IPv6 is allocated as usual.
    let options = range_sets(&[&["10.75.0.64/30", "10.75.0.128/30"]]);
    for (id, v4, v6) in [
        ("a", "10.75.0.65/24", "fd75::2/64"),
        ("b", "10.75.0.66/24", "fd75::3/64"),
        ("c", "10.75.0.129/24", "fd75::4/64"),
    ] {
        assert_eq!(attach(&mut node, id, "blue", &options).unwrap(), [v6, v4]);
    }
    // The first range has capacity again, but an existing lease of the second is kept, also after a restart.
    detach(&mut node, "a");
    assert_eq!(attach(&mut node, "c", "blue", &options).unwrap(), ["fd75::4/64", "10.75.0.129/24"]);
    node.state = node.replayed();
    node.handle(Event::Resync);
    assert_eq!(attach(&mut node, "c", "blue", &options).unwrap(), ["fd75::4/64", "10.75.0.129/24"]);
    // Different ranges are a different request.
    let rejected = attach(&mut node, "c", "blue", &range_sets(&[&["10.75.0.64/30"]])).unwrap_err();
    assert_eq!(rejected.reason, Reason::Conflict, "{rejected}");
    // Two sets in one subnet yield two addresses; a fixed address takes the place of its set.
    let mut two = range_sets(&[&["10.75.0.32/29"], &["10.75.0.40/29"], &["fd75::100/120"]]);
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
    assert!(is_empty(&node), "{:?}", node.state.attachments);
}

#[test]
fn exhausted_or_foreign_range_set_leaves_nothing() {
    let mut node = node();
    let one = range_sets(&[&["10.75.0.9/32"], &["fd75::100/120"]]);
    attach(&mut node, "a", "blue", &one).unwrap();
    let full = attach(&mut node, "b", "blue", &one).unwrap_err();
    assert_eq!(full.reason, Reason::AddressesExhausted);
    assert!(full.message.contains("10.75.0.9-10.75.0.9 of 10.75.0.0/24 is exhausted"), "{full}");
    assert!(!node.state.sandboxes.contains_key(&SandboxId("b".to_owned())));
    detach(&mut node, "a");
    assert!(is_empty(&node));
    let before = node.journal.len();
    let rejected =
        attach(&mut node, "b", "blue", &range_sets(&[&["10.75.0.0/28"], &["10.9.0.0/24"]])).unwrap_err();
    assert_eq!(
        (rejected.reason, rejected.field.as_str()),
        (Reason::InvalidValue, "interfaces[0].range_sets[1].ranges[0].subnet")
    );
    assert_eq!(node.journal.len(), before, "nothing was journalled");
    assert!(is_empty(&node));
}

/// Device `0000:00:1f.6` and its NIC as the node finds it.
fn device(nic: Result<&str, &str>, network: Option<&str>) -> InterfaceRequest {
    let IntentSpec::Interface(intent) = veth("x", "unused", "unused", "10.9.0.0/24") else { unreachable!() };
    let link = InterfaceIntent {
        kind: Kind::HostDevice(HostDevice::default()),
        master: None,
        ranges: Vec::new(),
        network: network.map(str::to_owned),
        fixed: if network.is_none() { vec!["10.9.0.2/24".parse().unwrap()] } else { Vec::new() },
        ..*intent
    };
    let nic = nic.map(|name| name.parse().unwrap()).map_err(str::to_owned);
    let device = RequestedDevice { id: "0000:00:1f.6".to_owned(), nic: Some(nic) };
    InterfaceRequest { link: Some(Box::new(link)), device: Some(device), ..InterfaceRequest::default() }
}

fn open_uplink(node: &mut Node, namespace: &str, kinds: &[&str]) {
    let uplink = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec![namespace.to_owned()],
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        vlans: Vec::new(),
        max_mtu: None,
    };
    node.handle(Event::ObjectApplied(object("Uplink", "", "fabric", vec![IntentSpec::Uplink(uplink)])));
}

#[test]
fn device_is_moved_through_an_open_uplink_and_returns_to_the_host() {
    let mut node = node();
    let original = node.host_link("eno1").unwrap();
    let on_host = device(Ok("eno1"), None);
    for (namespace, kinds) in [("other", &["host-device"][..]), ("cnf", &["macvlan"]), ("cnf", &[])] {
        open_uplink(&mut node, namespace, kinds);
        let rejected = attach(&mut node, "a", "", &on_host).unwrap_err();
        assert_eq!(rejected.reason, Reason::NotAllowed);
        assert!(
            rejected.message.contains("NIC eno1 must not be moved into pods of namespace cnf"),
            "{rejected}"
        );
        assert!(is_empty(&node) && node.host_link("eno1").as_ref() == Some(&original));
    }
    open_uplink(&mut node, "cnf", &["host-device"]);
    assert_eq!(attach(&mut node, "a", "", &on_host).unwrap(), ["10.9.0.2/24"]);
    assert!(node.link("a", "net1").is_some() && node.host_link("eno1").is_none());
    // The NIC of a moved device is not on the host: a repeated attach of its pod succeeds, also after a restart.
    let moved = device(Err("device 0000:00:1f.6 has no NIC"), None);
    for _ in 0..2 {
        assert_eq!(attach(&mut node, "a", "", &moved).unwrap(), ["10.9.0.2/24"]);
        node.state = node.replayed();
        node.handle(Event::Resync);
    }
    let rejected = attach(&mut node, "b", "", &moved).unwrap_err();
    assert_eq!(rejected.reason, Reason::Conflict);
    assert!(rejected.message.contains("device 0000:00:1f.6 is interface net1 of sandbox a"), "{rejected}");
    detach(&mut node, "a");
    assert_eq!(node.host_link("eno1"), Some(original.clone()));
    let rejected = attach(&mut node, "b", "", &moved).unwrap_err();
    assert_eq!(
        (rejected.reason, rejected.message.as_str()),
        (Reason::NotFound, "device 0000:00:1f.6 has no NIC")
    );
    let mut unknown = moved;
    unknown.device.as_mut().unwrap().nic = None;
    let rejected = attach(&mut node, "b", "", &unknown).unwrap_err();
    assert_eq!(
        (rejected.reason, rejected.message.as_str()),
        (Reason::NotFound, "the NIC of device 0000:00:1f.6 is unknown")
    );

    // On a network the device gets addresses and is not a bridge port.
    let on_blue = device(Ok("eno1"), Some("blue"));
    assert_eq!(attach(&mut node, "b", "blue", &on_blue).unwrap(), ["10.75.0.2/24", "fd75::2/64"]);
    assert!(node.host_link("vn-blue").is_none());
    // Closing the uplink returns the NIC to the host.
    open_uplink(&mut node, "cnf", &["macvlan"]);
    assert_eq!(node.host_link("eno1"), Some(original));
    detach(&mut node, "b");
    assert!(is_empty(&node));
}

#[test]
fn a_call_cannot_attach_to_a_segment_of_the_cluster_network() {
    let mut node = node();
    let segment = SegmentIntent { name: "cnf-vn".to_owned() };
    let object = object("VirtualNetwork", "cnf", "cnf-vn", vec![IntentSpec::Segment(segment)]);
    node.handle(Event::ObjectApplied(object));
    let problem = attach(&mut node, "a", "cnf-vn", &InterfaceRequest::default()).unwrap_err();
    assert_eq!(problem.reason, Reason::NotAllowed);
    assert!(problem.message.contains("is a segment of the cluster network"), "{problem}");
}
