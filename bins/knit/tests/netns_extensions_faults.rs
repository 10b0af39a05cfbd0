//! Agents that are killed in the middle of attaches and detaches with an extension: who was answered has every receipt,
//! who was not has nothing, and the extension is told whatever it has to undo. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    pub mod chain;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod extension;
}

use std::time::Duration;

use knit_testbed::{Dump, eventually};
use support::agent::{Agent, Machine, attach, netns, ports};
use support::chain::{bridge, configure, leases, on_legacy_at};
use support::extension::{Extension, get};

/// More moments than an agent has from its start to the end of an attach and a detach.
const MOST: usize = 80;

#[test]
fn killed_before_every_record_and_call_of_an_attach_nothing_is_half_meshed() {
    killed_everywhere("ext-kill-moment", "KNIT_FAULT_KILL_AT_MOMENT", On::Own, false);
}

#[test]
fn killed_before_every_step_of_an_attach_nothing_is_half_meshed() {
    killed_everywhere("ext-kill-step", "KNIT_FAULT_KILL_AT", On::Own, false);
}

#[test]
fn killed_before_every_record_and_call_of_a_detach_the_extension_is_told_what_went() {
    killed_everywhere("ext-kill-detach", "KNIT_FAULT_KILL_AT_MOMENT", On::Own, true);
}

#[test]
fn killed_before_every_record_and_call_of_an_attach_to_plugins_nothing_is_half_meshed() {
    killed_everywhere("ext-kill-add", "KNIT_FAULT_KILL_AT_MOMENT", On::Plugins, false);
}

#[test]
fn killed_before_every_record_and_call_of_a_detach_from_plugins_the_extension_is_told_what_went() {
    killed_everywhere("ext-kill-del", "KNIT_FAULT_KILL_AT_MOMENT", On::Plugins, true);
}

/// Who makes the interface.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Own,
    Plugins,
}

/// Kills the agent at each point of an attach, and of the delete after it if that is wanted, in turn.
fn killed_everywhere(test: &str, fault: &str, on: On, then_delete: bool) {
    let machine = Machine::new(test);
    let pod = machine.testbed.pod("one");
    let flag = configure(&machine, &bridge(&machine));
    let request = || match on {
        On::Own => attach("sb1", &netns(&pod)),
        On::Plugins => on_legacy_at("sb1", &netns(&pod), "eth0"),
    };
    let agent = machine.agent_with(&[&flag], &[]);
    // The plugin's bridge stays where it is once it is made.
    agent.try_attach(request()).unwrap();
    agent.delete("sb1");
    eventually("the links are reaped", Duration::from_secs(20), || ports(&machine.host) == 0);
    let extension = Extension::start(machine.folder.path(), "mesh");
    extension.register(&agent);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.crash();
    let mut cut_short = 0;
    for point in 0..MOST {
        let mut agent = machine.spawn(&[&flag], &[(fault, &point.to_string())]);
        let answered = is_up(&agent) && try_attach(&agent, request());
        if answered {
            assert_eq!(extension.has(), ["sb1/eth0"], "{fault} {point}");
        }
        let finished = answered && (!then_delete || try_delete(&agent));
        agent.kill();
        let agent = machine.agent_with(&[&flag], &[]);
        eventually("nothing is owed", Duration::from_secs(10), || owed(&agent) == 0);
        let there = agent.pod("sb1").filter(|pod| !pod.interfaces.is_empty());
        assert!(there.is_some() || !answered || then_delete, "{fault} {point}: an answered attach is gone");
        match there {
            // Not answered, perhaps, but whole.
            Some(there) => {
                let phases: Vec<&str> = there.extensions.iter().map(|one| one.phase.as_str()).collect();
                assert_eq!(phases, ["before-attach", "after-attach"], "{fault} {point}");
                assert_eq!(extension.has(), ["sb1/eth0"], "{fault} {point}");
            }
            None => assert!(extension.has().is_empty(), "{fault} {point}: {:?}", extension.has()),
        }
        cut_short += usize::from(!answered);
        agent.delete("sb1");
        eventually("the extension is told", Duration::from_secs(10), || extension.has().is_empty());
        eventually("the links are reaped", Duration::from_secs(20), || ports(&machine.host) == 0);
        assert_eq!((agent.used(), leases(&machine)), (0, 0), "{fault} {point}");
        host.assert_unchanged(&machine.host);
        inside.assert_unchanged(pod.namespace());
        agent.crash();
        if finished {
            assert!(cut_short > 3, "an attach has more than {cut_short} points");
            return;
        }
    }
    panic!("there are more than {MOST} points");
}

/// Whether the agent came up; it may be killed before that.
fn is_up(agent: &Agent<'_>) -> bool {
    eventually("the agent is ready or gone", Duration::from_secs(20), || {
        !agent.is_running() || (agent.socket().exists() && is_ready(agent))
    });
    agent.is_running()
}

fn is_ready(agent: &Agent<'_>) -> bool {
    let socket = agent.socket();
    support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        let readiness = client.get_readiness(Default::default()).await;
        readiness.is_ok_and(|answer| answer.node.is_some_and(|node| node.ready))
    })
}

fn try_attach(agent: &Agent<'_>, request: knit_kni::v1::AttachRequest) -> bool {
    let socket = agent.socket();
    support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        client.attach(request).await.is_ok()
    })
}

fn try_delete(agent: &Agent<'_>) -> bool {
    let (socket, pod) = (agent.socket(), Some(support::agent::reference("sb1")));
    support::agent::runtime().block_on(async move {
        let Ok(mut client) = knit_kni::Client::connect(socket).await else { return false };
        client.delete_sandbox(knit_kni::v1::DeleteSandboxRequest { pod }).await.is_ok()
    })
}

fn owed(agent: &Agent<'_>) -> u32 {
    get(agent, "mesh").extension.unwrap().owed
}
