//! Host NICs that are moved into pods: which pod gets the NIC, for how long, and how it is restored.

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, NameRule, UplinkIntent};
use knit_model::link::{Attrs, HostDevice, Kind, Link, MovedDevice};
use knit_model::report::Phase;
use knit_model::{Address, NetState, SandboxId, Scope};

use crate::support::node::{Node, key, object, sandbox, veth};

/// A host with a NIC `eno1`, and two sandboxes.
fn node() -> Node {
    let mut state = NetState::default();
    let mut nic = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = MovedDevice::saved_attrs(&Attrs::full_for_tests());
    state.scope(&Scope::Host).add_link(nic);
    let mut node = Node::with_kernel(state);
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "x")));
    node.handle(Event::SandboxUpdated(sandbox("b", 2, "cnf", "y")));
    node
}

fn uplink(kinds: &[&str]) -> StoredObject {
    let intent = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec!["cnf".to_owned()],
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        vlans: Vec::new(),
        max_mtu: None,
    };
    object("Uplink", "", "fabric", vec![IntentSpec::Uplink(intent)])
}

fn nic(name: &str, label: &str, mtu: Option<u32>) -> StoredObject {
    let IntentSpec::Interface(mut intent) = veth(label, "unused", "unused", "10.9.0.0/24") else {
        unreachable!()
    };
    intent.name = NameRule::Exact("wire0".parse().unwrap());
    intent.kind = Kind::HostDevice(HostDevice::default());
    intent.parent = Some("fabric".to_owned());
    intent.master = None;
    intent.attrs.mtu = mtu;
    object("HostDevice", "cnf", name, vec![IntentSpec::Interface(intent)])
}

#[test]
fn nic_is_moved_to_one_pod_at_a_time_and_only_through_an_open_uplink() {
    let mut node = node();
    let original = node.host_link("eno1").unwrap();
    let first = nic("first", "x", Some(1300));
    node.handle(Event::ObjectApplied(first.clone()));
    assert_eq!(
        node.problems("first"),
        ["spec.entries[0]: there is no Uplink fabric: a host-device is the NIC of one"]
    );
    for closed in [&[][..], &["macvlan"]] {
        node.handle(Event::ObjectApplied(uplink(closed)));
        assert!(node.problems("first")[0].contains("is not open to host-device links"), "{closed:?}");
    }
    node.handle(Event::ObjectApplied(uplink(&["host-device"])));
    let moved = node.link("a", "wire0").unwrap();
    assert_eq!((moved.attrs.mtu, moved.attrs.mac), (Some(1300), original.attrs.mac));
    assert!(node.host_link("eno1").is_none());
    let report = node.state.report(&key(&first)).unwrap();
    assert_eq!((report.phase, report.pods[0].interfaces[0].mac), (Phase::Configured, original.attrs.mac));

    node.handle(Event::ObjectApplied(nic("second", "y", None)));
    assert_eq!(
        node.problems("second"),
        ["spec.entries[0]: NIC eno1 of uplink fabric is already moved into another pod"]
    );
    // An attribute that is no longer requested gets its value on the host.
    node.handle(Event::ObjectApplied(nic("first", "x", None)));
    assert_eq!(node.link("a", "wire0").unwrap().attrs.mtu, original.attrs.mtu);
    // The pod that waits for the NIC gets it at once.
    node.handle(Event::ObjectDeleted(key(&first)));
    assert!(node.link("a", "wire0").is_none() && node.link("b", "wire0").is_some());
    node.handle(Event::ObjectApplied(uplink(&["macvlan"])));
    assert_eq!(node.host_link("eno1"), Some(original));
    assert_eq!(node.replayed(), node.state.persistent());
}

#[test]
fn nic_returned_under_another_name_is_found_by_its_mark() {
    let mut node = node();
    let original = node.host_link("eno1").unwrap();
    node.handle(Event::ObjectApplied(uplink(&["host-device"])));
    node.handle(Event::ObjectApplied(nic("first", "x", Some(1300))));
    // As the kernel does when a netns is deleted: the NIC is on the host, down, with its mark and the pod's
    // attributes.
    let mut moved = node.link("a", "wire0").unwrap();
    let mut state = NetState::default();
    moved.name = "dev7".parse().unwrap();
    moved.attrs.up = Some(false);
    state.scope(&Scope::Host).add_link(moved);
    node.kernel = crate::support::kernel::FakeKernel::with_state(state);
    node.handle(Event::SandboxRemoved(SandboxId("a".to_owned())));
    assert_eq!(node.host_link("eno1"), Some(original));
    assert!(node.host_link("dev7").is_none());
}

#[test]
fn nic_with_an_address_of_the_host_is_not_moved() {
    let mut host = NetState::default();
    let mut eno1 = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    eno1.attrs = MovedDevice::saved_attrs(&Attrs::full_for_tests());
    host.scope(&Scope::Host).add_link(eno1);
    let address = Address::new("eno1".parse().unwrap(), "192.0.2.7/24".parse().unwrap());
    host.scope(&Scope::Host).add_address(Address { owned: false, ..address });
    let mut node = Node::with_kernel(host);
    node.handle(Event::SandboxUpdated(sandbox("a", 1, "cnf", "x")));
    node.handle(Event::ObjectApplied(uplink(&["host-device"])));
    node.handle(Event::ObjectApplied(nic("first", "x", None)));
    assert!(node.host_link("eno1").is_some());
    let problems = node.problems("first");
    assert!(problems[0].contains("NIC eno1 has the host's address 192.0.2.7/24"), "{problems:?}");
}
