//! NICs of the host moved into sandboxes: used, changed, failed at every step, and moved back with their settings,
//! also after the kernel moved them when a sandbox ended. A veth pair stands for the NIC and its cable.

use knit_kernel::DeleteMode;
use knit_kernel::fault::NoFaults;
use knit_model::link::{HostDevice, Kind, MovedDevice};
use knit_model::plan::{Desired, diff, fill_original_attrs};
use knit_model::{Address, NetState, Scope};

use crate::support::edits::{Edit, change_each, flush_neighbours};
use crate::support::faults::survive_every_fault_fast;
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{link, name, net};

/// A host with a NIC `nic0` that is up, cabled to the last sandbox.
fn node(test: &str) -> TestNode {
    let node = TestNode::new(test, &["a", "far"]);
    let far = &node.sandboxes[1];
    let far_netns = far.path().file_name().unwrap().to_str().unwrap();
    node.host.ip(&["link", "add", "nic0", "type", "veth", "peer", "name", "far0", "netns", far_netns]);
    node.host.ip(&["link", "set", "nic0", "mtu", "1400", "txqueuelen", "77", "group", "9"]);
    node.host.ip(&["link", "set", "nic0", "address", "02:00:00:00:00:77", "alias", "of the admin"]);
    node.host.ip(&["link", "set", "nic0", "up", "allmulticast", "on"]);
    far.ip(&["address", "add", "10.80.0.9/24", "dev", "far0"]);
    far.ip(&["link", "set", "far0", "up"]);
    node
}

/// The NIC in sandbox `a` under this name, with an address.
fn with_nic(text: &str) -> NetState {
    let mut state = NetState::default();
    let kind = Kind::HostDevice(HostDevice(MovedDevice { device: Some(name("nic0")), original: None }));
    let mut nic = link(&sandbox("a"), text, kind);
    nic.parent_scope = Some(Scope::Host);
    let pod = state.scope(&sandbox("a"));
    pod.add_link(nic);
    pod.add_address(Address::new(name(text), net("10.80.0.2/24")));
    state
}

/// The desired state with the original settings of the NIC filled in.
fn settled(node: &TestNode, mut state: NetState) -> NetState {
    fill_original_attrs(&mut state, &node.observe());
    state
}

#[test]
fn a_nic_is_moved_into_a_sandbox_and_back() {
    let node = node("move");
    // The link-local address is added with a delay.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = node.dumps();
    let state = settled(&node, with_nic("net1"));
    survive_every_fault_fast(&node, &node.plan(&state));
    node.converge(&state);
    let shown = node.sandboxes[0].ip(&["-d", "link", "show", "dev", "net1"]);
    for part in [
        "mtu 1400",
        "qlen 77",
        "link/ether 02:00:00:00:00:77",
        "group 9",
        "alias of the admin",
        "altname knit-",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert!(node.host.output("ip", &["link", "show", "dev", "nic0"]).is_err());
    node.sandboxes[0].ping("10.80.0.9").unwrap();

    // Another name in the pod moves it back and in again.
    let other = settled(&node, with_nic("net2"));
    survive_every_fault_fast(&node, &node.plan(&other));
    node.converge(&other);
    node.converge(&settled(&node, with_nic("net1")));
    survive_every_fault_fast(&node, &node.plan(&NetState::default()));

    // Field by field while it is in the sandbox; removed fields return to their original values.
    let mut changed = state.clone();
    let edits: &[Edit] = &[
        ("mtu", |link| link.attrs.mtu = Some(1280)),
        ("mac", |link| link.attrs.mac = Some(knit_model::Mac::derived("another"))),
        ("txqueuelen", |link| link.attrs.txqueuelen = Some(5)),
        ("group", |link| link.attrs.group = Some(4)),
        ("promisc", |link| link.attrs.promisc = Some(true)),
        ("allmulticast", |link| link.attrs.allmulticast = Some(false)),
    ];
    change_each(&node, &mut changed, &sandbox("a"), "net1", edits);
    flush_neighbours(&node);
    node.sandboxes[0].ping("10.80.0.9").unwrap();
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after it was moved back");
}

#[test]
fn a_nic_returned_by_the_kernel_is_restored() {
    let node = node("movehome");
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = node.dumps();
    let mut state = settled(&node, with_nic("net1"));
    state.scope(&sandbox("a")).links.get_mut(&name("net1")).unwrap().attrs.mtu = Some(1280);
    let host = node.host.path().file_name().unwrap().to_str().unwrap().to_owned();
    for (text, mtu) in [("dev77", "1280"), ("nic0", "1500"), ("net1", "900")] {
        node.converge(&state);
        // Like the kernel with a real NIC when a namespace ends: down, under its original name or another.
        let pod = &node.sandboxes[0];
        pod.ip(&["link", "set", "net1", "mtu", mtu]);
        pod.ip(&["link", "set", "net1", "netns", &host, "name", text]);
        let plan = diff(&Desired::default(), &node.observe());
        survive_every_fault_fast(&node, &plan);
        node.apply_with(&plan, DeleteMode::Deferred, &mut NoFaults).unwrap();
        node.assert_unchanged(&before, &format!("after it was {text}"));
    }
}

#[test]
fn a_taken_name_is_reported_and_the_nic_keeps_its_mark() {
    let node = node("movetaken");
    let state = settled(&node, with_nic("net1"));
    node.converge(&state);
    node.host.ip(&["link", "add", "nic0", "type", "bridge"]);
    let plan = diff(&Desired::default(), &node.observe());
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
    let text = "move NIC nic0 back from sandbox a: the host now has another link of that name";
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    node.sandboxes[0].ping("10.80.0.9").unwrap();
    node.host.ip(&["link", "del", "nic0"]);
    node.converge(&NetState::default());
    assert!(node.host.ip(&["link", "show", "dev", "nic0"]).contains("mtu 1400"));
}
