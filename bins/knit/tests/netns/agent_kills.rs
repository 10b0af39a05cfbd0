//! SIGKILL at every step of the plans of an attach and of a detach, both with anti-spoofing and host ports: after a restart
//! the attachment is complete or nothing of it remains, neither links, addresses and routes nor elements of the filter.

use std::time::Duration;

use crate::support::agent::{Agent, Machine, addresses, attach, netns, ports, reference};
use crate::support::killed_steps::KilledSteps;
use knit_kni::v1;
use knit_testbed::{Dump, Namespace, Pod, eventually, without_table_owners};

/// An upper bound of the steps of an attach or a detach.
const MAX_STEPS: usize = 150;
const TIMEOUT: Duration = Duration::from_secs(20);
const ARGUMENTS: [&str; 1] = ["--cluster-anti-spoofing"];

/// A node and a pod, with their state before the pod is attached.
struct Ground<'a> {
    machine: &'a Machine,
    pod: &'a Pod,
    host: Dump,
    inside: Dump,
    ruleset: Vec<String>,
}

/// The lines of the rule set, sorted: the kernel lists elements in any order.
fn ruleset(host: &Namespace) -> Vec<String> {
    let text = host.output("nft", &["-s", "list", "ruleset"]).unwrap();
    let text = without_table_owners(&text);
    let mut lines: Vec<String> = text.split([',', '\n']).map(|line| line.trim().to_owned()).collect();
    lines.sort_unstable();
    lines
}

impl<'a> Ground<'a> {
    fn new(machine: &'a Machine, pod: &'a Pod) -> Self {
        let agent = machine.agent_with(&ARGUMENTS, &[]);
        let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
        let ruleset = ruleset(&machine.host);
        agent.crash();
        Self { machine, pod, host, inside, ruleset }
    }

    /// `eth0` with host ports, one of them on a single address of the node.
    fn request(&self) -> v1::AttachRequest {
        let port = |host_port: u32, host_ip: &str| v1::PortMapping {
            container_port: 80,
            host_port,
            host_ip: host_ip.to_owned(),
            ..Default::default()
        };
        let port_mappings = vec![port(8080, ""), port(8081, "127.0.0.1")];
        let mut request = attach("sb1", &netns(self.pod));
        request.interfaces = vec![v1::InterfaceSpec { port_mappings, ..Default::default() }];
        request
    }

    /// Attaches the pod. Returns its addresses, which the filter contains.
    fn attach(&self, agent: &Agent<'_>) -> Vec<String> {
        let given = addresses(&agent.try_attach(self.request()).unwrap(), "eth0");
        let rules = ruleset(&self.machine.host).join("\n");
        for text in given.iter().map(String::as_str).chain(["8080", "8081"]) {
            assert!(rules.contains(text), "{text} is not in\n{rules}");
        }
        self.pod.ping("10.75.0.1").unwrap();
        given
    }

    fn assert_nothing_remains(&self, agent: &Agent<'_>, when: &str) {
        assert_eq!(agent.used_addresses(), 0, "{when}");
        eventually(&format!("{when}: the links are deleted"), TIMEOUT, || ports(&self.machine.host) == 0);
        eventually(&format!("{when}: the filter is as before"), TIMEOUT, || {
            ruleset(&self.machine.host) == self.ruleset
        });
        self.host.assert_unchanged(&self.machine.host);
        self.inside.assert_unchanged(self.pod.namespace());
    }
}

/// Runs an operation of agents that are killed after 0, 1, 2, ... steps. It returns whether it was completed, and after each
/// kill `recover` uses a new agent.
fn killed_at_every_step(
    ground: &Ground<'_>,
    prepare: impl Fn(),
    operation: impl Fn(&Agent<'_>) -> bool,
    recover: impl Fn(&Agent<'_>, &str),
) -> KilledSteps {
    let mut killed = KilledSteps::default();
    for step in 0..MAX_STEPS {
        prepare();
        let limit = step.to_string();
        let mut agent = ground.machine.agent_with(&ARGUMENTS, &[("KNIT_FAULT_KILL_AT", &limit)]);
        let is_completed = operation(&agent);
        if is_completed {
            agent.kill();
        } else {
            agent.wait();
            killed.add(&ground.machine.log());
        }
        let agent = ground.machine.agent_with(&ARGUMENTS, &[]);
        recover(&agent, &format!("after {step} steps, {:?}", killed.last()));
        agent.crash();
        if is_completed {
            return killed;
        }
    }
    panic!("there are more than {MAX_STEPS} steps");
}

#[test]
fn an_agent_killed_at_any_step_of_an_attach_leaves_nothing_of_it() {
    let machine = Machine::new("agent-kill-attach");
    let pod = machine.testbed.pod("one");
    let ground = Ground::new(&machine, &pod);
    let operation = |agent: &Agent<'_>| agent.try_attach(ground.request()).is_ok();
    let recover = |agent: &Agent<'_>, when: &str| {
        // An attach without a response is not repeated after a restart.
        if agent.pod("sb1").is_none() {
            ground.assert_nothing_remains(agent, when);
        } else {
            assert_eq!(agent.check("sb1"), [""; 0], "{when}");
        }
        ground.attach(agent);
        agent.delete("sb1");
        ground.assert_nothing_remains(agent, when);
    };
    let killed = killed_at_every_step(&ground, || (), operation, recover);
    killed.assert_contains_filter_steps("+ element");
}

#[test]
fn an_agent_killed_at_any_step_of_a_detach_leaves_all_of_the_attachment_or_nothing() {
    let machine = Machine::new("agent-kill-detach");
    let pod = machine.testbed.pod("one");
    let ground = Ground::new(&machine, &pod);
    let attached = std::cell::RefCell::new(Vec::new());
    let prepare = || {
        let agent = machine.agent_with(&ARGUMENTS, &[]);
        ground.attach(&agent);
        attached.replace(ruleset(&machine.host));
        agent.crash();
    };
    let operation = |agent: &Agent<'_>| {
        let request = v1::DeleteSandboxRequest { pod: Some(reference("sb1")) };
        let response = agent.with(|mut client| async move { client.delete_sandbox(request).await });
        // Tables that nothing uses any more are removed after the response.
        eventually("the tables are removed or the agent is killed", TIMEOUT, || {
            !agent.is_running() || ruleset(&machine.host) == ground.ruleset
        });
        response.is_ok() && agent.is_running()
    };
    let recover = |agent: &Agent<'_>, when: &str| {
        let is_gone = || ports(&machine.host) == 0 && ruleset(&machine.host) == ground.ruleset;
        let is_attached = || agent.pod("sb1").is_some_and(|pod| !pod.interfaces.is_empty());
        let is_complete = || is_attached() && ruleset(&machine.host) == *attached.borrow();
        eventually(&format!("{when}: all of it or nothing"), TIMEOUT, || is_gone() || is_complete());
        if is_attached() {
            assert_eq!(agent.check("sb1"), [""; 0], "{when}");
            pod.ping("10.75.0.1").unwrap();
        }
        // A client without a response retries.
        agent.delete("sb1");
        ground.assert_nothing_remains(agent, when);
    };
    let killed = killed_at_every_step(&ground, prepare, operation, recover);
    killed.assert_contains_filter_steps("- element");
}
