//! Taps on the real kernel: made, opened by a program, changed while they live, and gone without a trace.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod edits;
    pub mod faults;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_kernel::fault::Unobserved;
use knit_model::link::{Kind, Link, TAP_NOBODY, Tap};
use knit_model::{Address, Mac, NetState, Route};
use support::edits::{Edit, change_each};
use support::faults::survive_every_fault;
use support::states::{link, name, net};
use support::world::{World, sandbox};

fn tap_fields(link: &mut Link) -> &mut Tap {
    let Kind::Tap(tap) = &mut link.kind else { panic!("not a tap") };
    tap
}

/// A tap of a sandbox with an address and a route.
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
fn a_tap_is_made_changed_live_and_gone() {
    let world = World::new("tap", &["a"]);
    let before = world.dumps();
    let mut state = with_tap(full());
    world.make(&state);
    let shown = world.sandboxes[0].ip(&["-d", "-j", "link", "show", "tap0"]);
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
    // Routes go when a link goes down: they are not what is looked at here.
    state.scope(&sandbox("a")).routes.clear();
    world.make(&state);
    change_each(&world, &mut state, &sandbox("a"), "tap0", edits);

    let remade: &[Edit] = &[
        ("user", |link| tap_fields(link).user = Some(TAP_NOBODY)),
        ("user_group", |link| tap_fields(link).user_group = Some(108)),
        ("multi_queue", |link| tap_fields(link).multi_queue = Some(false)),
        ("user", |link| tap_fields(link).user = Some(7)),
    ];
    for (field, edit) in remade {
        edit(state.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap());
        let plan = world.make(&state).to_string();
        assert!(plan.contains(&format!("this change of `{field}` on a living tun")), "{plan}");
    }
    world.make(&NetState::default());
    world.assert_as_before(&before, "after removal");
}

#[test]
fn any_step_may_fail() {
    let world = World::new("tap-faults", &["a"]);
    let (none, full) = (NetState::default(), with_tap(full()));
    survive_every_fault(&world, &world.plan(&full), Deletes::Now);
    world.make(&full);
    let mut changed = full.clone();
    let tap = changed.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap();
    tap.attrs.mtu = Some(1300);
    tap_fields(tap).vnet_hdr = Some(true);
    survive_every_fault(&world, &world.plan(&changed), Deletes::Now);
    tap_fields(changed.scope(&sandbox("a")).links.get_mut(&name("tap0")).unwrap()).multi_queue = Some(false);
    survive_every_fault(&world, &world.plan(&changed), Deletes::Now);
    survive_every_fault(&world, &world.plan(&none), Deletes::Now);
}

#[test]
fn someone_elses_link_of_the_name_stays_as_it_is() {
    let world = World::new("tap-name", &["a"]);
    let plan = world.plan(&with_tap(Tap::default()));
    world.sandboxes[0].ip(&["tuntap", "add", "dev", "tap0", "mode", "tap", "user", "5"]);
    let before = world.dumps();
    let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    world.assert_as_before(&before, "after a refusal");
}
