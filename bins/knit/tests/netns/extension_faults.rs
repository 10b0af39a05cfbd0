//! Agents that are killed during attaches and detaches with an extension: a completed attach has all receipts,
//! an incomplete one leaves nothing, and the extension is notified of everything that it has to undo.

use std::time::Duration;

use crate::support::agent::{Agent, Machine, attach, netns, ports};
use crate::support::chain::{attach_to_legacy, bridge, configure, confinement_with_plugins, leases};
use crate::support::extension::{Extension, get};
use knit_testbed::{Dump, eventually};

/// An upper bound of the fault points from the start of an agent to the end of an attach and a detach.
const MOST: usize = 80;

#[test]
fn an_agent_killed_at_any_record_or_call_of_an_attach_leaves_no_partial_extension() {
    killed_at_every_fault_point("ext-kill-moment", "KNIT_FAULT_KILL_AT_MOMENT", Interface::Own, false);
}

#[test]
fn an_agent_killed_at_any_step_of_an_attach_leaves_no_partial_extension() {
    killed_at_every_fault_point("ext-kill-step", "KNIT_FAULT_KILL_AT", Interface::Own, false);
}

#[test]
fn an_agent_killed_at_any_record_or_call_of_a_detach_notifies_the_extension() {
    killed_at_every_fault_point("ext-kill-detach", "KNIT_FAULT_KILL_AT_MOMENT", Interface::Own, true);
}

#[test]
fn an_agent_killed_during_an_attach_to_plugins_leaves_no_partial_extension() {
    killed_at_every_fault_point("ext-kill-add", "KNIT_FAULT_KILL_AT_MOMENT", Interface::Plugins, false);
}

#[test]
fn an_agent_killed_during_a_detach_from_plugins_notifies_the_extension() {
    killed_at_every_fault_point("ext-kill-del", "KNIT_FAULT_KILL_AT_MOMENT", Interface::Plugins, true);
}

/// What creates the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interface {
    Own,
    Plugins,
}

/// Kills the agent at each fault point of an attach, or of the following delete, in turn.
fn killed_at_every_fault_point(test: &str, fault: &str, interface: Interface, then_delete: bool) {
    let machine = Machine::new(test);
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let request = || match interface {
        Interface::Own => attach("sb1", &netns(&pod)),
        Interface::Plugins => attach_to_legacy("sb1", &netns(&pod), "eth0"),
    };
    let confinement = confinement_with_plugins(&machine);
    let agent = machine.confined_agent(&confinement, &[&flag], &[]);
    // The bridge of the plugin is not removed.
    agent.try_attach(request()).unwrap();
    agent.delete("sb1");
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    let extension = Extension::start(machine.folder.path(), "mesh");
    extension.register(&agent);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.crash();
    let (mut cut_attaches, mut cut_deletes) = (0, 0);
    for point in 0..MOST {
        let mut agent = machine.spawn_confined(&confinement, &[&flag], &[(fault, &point.to_string())]);
        let answered = is_up(&agent) && try_attach(&agent, request());
        if answered {
            assert_eq!(extension.active(), ["sb1/eth0"], "{fault} {point}");
        }
        let finished = answered && (!then_delete || try_delete(&agent));
        agent.kill();
        let agent = machine.confined_agent(&confinement, &[&flag], &[]);
        eventually("no notification is pending", Duration::from_secs(10), || pending(&agent) == 0);
        let there = agent.pod("sb1").filter(|pod| !pod.interfaces.is_empty());
        assert!(there.is_some() || !answered || then_delete, "{fault} {point}: an answered attach is gone");
        match there {
            // Perhaps without a response, but complete.
            Some(there) => {
                let phases: Vec<&str> = there.extensions.iter().map(|one| one.phase.as_str()).collect();
                assert_eq!(phases, ["before-attach", "after-attach"], "{fault} {point}");
                assert_eq!(extension.active(), ["sb1/eth0"], "{fault} {point}");
            }
            None => assert!(extension.active().is_empty(), "{fault} {point}: {:?}", extension.active()),
        }
        cut_attaches += usize::from(!answered);
        cut_deletes += usize::from(answered && !finished);
        agent.delete("sb1");
        eventually("the extension is notified", Duration::from_secs(10), || extension.active().is_empty());
        eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
        assert_eq!((agent.used_addresses(), leases(&machine)), (0, 0), "{fault} {point}");
        host.assert_unchanged(&machine.host);
        inside.assert_unchanged(pod.namespace());
        agent.crash();
        if finished {
            assert!(cut_attaches > 3, "an attach has more than {cut_attaches} points");
            assert!(then_delete == (cut_deletes >= 2), "{cut_deletes} points of a detach");
            return;
        }
    }
    panic!("there are more than {MOST} points");
}

/// Whether the agent became ready before it was killed.
fn is_up(agent: &Agent<'_>) -> bool {
    eventually("the agent is ready or gone", Duration::from_secs(20), || {
        !agent.is_running() || (agent.socket().exists() && is_ready(agent))
    });
    agent.is_running()
}

fn is_ready(agent: &Agent<'_>) -> bool {
    let socket = agent.socket();
    crate::support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        let readiness = client.get_readiness(Default::default()).await;
        readiness.is_ok_and(|response| response.node.is_some_and(|node| node.ready))
    })
}

fn try_attach(agent: &Agent<'_>, request: knit_kni::v1::AttachRequest) -> bool {
    let socket = agent.socket();
    crate::support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        client.attach(request).await.is_ok()
    })
}

fn try_delete(agent: &Agent<'_>) -> bool {
    let (socket, pod) = (agent.socket(), Some(crate::support::agent::reference("sb1")));
    crate::support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        client.delete_sandbox(knit_kni::v1::DeleteSandboxRequest { pod }).await.is_ok()
    })
}

fn pending(agent: &Agent<'_>) -> u32 {
    get(agent, "mesh").extension.unwrap().owed
}
