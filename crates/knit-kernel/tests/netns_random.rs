//! Random states on the real kernel: every plan converges, and every plan can be taken back.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::Deletes;
use knit_kernel::fault::{Fault, FaultAt, Unobserved};
use knit_model::link::{Kind, MacvlanMode};
use knit_model::{NetState, Route, Rule, Scope};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::states::{add_bridge, add_macvlan, add_veth, add_vxlan, hop, name, net};
use support::world::{World, sandbox};

/// What one sandbox is asked for.
#[derive(Clone, Debug)]
struct Wish {
    veth_on: Option<u8>,
    macvlan_on: Option<(u8, bool)>,
    vxlan: Option<u8>,
    mtu: Option<u32>,
    gateway: bool,
    ipv6: bool,
}

fn wish() -> impl Strategy<Value = Wish> {
    let bridge = || prop::option::of(0u8..2);
    let macvlan = prop::option::of((0u8..2, any::<bool>()));
    let mtu = prop_oneof![Just(None), Just(Some(1400)), Just(Some(1280))];
    (bridge(), macvlan, prop::option::of(1u8..4), mtu, any::<bool>(), any::<bool>()).prop_map(
        |(veth_on, macvlan_on, vxlan, mtu, gateway, ipv6)| Wish {
            veth_on,
            macvlan_on,
            vxlan,
            mtu,
            gateway,
            ipv6,
        },
    )
}

/// Two bridges and two sandboxes.
fn state() -> impl Strategy<Value = NetState> {
    (wish(), wish(), any::<bool>()).prop_map(|(a, b, stp)| build(&[("a", a), ("b", b)], stp))
}

fn build(wishes: &[(&str, Wish)], stp: bool) -> NetState {
    let mut state = NetState::default();
    for bridge in 0..2u8 {
        let uses = |wish: &Wish| {
            wish.veth_on == Some(bridge) || wish.macvlan_on.is_some_and(|(parent, _)| parent == bridge)
        };
        if wishes.iter().any(|(_, wish)| uses(wish)) {
            let title = format!("br{bridge}");
            add_bridge(&mut state, &title, &format!("10.{bridge}.0.1/24"));
            let host = state.scope(&Scope::Host);
            if let Kind::Bridge(kind) = &mut host.links.get_mut(&name(&title)).unwrap().kind {
                kind.stp = Some(stp);
            }
            let to = net(&format!("10.{bridge}.0.0/24"));
            host.add_route(Route { table: 7500, ..Route::on_link(to, name(&title)) });
            host.rules.insert(Rule::from_address(net(&format!("10.{bridge}.0.1/32")), 7500, 7500));
        }
    }
    for (number, (id, wish)) in (2..).zip(wishes) {
        add_sandbox(&mut state, id, number, wish);
    }
    state
}

fn add_sandbox(state: &mut NetState, id: &str, number: u8, wish: &Wish) {
    let scope = sandbox(id);
    if let Some(bridge) = wish.veth_on {
        let mut addresses = vec![format!("10.{bridge}.0.{number}/24")];
        if wish.ipv6 {
            addresses.push(format!("fd0{bridge}::{number}/64"));
        }
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        add_veth(state, id, &format!("br{bridge}"), &addresses);
        let here = state.scope(&scope);
        here.links.get_mut(&name("net1")).unwrap().attrs.mtu = Some(wish.mtu.unwrap_or(1500));
        if wish.gateway {
            here.add_route(Route::through(net("0.0.0.0/0"), hop(&format!("10.{bridge}.0.1"), "net1", 1)));
        }
        if wish.gateway && wish.ipv6 {
            here.add_route(Route::through(net("::/0"), hop(&format!("fd0{bridge}::1"), "net1", 1)));
        }
        if let Some(vni) = wish.vxlan {
            let ends = [format!("10.{bridge}.0.{number}"), format!("10.{bridge}.0.99")];
            add_vxlan(state, id, [&ends[0], &ends[1]], &[&format!("10.9.0.{number}/24")]);
            let link = state.scope(&scope).links.get_mut(&name("vx0")).unwrap();
            // A tunnel's MTU has to leave room on the link below.
            link.attrs.mtu = Some(1200);
            if let Kind::Vxlan(vxlan) = &mut link.kind {
                vxlan.vni = vni.into();
            }
        }
    }
    if let Some((bridge, is_private)) = wish.macvlan_on {
        add_macvlan(state, id, &format!("br{bridge}"), &[&format!("10.8.0.{number}/24")]);
        let link = state.scope(&scope).links.get_mut(&name("mv0")).unwrap();
        link.attrs.mtu = wish.mtu;
        if let (Kind::Macvlan(kind), true) = (&mut link.kind, is_private) {
            kind.mode = Some(MacvlanMode::Private);
        }
    }
}

/// What compares of two looks: all that is Knit's. The kernel's own addresses and routes come when links are ready.
fn knits(mut state: NetState) -> NetState {
    for scope in state.scopes.values_mut() {
        scope.addresses.retain(|_, address| address.owned);
        scope.routes.retain(|_, route| route.owned);
        scope.neighbours.retain(|_, neighbour| neighbour.owned);
    }
    state
}

#[test]
fn random_plans_converge_and_can_be_taken_back() {
    let world = World::new("random", &["a", "b"]).at_random();
    let before = world.dumps();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() });
    let cases = (state(), state(), any::<prop::sample::Index>());
    let outcome = runner.run(&cases, |(first, second, index)| {
        world.make(&first);
        let start = knits(world.observe());
        let plan = world.plan(&second);
        if !plan.is_empty() {
            let step = index.index(plan.steps.len());
            let mut fault = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
            let error = world.apply_with(&plan, Deletes::Now, &mut fault).unwrap_err();
            prop_assert!(error.to_string().ends_with("is taken back"), "{}\n{}", error, plan);
            prop_assert_eq!(knits(world.observe()), start.clone(), "step {} of\n{}", step, plan);
        }
        let plan = world.make(&second);
        let undone = world.apply_with(&plan.inverse(), Deletes::Now, &mut Unobserved);
        prop_assert!(undone.is_ok(), "{}\n{}", undone.unwrap_err(), plan);
        prop_assert_eq!(knits(world.observe()), start, "after undoing\n{}", plan);
        world.make(&NetState::default());
        world.assert_as_before(&before, "after removal");
        Ok(())
    });
    outcome.unwrap();
}
