//! Random states: every plan converges, and every plan can be rolled back.

use knit_kernel::DeleteMode;
use knit_kernel::fault::{Fault, FaultAt, NoFaults};
use knit_model::link::{Kind, MacvlanMode};
use knit_model::{NetState, Route, Rule, Scope};
use nix::errno::Errno;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::node::{TestNode, sandbox};
use crate::support::states::{add_bridge, add_macvlan, add_veth, add_vxlan, hop, name, net};

/// The desired links of one sandbox.
#[derive(Clone, Debug)]
struct SandboxSpec {
    veth_on: Option<u8>,
    macvlan_on: Option<(u8, bool)>,
    vxlan: Option<u8>,
    mtu: Option<u32>,
    gateway: bool,
    ipv6: bool,
}

fn spec() -> impl Strategy<Value = SandboxSpec> {
    let bridge = || prop::option::of(0u8..2);
    let macvlan = prop::option::of((0u8..2, any::<bool>()));
    let mtu = prop_oneof![Just(None), Just(Some(1400)), Just(Some(1280))];
    (bridge(), macvlan, prop::option::of(1u8..4), mtu, any::<bool>(), any::<bool>()).prop_map(
        |(veth_on, macvlan_on, vxlan, mtu, gateway, ipv6)| SandboxSpec {
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
    (spec(), spec(), any::<bool>()).prop_map(|(a, b, stp)| build(&[("a", a), ("b", b)], stp))
}

fn build(specs: &[(&str, SandboxSpec)], stp: bool) -> NetState {
    let mut state = NetState::default();
    for bridge in 0..2u8 {
        let uses = |spec: &SandboxSpec| {
            spec.veth_on == Some(bridge) || spec.macvlan_on.is_some_and(|(parent, _)| parent == bridge)
        };
        if specs.iter().any(|(_, spec)| uses(spec)) {
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
    for (number, (id, spec)) in (2..).zip(specs) {
        add_sandbox(&mut state, id, number, spec);
    }
    state
}

fn add_sandbox(state: &mut NetState, id: &str, number: u8, spec: &SandboxSpec) {
    let scope = sandbox(id);
    if let Some(bridge) = spec.veth_on {
        let mut addresses = vec![format!("10.{bridge}.0.{number}/24")];
        if spec.ipv6 {
            addresses.push(format!("fd0{bridge}::{number}/64"));
        }
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        add_veth(state, id, &format!("br{bridge}"), &addresses);
        let here = state.scope(&scope);
        here.links.get_mut(&name("net1")).unwrap().attrs.mtu = Some(spec.mtu.unwrap_or(1500));
        if spec.gateway {
            here.add_route(Route::through(net("0.0.0.0/0"), hop(&format!("10.{bridge}.0.1"), "net1", 1)));
        }
        if spec.gateway && spec.ipv6 {
            here.add_route(Route::through(net("::/0"), hop(&format!("fd0{bridge}::1"), "net1", 1)));
        }
        if let Some(vni) = spec.vxlan {
            let ends = [format!("10.{bridge}.0.{number}"), format!("10.{bridge}.0.99")];
            add_vxlan(state, id, [&ends[0], &ends[1]], &[&format!("10.9.0.{number}/24")]);
            let link = state.scope(&scope).links.get_mut(&name("vx0")).unwrap();
            // The MTU of a tunnel must fit into that of its parent.
            link.attrs.mtu = Some(1200);
            if let Kind::Vxlan(vxlan) = &mut link.kind {
                vxlan.vni = vni.into();
            }
        }
    }
    if let Some((bridge, is_private)) = spec.macvlan_on {
        add_macvlan(state, id, &format!("br{bridge}"), &[&format!("10.8.0.{number}/24")]);
        let link = state.scope(&scope).links.get_mut(&name("mv0")).unwrap();
        link.attrs.mtu = spec.mtu;
        if let (Kind::Macvlan(kind), true) = (&mut link.kind, is_private) {
            kind.mode = Some(MacvlanMode::Private);
        }
    }
}

/// Only Knit's objects: the kernel adds addresses and routes when links are ready.
fn owned_only(mut state: NetState) -> NetState {
    for scope in state.scopes.values_mut() {
        scope.addresses.retain(|_, address| address.owned);
        scope.routes.retain(|_, route| route.owned);
        scope.neighbours.retain(|_, neighbour| neighbour.owned);
    }
    state
}

#[test]
fn random_plans_converge_and_can_be_rolled_back() {
    let node = TestNode::new("random", &["a", "b"]).without_coverage();
    let before = node.dumps();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() });
    let cases = (state(), state(), any::<prop::sample::Index>());
    let outcome = runner.run(&cases, |(first, second, index)| {
        node.converge(&first);
        let start = owned_only(node.observe());
        let plan = node.plan(&second);
        if !plan.is_empty() {
            let step = index.index(plan.steps.len());
            let mut fault = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
            let error = node.apply_with(&plan, DeleteMode::Immediate, &mut fault).unwrap_err();
            prop_assert!(error.to_string().ends_with("rolled back"), "{}\n{}", error, plan);
            prop_assert_eq!(owned_only(node.observe()), start.clone(), "step {} of\n{}", step, plan);
        }
        let plan = node.converge(&second);
        let inverted = node.apply_with(&plan.inverse(), DeleteMode::Immediate, &mut NoFaults);
        prop_assert!(inverted.is_ok(), "{}\n{}", inverted.unwrap_err(), plan);
        prop_assert_eq!(owned_only(node.observe()), start, "after the inverse of\n{}", plan);
        node.converge(&NetState::default());
        node.assert_unchanged(&before, "after removal");
        Ok(())
    });
    outcome.unwrap();
}
