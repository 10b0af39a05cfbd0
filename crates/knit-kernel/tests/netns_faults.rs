//! A fault at every step of a plan: each time every namespace looks afterwards as if nothing had happened.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    pub mod faults;
    pub mod seen;
    pub mod states;
    pub mod world;
}

use knit_kernel::fault::{Fault, FaultAt, Unobserved};
use knit_kernel::{Deletes, RollBack};
use knit_model::link::Kind;
use knit_model::{Address, NetState, Route, Scope};
use nix::errno::Errno;
use support::faults::{reap, survive_every_fault};
use support::states::{self, add_bridge, add_veth, hop, name, net};
use support::world::{World, sandbox};

const SYSCTL: &str = "net/ipv4/ip_forward";

fn world(test: &str) -> World {
    let mut world = World::new(test, &["a"]);
    world.look_at_sysctl(&sandbox("a"), SYSCTL);
    world
}

#[test]
fn making_everything_can_fail_anywhere() {
    let world = world("make");
    let plan = world.plan(&states::everything());
    survive_every_fault(&world, &plan, Deletes::Now);
}

/// The marks of a pair's ends go out along with what follows; the kernel takes that also when it refuses the mark.
#[test]
fn a_pair_of_which_one_mark_is_refused_is_taken_back() {
    let world = world("mark");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = world.plan(&state);
    let owner = &state.link(&sandbox("a"), &name("net1")).unwrap().owner;
    let mark = format!("knit-{}", owner.as_ref().unwrap().0);
    for place in [&world.host, &world.sandboxes[0]] {
        place.ip(&["link", "property", "add", "dev", "lo", "altname", &mark]);
        let before = world.dumps();
        let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
        assert_eq!((error.error.errno(), &error.roll_back), (Some(Errno::EEXIST), &RollBack::Complete));
        world.assert_as_before(&before, &format!("after {error}"));
        place.ip(&["link", "property", "del", "dev", "lo", "altname", &mark]);
    }
    world.make(&state);
}

#[test]
fn removing_everything_can_fail_anywhere() {
    let world = world("remove");
    world.make(&states::everything());
    let plan = world.plan(&NetState::default());
    survive_every_fault(&world, &plan, Deletes::Now);
}

#[test]
fn removing_later_can_fail_anywhere() {
    let world = world("later");
    world.make(&states::everything());
    let plan = world.plan(&NetState::default());
    let before = world.dumps();
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = world.apply_with(&plan, Deletes::Deferred, &mut fail).unwrap_err();
        assert_eq!(error.roll_back, RollBack::Complete, "{error}\n{plan}");
        reap(&world);
        world.assert_as_before(&before, &format!("after failing at step {step} of\n{plan}"));
    }
}

#[test]
fn changing_everything_can_fail_anywhere() {
    let world = world("change");
    let mut state = states::everything();
    world.make(&state);

    let host = state.scope(&Scope::Host);
    let bridge = host.links.get_mut(&name("br0")).unwrap();
    bridge.attrs.mtu = Some(1400);
    bridge.attrs.alias = Some("changed".to_owned());
    if let Kind::Bridge(bridge) = &mut bridge.kind {
        bridge.ageing = Some(33);
    }
    host.rules.pop_last();
    host.add_address(Address::new(name("br0"), net("10.53.0.1/24")));
    let pod = state.scope(&sandbox("a"));
    // A field that is fixed at birth: the tunnel is made again, with its address.
    if let Kind::Vxlan(vxlan) = &mut pod.links.get_mut(&name("vx0")).unwrap().kind {
        vxlan.vni = 99;
    }
    pod.addresses.remove(&(name("net1"), net("fd50::2/64")));
    pod.routes.retain(|key, _| key.to != net("fd60::/48"));
    pod.neighbours.clear();
    let other = Route::through(net("10.60.0.0/16"), hop("10.50.0.8", "net1", 1));
    pod.add_route(other);
    pod.sysctls.insert(SYSCTL.to_owned(), "0".to_owned());
    let plan = world.plan(&state);
    let text = plan.to_string();
    for part in ["- address", "+ address", "~ bridge", "- vxlan", "+ vxlan", "~ route", "- rule", "~ sysctl"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    survive_every_fault(&world, &plan, Deletes::Now);
    world.make(&state);
}

#[test]
fn a_refusal_of_the_kernel_is_told_in_words_and_taken_back() {
    let world = world("refuse");
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let pod = state.scope(&sandbox("a"));
    pod.add_route(Route::through(net("10.9.0.0/16"), hop("10.77.0.1", "net1", 1)));
    let plan = world.plan(&state);
    let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("sandbox a: step 8 (+ route 10.9.0.0/16 via 10.77.0.1 dev net1): "), "{text}");
    assert!(text.contains("no address of the link reaches the gateway"), "{text}");
    assert!(text.ends_with("; what was done before it is taken back"), "{text}");
    world.assert_as_before(&before, "after a refusal");
}

#[test]
fn what_the_kernel_did_after_the_step_that_failed_is_taken_back_too() {
    let world = world("after");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    world.make(&state);
    let before = world.dumps();
    // All in one datagram, which the kernel works through to its end.
    let pod = state.scope(&sandbox("a"));
    pod.add_route(Route::through(net("10.7.0.0/16"), hop("10.50.0.1", "net1", 1)));
    pod.add_route(Route::through(net("10.8.0.0/16"), hop("10.77.0.1", "net1", 1)));
    pod.add_route(Route::through(net("10.9.0.0/16"), hop("10.50.0.1", "net1", 1)));
    let plan = world.plan(&state);
    let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
    assert_eq!((error.step, &error.roll_back), (1, &RollBack::Complete), "{error}");
    world.assert_as_before(&before, "after a refusal in the middle");
}

#[test]
fn a_stranger_that_takes_the_name_meanwhile_keeps_it_as_it_is() {
    let world = world("name");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = world.plan(&state);
    world.sandboxes[0].ip(&["link", "add", "net1", "type", "bridge"]);
    world.sandboxes[0].ip(&["link", "set", "net1", "group", "5"]);
    let before = world.dumps();
    let error = world.apply_with(&plan, Deletes::Now, &mut Unobserved).unwrap_err();
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    assert!(error.to_string().contains("make veth net1 on sandbox a"), "{error}");
    world.assert_as_before(&before, "after a refusal");
    // Nor does a process that only knows the plan touch it.
    assert_eq!(world.kernel().take_back(&plan, &mut world.places()), Vec::<String>::new());
    world.assert_as_before(&before, "after taking back");
}

#[test]
fn a_sandbox_that_is_gone_does_not_keep_the_host_from_being_cleaned() {
    let world = world("gone");
    let before = world.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = world.make(&state);
    let left = world.kernel().take_back(&plan, &mut knit_kernel::Places::new());
    assert!(left.is_empty(), "{left:?}");
    world.assert_as_before(&before, "after taking back without the sandbox");
}
