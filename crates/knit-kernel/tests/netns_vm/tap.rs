//! Taps: created, opened by a program, changed in place, and removed without a trace.

use knit_kernel::DeleteMode;
use knit_kernel::fault::NoFaults;
use knit_model::link::{Kind, Link, TAP_NO_OWNER, Tap};
use knit_model::{Address, Mac, NetState, Route};

use crate::support::edits::{Edit, change_each};
use crate::support::faults::survive_every_fault;
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{link, name, net};

fn tap_fields(link: &mut Link) -> &mut Tap {
    let Kind::Tap(tap) = &mut link.kind else { panic!("not a tap") };
    tap
}

/// A tap in a sandbox with an address and a route.
fn with_tap(tap: Tap) -> NetState {
    let scope = sandbox("a");
    let mut state = NetState::default();
    let mut tap = link(&scope, "tap0", Kind::Tap(tap));
    tap.attrs.mtu = Some(1400);
    tap.attrs.txqueuelen = Some(500);
    tap.attrs.mac = Some(Mac::derived("a/tap0"));
    let here = state.scope(&scope);
    here.add_link(tap);
    here.add_address(Address::new(name("tap0"), net("10.54.0.1/24")));
    here.add_route(Route::on_link(net("10.55.0.0/24"), name("tap0")));
    state
}

fn full() -> Tap {
    Tap { user: Some(61_000), user_group: Some(61_001), multi_queue: Some(true), vnet_hdr: Some(false) }
}

#[test]
fn a_tap_is_created_changed_in_place_and_removed() {
    let node = TestNode::new("tap", &["a"]);
    let before = node.dumps();
    let mut state = with_tap(full());
    node.converge(&state);
    let shown = node.sandboxes[0].ip(&["-d", "-j", "link", "show", "tap0"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let data = &shown[0]["linkinfo"]["info_data"];
    assert_eq!(
        (&data["type"], &data["user"], &data["group"]),
        (&"tap".into(), &61_000.into(), &61_001.into()),
        "{shown}"
    );
    assert_eq!((&data["multi_queue"], &data["persist"]), (&true.into(), &true.into()), "{shown}");

    let edits: &[Edit] = &[
        ("mtu", |link| link.attrs.mtu = Some(1280)),
        ("mac", |link| link.attrs.mac = Some(Mac::derived("another"))),
        ("txqueuelen", |link| link.attrs.txqueuelen = Some(77)),
        ("alias", |link| link.attrs.alias = Some("of a test".to_owned())),
        ("group", |link| link.attrs.group = Some(9)),
        ("promisc", |link| link.attrs.promisc = Some(true)),
        ("multicast", |link| link.attrs.multicast = Some(false)),
        ("arp", |link| link.attrs.arp = Some(false)),
        ("vnet_hdr", |link| tap_fields(link).vnet_hdr = Some(true)),
        ("vnet_hdr", |link| tap_fields(link).vnet_hdr = Some(false)),
        ("up", |link| link.attrs.up = Some(false)),
        ("up", |link| link.attrs.up = Some(true)),
    ];
    // Routes are removed when a link goes down; they are not tested here.
    state.scope(&sandbox("a")).routes.clear();
    node.converge(&state);
    change_each(&node, &mut state, &sandbox("a"), "tap0", edits);

    let recreating: &[Edit] = &[
        ("user", |link| tap_fields(link).user = Some(TAP_NO_OWNER)),
        ("user_group", |link| tap_fields(link).user_group = Some(108)),
        ("multi_queue", |link| tap_fields(link).multi_queue = Some(false)),
        ("user", |link| tap_fields(link).user = Some(7)),
    ];
    for (field, edit) in recreating {
        edit(state.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap());
        let plan = node.converge(&state).to_string();
        assert!(plan.contains(&format!("this change of `{field}` on an existing tun")), "{plan}");
    }
    node.converge(&NetState::default());
    node.assert_unchanged(&before, "after removal");
}

#[test]
fn every_step_is_rolled_back() {
    let node = TestNode::new("tap-faults", &["a"]);
    let (none, full) = (NetState::default(), with_tap(full()));
    survive_every_fault(&node, &node.plan(&full), DeleteMode::Immediate);
    node.converge(&full);
    let mut changed = full.clone();
    let tap = changed.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap();
    tap.attrs.mtu = Some(1300);
    tap_fields(tap).vnet_hdr = Some(true);
    survive_every_fault(&node, &node.plan(&changed), DeleteMode::Immediate);
    tap_fields(changed.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap()).multi_queue = Some(false);
    survive_every_fault(&node, &node.plan(&changed), DeleteMode::Immediate);
    survive_every_fault(&node, &node.plan(&none), DeleteMode::Immediate);
}

#[test]
fn a_foreign_tap_of_the_same_name_is_not_touched() {
    let node = TestNode::new("tap-name", &["a"]);
    let plan = node.plan(&with_tap(Tap::default()));
    node.sandboxes[0].ip(&["tuntap", "add", "dev", "tap0", "mode", "tap", "user", "5"]);
    let before = node.dumps();
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    node.assert_unchanged(&before, "after a rejection");
}
