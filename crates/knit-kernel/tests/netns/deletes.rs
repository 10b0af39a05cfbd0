//! Deletion of links: immediate, or deferred.

use knit_kernel::DeleteMode;
use knit_kernel::fault::NoFaults;
use knit_model::{NetState, Scope, kernel_ids};

use crate::support::node::{TestNode, sandbox};
use crate::support::states::{self, add_bridge, add_macvlan, add_veth, name};

fn two_pods() -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24", "fd50::3/64"]);
    add_macvlan(&mut state, "a", "br0", &["10.51.0.2/24"]);
    state
}

#[test]
fn a_detached_link_is_gone_for_the_pod_and_its_names_are_free() {
    let node = TestNode::new("cut", &["a", "b"]);
    let before = node.dumps();
    let state = two_pods();
    node.converge(&state);
    node.sandboxes[1].ping("10.50.0.2").unwrap();
    let mut without = state.clone();
    without.scopes.remove(&sandbox("a"));
    without.scope(&Scope::Host).links.remove(&name("ha"));

    let plan = node.plan(&without);
    let applied = node.apply_with(&plan, DeleteMode::Deferred, &mut NoFaults).unwrap();
    assert_eq!(applied.deferred_deletes, [Scope::Host, sandbox("a")].into());
    assert!(node.plan(&without).is_empty(), "detached links are not observed");
    let missing = node.kernel().verify(&plan, &mut node.namespaces()).unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    let shown = node.sandboxes[0].ip(&["addr", "show", "up"]);
    assert!(!shown.contains("net1") && !shown.contains("10.50"), "{shown}");
    assert_eq!(node.sandboxes[0].ip(&["route"]), "");
    node.sandboxes[1].ping("10.50.0.2").unwrap_err();

    // The same attachments are recreated before the deferred deletion.
    node.converge(&state);
    node.sandboxes[1].ping("10.50.0.2").unwrap();
    node.sandboxes[1].ping("fd50::2").unwrap();

    node.kernel().delete_deferred(&applied.deferred_deletes, &mut node.namespaces()).unwrap();
    assert!(node.plan(&state).is_empty(), "only detached links are deleted");
    node.sandboxes[1].ping("10.50.0.2").unwrap();

    let plan = node.plan(&NetState::default());
    let applied = node.apply_with(&plan, DeleteMode::Deferred, &mut NoFaults).unwrap();
    node.kernel().delete_deferred(&applied.deferred_deletes, &mut node.namespaces()).unwrap();
    node.assert_unchanged(&before, "after deferred deletion");
    node.kernel().delete_deferred(&applied.deferred_deletes, &mut node.namespaces()).unwrap();
}

#[test]
fn a_link_left_unmarked_by_a_crash_is_found_and_removed() {
    let node = TestNode::new("unborn", &["a"]);
    let before = node.dumps();
    let group = kernel_ids::NEW_LINK_GROUP.to_string();
    node.host.ip(&[
        "link",
        "add",
        "ha",
        "group",
        &group,
        "type",
        "veth",
        "peer",
        "name",
        "net1",
        "group",
        &group,
        "netns",
        node.sandboxes[0].name(),
    ]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = node.converge(&state);
    assert!(plan.to_string().contains("left unfinished by a crash"), "{plan}");
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn deleting_a_missing_link_succeeds() {
    let node = TestNode::new("twice", &["a"]);
    let before = node.dumps();
    let mut state = states::everything();
    state.scope(&sandbox("a")).sysctls.clear();
    node.converge(&state);
    let plan = node.plan(&NetState::default());
    for delete_mode in [DeleteMode::Immediate, DeleteMode::Deferred] {
        node.apply_with(&plan, delete_mode, &mut NoFaults).unwrap();
        node.assert_unchanged(&before, "after removal");
    }
}

#[test]
fn a_renamed_link_is_deleted_by_its_mark() {
    let node = TestNode::new("renamed", &["a"]);
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    node.converge(&state);
    let plan = node.plan(&NetState::default());
    node.host.ip(&["link", "set", "ha", "name", "other0"]);
    node.host.ip(&["link", "add", "ha", "type", "bridge"]);
    node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap();
    node.host.ip(&["link", "del", "ha"]);
    node.assert_unchanged(&before, "after removal");
}
