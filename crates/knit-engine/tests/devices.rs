//! NICs of the host that are lent: to whom, for how long, and what comes back.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, NameRule, UplinkIntent};
use knit_model::link::{Attrs, HostDevice, Kind, Lent, Link};
use knit_model::report::Phase;
use knit_model::{NetState, SandboxId, Scope};
use support::node::{Node, key, object, sandbox, veth};

/// A host with a NIC `eno1`, and two sandboxes.
fn node() -> Node {
    let mut state = NetState::default();
    let mut nic = Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs = Lent::returned(&Attrs::full_for_tests());
    state.scope(&Scope::Host).add_link(nic);
    let mut node = Node::holding(state);
    node.hear(Event::SandboxSeen(sandbox("a", 1, "cnf", "x")));
    node.hear(Event::SandboxSeen(sandbox("b", 2, "cnf", "y")));
    node
}

fn uplink(kinds: &[&str]) -> StoredObject {
    let want = UplinkIntent {
        name: "fabric".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: vec!["cnf".to_owned()],
        kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        vlans: Vec::new(),
        max_mtu: None,
    };
    object("Uplink", "", "fabric", vec![IntentSpec::Uplink(want)])
}

fn nic(name: &str, label: &str, mtu: Option<u32>) -> StoredObject {
    let IntentSpec::Interface(mut want) = veth(label, "unused", "unused", "10.9.0.0/24") else {
        unreachable!()
    };
    want.name = NameRule::Exact("wire0".parse().unwrap());
    want.kind = Kind::HostDevice(HostDevice::default());
    want.parent = Some("fabric".to_owned());
    want.master = None;
    want.attrs.mtu = mtu;
    object("HostDevice", "cnf", name, vec![IntentSpec::Interface(want)])
}

#[test]
fn a_nic_is_lent_to_one_at_a_time_and_only_where_that_is_said() {
    let mut node = node();
    let home = node.host_link("eno1").unwrap();
    let first = nic("first", "x", Some(1300));
    node.hear(Event::ObjectApplied(first.clone()));
    assert_eq!(
        node.problems("first"),
        ["spec.entries[0]: there is no Uplink fabric: a host-device is the NIC of one"]
    );
    for closed in [&[][..], &["macvlan"]] {
        node.hear(Event::ObjectApplied(uplink(closed)));
        assert!(node.problems("first")[0].contains("is not open to host-device links"), "{closed:?}");
    }
    node.hear(Event::ObjectApplied(uplink(&["host-device"])));
    let lent = node.link("a", "wire0").unwrap();
    assert_eq!((lent.attrs.mtu, lent.attrs.mac), (Some(1300), home.attrs.mac));
    assert!(node.host_link("eno1").is_none());
    let report = node.state.report(&key(&first)).unwrap();
    assert_eq!((report.phase, report.pods[0].interfaces[0].mac), (Phase::Configured, home.attrs.mac));

    node.hear(Event::ObjectApplied(nic("second", "y", None)));
    assert_eq!(
        node.problems("second"),
        ["spec.entries[0]: NIC eno1 of uplink fabric is lent already: one pod at a time has it"]
    );
    // What is no longer asked for is as it was at home.
    node.hear(Event::ObjectApplied(nic("first", "x", None)));
    assert_eq!(node.link("a", "wire0").unwrap().attrs.mtu, home.attrs.mtu);
    node.hear(Event::ObjectDeleted(key(&first)));
    node.hear(Event::Resync);
    assert!(node.link("a", "wire0").is_none() && node.link("b", "wire0").is_some());
    node.hear(Event::ObjectApplied(uplink(&["macvlan"])));
    assert_eq!(node.host_link("eno1"), Some(home));
    assert_eq!(node.replayed(), node.state.remembered());
}

#[test]
fn a_nic_that_came_home_under_another_name_is_found_by_its_mark() {
    let mut node = node();
    let home = node.host_link("eno1").unwrap();
    node.hear(Event::ObjectApplied(uplink(&["host-device"])));
    node.hear(Event::ObjectApplied(nic("first", "x", Some(1300))));
    // As the kernel does when a namespace ends: the NIC is on the host, down, with its mark and what the pod had set.
    let mut lent = node.link("a", "wire0").unwrap();
    let mut state = NetState::default();
    lent.name = "dev7".parse().unwrap();
    lent.attrs.up = Some(false);
    state.scope(&Scope::Host).add_link(lent);
    node.kernel = support::kernel::Kernel::holding(state);
    node.hear(Event::SandboxGone(SandboxId("a".to_owned())));
    assert_eq!(node.host_link("eno1"), Some(home));
    assert!(node.host_link("dev7").is_none());
}
