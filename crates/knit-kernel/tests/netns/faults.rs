//! Faults at every step of a plan: each time every namespace is unchanged afterwards.

use knit_kernel::fault::{Fault, FaultAt, NoFaults};
use knit_kernel::{DeleteMode, Rollback};
use knit_model::link::Kind;
use knit_model::{Address, NetState, Route, Scope};
use nix::errno::Errno;

use crate::support::faults::{delete_deferred, survive_every_fault};
use crate::support::node::{TestNode, sandbox};
use crate::support::states::{self, add_bridge, add_veth, hop, name, net};

const SYSCTL: &str = "net/ipv4/ip_forward";

fn node(test: &str) -> TestNode {
    let mut node = TestNode::new(test, &["a"]);
    node.observe_sysctl(&sandbox("a"), SYSCTL);
    node
}

#[test]
fn creation_is_rolled_back_at_any_step() {
    let node = node("make");
    let plan = node.plan(&states::everything());
    survive_every_fault(&node, &plan, DeleteMode::Immediate);
}

/// The marks of a pair's ends are sent with the following messages, which the kernel applies even if it rejects a
/// mark.
#[test]
fn a_pair_with_a_rejected_mark_is_rolled_back() {
    let node = node("mark");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = node.plan(&state);
    let owner = &state.link(&sandbox("a"), &name("net1")).unwrap().owner;
    let mark = format!("knit-{}", owner.as_ref().unwrap().0);
    for namespace in [&node.host, &node.sandboxes[0]] {
        namespace.ip(&["link", "property", "add", "dev", "lo", "altname", &mark]);
        let before = node.dumps();
        let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
        assert_eq!((error.error.errno(), &error.rollback), (Some(Errno::EEXIST), &Rollback::Complete));
        node.assert_unchanged(&before, &format!("after {error}"));
        namespace.ip(&["link", "property", "del", "dev", "lo", "altname", &mark]);
    }
    node.converge(&state);
}

#[test]
fn removal_is_rolled_back_at_any_step() {
    let node = node("remove");
    node.converge(&states::everything());
    let plan = node.plan(&NetState::default());
    survive_every_fault(&node, &plan, DeleteMode::Immediate);
}

#[test]
fn deferred_removal_is_rolled_back_at_any_step() {
    let node = node("later");
    node.converge(&states::everything());
    let plan = node.plan(&NetState::default());
    let before = node.dumps();
    assert!(!plan.is_empty());
    for step in 0..plan.steps.len() {
        let mut fail = FaultAt { step, fault: Fault::Fail(Errno::EIO) };
        let error = node.apply_with(&plan, DeleteMode::Deferred, &mut fail).unwrap_err();
        assert_eq!(error.rollback, Rollback::Complete, "{error}\n{plan}");
        delete_deferred(&node);
        node.assert_unchanged(&before, &format!("after failing at step {step} of\n{plan}"));
    }
}

#[test]
fn changes_are_rolled_back_at_any_step() {
    let node = node("change");
    let mut state = states::everything();
    node.converge(&state);

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
    // A field that is fixed at creation: the tunnel is recreated, with its address.
    if let Kind::Vxlan(vxlan) = &mut pod.links.get_mut(&name("vx0")).unwrap().kind {
        vxlan.vni = 99;
    }
    pod.addresses.remove(&(name("net1"), net("fd50::2/64")));
    pod.routes.retain(|key, _| key.to != net("fd60::/48"));
    pod.neighbours.clear();
    let other = Route::through(net("10.60.0.0/16"), hop("10.50.0.8", "net1", 1));
    pod.add_route(other);
    pod.sysctls.insert(SYSCTL.to_owned(), "0".to_owned());
    let plan = node.plan(&state);
    let text = plan.to_string();
    for part in ["- address", "+ address", "~ bridge", "- vxlan", "+ vxlan", "~ route", "- rule", "~ sysctl"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    survive_every_fault(&node, &plan, DeleteMode::Immediate);
    node.converge(&state);
}

#[test]
fn a_rejected_step_is_explained_and_rolled_back() {
    let node = node("refuse");
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let pod = state.scope(&sandbox("a"));
    pod.add_route(Route::through(net("10.9.0.0/16"), hop("10.77.0.1", "net1", 1)));
    let plan = node.plan(&state);
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("sandbox a: step 8 (+ route 10.9.0.0/16 via 10.77.0.1 dev net1): "), "{text}");
    assert!(text.contains("the gateway is not reachable through the link's addresses"), "{text}");
    assert!(text.ends_with("; rolled back"), "{text}");
    node.assert_unchanged(&before, "after a rejection");
}

#[test]
fn steps_applied_after_the_failed_one_are_rolled_back_too() {
    let node = node("after");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    node.converge(&state);
    let before = node.dumps();
    // All in one datagram, which the kernel processes to its end.
    let pod = state.scope(&sandbox("a"));
    pod.add_route(Route::through(net("10.7.0.0/16"), hop("10.50.0.1", "net1", 1)));
    pod.add_route(Route::through(net("10.8.0.0/16"), hop("10.77.0.1", "net1", 1)));
    pod.add_route(Route::through(net("10.9.0.0/16"), hop("10.50.0.1", "net1", 1)));
    let plan = node.plan(&state);
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
    assert_eq!((error.step, &error.rollback), (1, &Rollback::Complete), "{error}");
    node.assert_unchanged(&before, "after a rejection in the middle");
}

#[test]
fn a_foreign_link_that_took_the_name_is_not_touched() {
    let node = node("name");
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = node.plan(&state);
    node.sandboxes[0].ip(&["link", "add", "net1", "type", "bridge"]);
    node.sandboxes[0].ip(&["link", "set", "net1", "group", "5"]);
    let before = node.dumps();
    let error = node.apply_with(&plan, DeleteMode::Immediate, &mut NoFaults).unwrap_err();
    assert_eq!(error.error.reason(), "AlreadyExists", "{error}");
    assert!(error.to_string().contains("create veth net1 on sandbox a"), "{error}");
    node.assert_unchanged(&before, "after a rejection");
    // Nor does a new process touch it that only has the plan.
    assert_eq!(node.kernel().roll_back(&plan, &mut node.namespaces()), Vec::<String>::new());
    node.assert_unchanged(&before, "after rollback");
}

#[test]
fn a_missing_sandbox_does_not_prevent_cleanup_of_the_host() {
    let node = node("gone");
    let before = node.dumps();
    let mut state = NetState::default();
    add_bridge(&mut state, "br0", "10.50.0.1/24");
    add_veth(&mut state, "a", "br0", &["10.50.0.2/24"]);
    let plan = node.converge(&state);
    let left = node.kernel().roll_back(&plan, &mut knit_kernel::SandboxNamespaces::new());
    assert!(left.is_empty(), "{left:?}");
    node.assert_unchanged(&before, "after rollback without the sandbox");
}
