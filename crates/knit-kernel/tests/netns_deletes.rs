//! Links that are deleted: at once, or cut off now and reaped later.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_kernel::fault::Unobserved;
use knit_model::{NetState, Scope, marks};
use support::states::{self, add_bridge, add_macvlan, add_veth, name};
use support::world::{World, sandbox};

fn two_pods() -> NetState {
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24", "fd50::2/64"]);
    add_veth(&mut state, "b", "br0", &["10.50.0.3/24", "fd50::3/64"]);
    add_macvlan(&mut state, "a", "br0", &["10.51.0.2/24"]);
    state
}

#[test]
fn what_is_cut_off_is_gone_for_the_pod_and_its_names_are_free() {
    let world = World::new("cut", &["a", "b"]);
    let before = world.dumps();
    let state = two_pods();
    world.make(&state);
    world.sandboxes[1].ping("10.50.0.2").unwrap();
    let mut without = state.clone();
    without.scopes.remove(&sandbox("a"));
    without.scope(&Scope::Host).links.remove(&name("ha"));

    let plan = world.plan(&without);
    let applied = world.apply_with(&plan, Deletes::Deferred, &mut Unobserved).unwrap();
    assert_eq!(applied.to_reap, [Scope::Host, sandbox("a")].into());
    assert!(world.plan(&without).is_empty(), "what is cut off is not seen any more");
    let missing = world.kernel().verify(&plan, &mut world.places()).unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    let shown = world.sandboxes[0].ip(&["addr", "show", "up"]);
    assert!(!shown.contains("net1") && !shown.contains("10.50"), "{shown}");
    assert_eq!(world.sandboxes[0].ip(&["route"]), "");
    world.sandboxes[1].ping("10.50.0.2").unwrap_err();

    // The same attachments come back before anyone has reaped.
    world.make(&state);
    world.sandboxes[1].ping("10.50.0.2").unwrap();
    world.sandboxes[1].ping("fd50::2").unwrap();

    world.kernel().reap(&applied.to_reap, &mut world.places()).unwrap();
    assert!(world.plan(&state).is_empty(), "only what was cut off is reaped");
    world.sandboxes[1].ping("10.50.0.2").unwrap();

    let plan = world.plan(&NetState::default());
    let applied = world.apply_with(&plan, Deletes::Deferred, &mut Unobserved).unwrap();
    world.kernel().reap(&applied.to_reap, &mut world.places()).unwrap();
    world.assert_as_before(&before, "after reaping");
    world.kernel().reap(&applied.to_reap, &mut world.places()).unwrap();
}

#[test]
fn what_a_crash_leaves_between_birth_and_mark_is_found_and_removed() {
    let world = World::new("unborn", &["a"]);
    let before = world.dumps();
    let group = marks::BIRTH_GROUP.to_string();
    world.host.ip(&[
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
        world.sandboxes[0].name(),
    ]);
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = world.make(&state);
    assert!(plan.to_string().contains("left unfinished by a crash"), "{plan}");
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn deleting_what_is_gone_already_succeeds() {
    let world = World::new("twice", &["a"]);
    let before = world.dumps();
    let mut state = states::everything();
    state.scope(&sandbox("a")).sysctls.clear();
    world.make(&state);
    let plan = world.plan(&NetState::default());
    for deletes in [Deletes::Now, Deletes::Deferred] {
        world.apply_with(&plan, deletes, &mut Unobserved).unwrap();
        world.assert_as_before(&before, "after removal");
    }
}

#[test]
fn a_link_that_someone_renamed_is_still_the_one_that_goes() {
    let world = World::new("renamed", &["a"]);
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    world.make(&state);
    let plan = world.plan(&NetState::default());
    world.host.ip(&["link", "set", "ha", "name", "other0"]);
    world.host.ip(&["link", "add", "ha", "type", "bridge"]);
    world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap();
    world.host.ip(&["link", "del", "ha"]);
    world.assert_as_before(&before, "after removal");
}
