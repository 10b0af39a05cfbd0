//! An agent in a process of its own, which a test can kill. The test program starts itself again as the agent, selected by an
//! environment variable; what an API server lists comes from the test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use knit_agent::config::Config;
use knit_agent::daemon::{ClusterNetworkObject, Daemon, Handle};
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::policies::PolicyEvent;
use knit_engine::{AttachRequest, CallId, CallResult, Event};
use knit_kernel::fault::{FaultInjector, NoTableOwner};
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use knit_policy::{Labels, PodKey, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, network_policy};
use knit_testbed::{Namespace, Pod};
use serde_json::json;

/// The agent's directory: its presence selects the process of the agent.
const DIRECTORY: &str = "KNIT_TEST_AGENT_DIRECTORY";
/// The process of each pod.
const PODS: &str = "KNIT_TEST_AGENT_PODS";
/// Whether tables have no owner.
const NO_OWNER: &str = "KNIT_TEST_AGENT_NO_TABLE_OWNER";
const NAMESPACE: &str = "shop";

/// A running agent. Dropping it kills it.
pub struct AgentProcess {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl AgentProcess {
    /// Starts an agent on a host for these pods, from the test with this name.
    pub fn start(test: &str, host: &Namespace, directory: &Path, pods: &[Pod], has_owner: bool) -> Self {
        let mut command: Command = host.command(std::env::current_exe().unwrap());
        let processes: Vec<String> = pods.iter().map(|pod| pod.pid().to_string()).collect();
        command
            .args(["--exact", test, "--nocapture"])
            .env(DIRECTORY, directory)
            .env(PODS, processes.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if !has_owner {
            command.env(NO_OWNER, "1");
        }
        let mut child = command.spawn().unwrap();
        let (commands, replies) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut agent = Self { child, commands, replies: BufReader::new(replies) };
        agent.wait_for("started");
        agent
    }

    /// Attaches all pods.
    pub fn attach(&mut self) {
        self.run("attach");
    }

    /// Lists a policy by which the pod `pod1` is reached from `pod0` only, or none.
    pub fn list(&mut self, with_policy: bool) {
        self.run(if with_policy { "closed" } else { "open" });
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn run(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
        self.wait_for(command);
    }

    fn wait_for(&mut self, what: &str) {
        let done = format!("done {what}");
        let found = (&mut self.replies).lines().any(|line| line.unwrap().ends_with(&done));
        assert!(found, "the agent ended before: {what}");
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does not return in the process of an agent. Each test with agents starts with this.
pub fn run_as_agent() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        serve(Path::new(&directory));
    }
}

fn serve(directory: &Path) -> ! {
    let mut config =
        Config { node_name: "node1".to_owned(), state_dir: directory.join("state"), ..Config::default() };
    config.cluster_network.enabled = false;
    let faults =
        std::env::var_os(NO_OWNER).map(|_| -> Box<dyn FaultInjector + Send> { Box::new(NoTableOwner) });
    let daemon = Daemon::start(config.options(None).unwrap(), faults).unwrap();
    let (handle, runtime) =
        (daemon.handle(), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let routes = NodeRoutesIntent { network_policy: true, ..NodeRoutesIntent::default() };
    let ranges = ["10.75.0.0/24", "fd75:6b6e:6974::/64"].map(|range| range.parse().unwrap());
    let cluster = ClusterNetworkObject::new(&ranges, &"knit0".parse().unwrap(), Some(1500), Some(&routes));
    runtime.block_on(handle.set_cluster_network(Some(cluster))).unwrap();
    println!("done started");
    for command in std::io::stdin().lines() {
        let command = command.unwrap();
        match command.as_str() {
            "attach" => runtime.block_on(attach(&handle)),
            "open" => list(&handle, false),
            "closed" => list(&handle, true),
            other => panic!("unknown command {other}"),
        }
        println!("done {command}");
    }
    std::process::exit(0)
}

async fn attach(handle: &Handle) {
    for (at, process) in std::env::var(PODS).unwrap().split(',').enumerate() {
        let id = format!("pod{at}");
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let request = AttachRequest {
            call: CallId(id.clone()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest {
                id: id.clone(),
                netns: format!("/proc/{process}/ns/net"),
                namespace: NAMESPACE.to_owned(),
                pod: id.clone(),
                uid: id.clone(),
                ..SandboxRequest::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 0,
            started_at: 0,
        };
        let event = Event::AttachRequested(Box::new(request));
        let is_attached = |_: &knit_agent::Node, result| matches!(result, CallResult::Attached { .. });
        assert!(handle.call(CallId(id), event, is_attached).await.unwrap());
    }
}

fn list(handle: &Handle, with_policy: bool) {
    let spec = json!({"podSelector": {"matchLabels": {"app": "pod1"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "pod0"}}}]}]});
    let (policy, _) = network_policy::translate(PolicyId::namespaced(NAMESPACE, "closed"), &spec);
    let policies = if with_policy { vec![policy] } else { Vec::new() };
    let pods = std::env::var(PODS).unwrap().split(',').count();
    let pods = (0..pods).map(policy_pod).collect();
    let namespaces = [(NAMESPACE.to_owned(), PolicyNamespace::default())].into();
    for event in [
        PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, policies),
        PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new()),
        PolicyEvent::AppPodsListed(false),
        PolicyEvent::NamespacesListed(namespaces),
        PolicyEvent::PodsListed(pods),
    ] {
        handle.submit(Event::Policies(event));
    }
    handle.query_blocking(|_| ()).unwrap();
}

fn policy_pod(at: usize) -> (PodKey, PolicyPod) {
    let name = format!("pod{at}");
    let labels = Labels::from([("app".to_owned(), name.clone())]);
    let number = u8::try_from(at).unwrap() + 2;
    let addresses =
        [[10, 75, 0, number].into(), [0xfd75, 0x6b6e, 0x6974, 0, 0, 0, 0, u16::from(number)].into()];
    let key = PodKey { namespace: NAMESPACE.to_owned(), name: name.clone() };
    (key, PolicyPod { uid: name, labels, addresses: addresses.into(), ..PolicyPod::default() })
}
