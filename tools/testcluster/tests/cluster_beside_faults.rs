//! Knit beside the reference network while something is away: an agent, all agents, the API server.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::beside::{IMAGE, eventually, folder, installed, on_node};
use support::kubectl::{Namespace, command, feed, kubectl, run, text};

const OPERATOR: &str = "pod-network-operator";

fn object(bridge: &str) -> String {
    format!(
        "
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata: {{name: net}}
spec:
  networkAttachments:
    - {{name: net, master: {bridge}, cidr: 192.168.120.0/24}}
"
    )
}

fn pod(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{podconfig: net}}}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: \"{IMAGE}\", imagePullPolicy: Never, args: [pause]}}
"
    )
}

/// What the status says, or why it cannot be read: the API server is away at times.
fn ready_pods(namespace: &Namespace) -> String {
    let path = "jsonpath={.status.readyPods}";
    text(&run(&["-n", &namespace.name, "get", "podconfig", "net", "-o", path]))
}

fn has_bridge(bridge: &str) -> bool {
    on_node("node1", &["ip", "-br", "link"])
        .lines()
        .any(|line| line.split_whitespace().next() == Some(bridge))
}

/// Pings from inside a pod, for more than twenty seconds.
struct Pinging(Child);

impl Pinging {
    fn start(namespace: &Namespace, pod: &str, to: &str) -> Self {
        let words =
            ["-n", &namespace.name, "exec", pod, "--", "ping", "-i", "0.2", "-W", "1", "-c", "110", to];
        Self(command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// All of them came back.
    fn assert_none_lost(self) {
        let said = text(&self.0.wait_with_output().unwrap());
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
}

#[test]
fn pods_keep_their_network_while_the_agent_and_then_the_api_server_are_away() {
    let _turn = installed();
    let namespace = Namespace::new("away");
    namespace.apply(&format!("{}{}{}", object("awaybr0"), pod("a"), pod("b")));
    eventually("both pods", || ready_pods(&namespace), |ready| ready == "2");
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    let pinging = Pinging::start(&namespace, "a", "192.168.120.1");

    let agent = kubectl(&[
        "-n",
        OPERATOR,
        "get",
        "pods",
        "-l",
        "app=knit-agent",
        "--field-selector=spec.nodeName=node1",
        "-o",
        "name",
    ]);
    kubectl(&["-n", OPERATOR, "delete", agent.trim(), "--grace-period=0", "--force"]);
    namespace.apply(&pod("c"));
    eventually("the next agent serves the new pod", || ready_pods(&namespace), |ready| ready == "3");

    let pid = std::fs::read_to_string(folder().join("run/apiserver.pid")).unwrap();
    let pid = Pid::from_raw(pid.split_whitespace().next().unwrap().parse().unwrap());
    let stopped = Stopped::now(pid);
    std::thread::sleep(Duration::from_secs(8));
    assert!(has_bridge("awaybr0"), "nothing goes because the API server is silent");
    drop(stopped);

    eventually("the API server is back", || namespace.try_apply(&pod("d")), |(accepted, _)| *accepted);
    eventually("everything goes on", || ready_pods(&namespace), |ready| ready == "4");
    pinging.assert_none_lost();
    namespace.kubectl(&["delete", "podconfig", "net", "--timeout=60s"]);
    eventually("it is gone", || has_bridge("awaybr0"), |there| !there);
}

/// A process that does not run, until this goes.
struct Stopped(Pid);

impl Stopped {
    fn now(pid: Pid) -> Self {
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// No node has an agent, until this goes.
struct NoAgents;

impl NoAgents {
    fn now() -> Self {
        assert!(set_node_selector(r#"{"nobody": "here"}"#));
        eventually(
            "no agent runs",
            || kubectl(&["-n", OPERATOR, "get", "pods", "-l", "app=knit-agent", "-o", "name"]),
            |pods| pods.is_empty(),
        );
        Self
    }
}

impl Drop for NoAgents {
    fn drop(&mut self) {
        // Without it no later test has an agent.
        let _ = (0..10).any(|_| set_node_selector("null"));
        run(&["-n", OPERATOR, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    }
}

fn set_node_selector(selector: &str) -> bool {
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{selector}}}}}}}}}"#);
    let words = ["-n", OPERATOR, "patch", "daemonset", "knit-agent", "--type=merge", "-p", &patch];
    run(&words).status.success()
}

#[test]
fn an_object_goes_also_when_no_agent_answers_and_agents_clean_up_when_they_are_back() {
    let _turn = installed();
    let namespace = Namespace::new("silent");
    namespace.apply(&format!("{}{}", object("silentbr0"), pod("a")));
    eventually("the pod", || ready_pods(&namespace), |ready| ready == "1");
    let no_agents = NoAgents::now();
    namespace.kubectl(&["delete", "podconfig", "net", "--timeout=90s"]);
    assert!(has_bridge("silentbr0"), "nobody was there to take it away");
    drop(no_agents);
    eventually("the agent has taken it away", || has_bridge("silentbr0"), |there| !there);
    let states = || namespace.kubectl(&["get", "podnetworkstates", "-o", "name"]);
    eventually("no state is left", states, |states| states.is_empty());
}

#[test]
fn an_agent_may_write_about_its_own_node_only() {
    let _turn = installed();
    let pods = kubectl(&[
        "-n",
        OPERATOR,
        "get",
        "pods",
        "-l",
        "app=knit-agent",
        "--field-selector=spec.nodeName=node1",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ]);
    let token = kubectl(&[
        "-n",
        OPERATOR,
        "create",
        "token",
        "knit-agent",
        "--bound-object-kind=Pod",
        "--bound-object-name",
        &pods,
    ]);
    let label = |node: &str| {
        text(&run(&[
            "--token",
            token.trim(),
            "patch",
            "nodenetwork",
            node,
            "--type=merge",
            "-p",
            r#"{"metadata":{"annotations":{"tried":"yes"}}}"#,
        ]))
    };
    // An agent writes it a moment after it is ready.
    eventually("the agent's own node", || label("node1"), |said| said.contains("patched"));
    eventually(
        "the other node has a state, too, and it is not this agent's",
        || label("node2"),
        |said| said.contains("the agent of node1 may not write the state of node node2"),
    );
    // Blocks of addresses are claimed for its own node alone, and so given back.
    let name = format!("tried-{}", std::process::id());
    let block = |node: &str| {
        format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: PodAddressBlock\nmetadata: {{name: {name}}}\nspec: {{pool: t/x/10.9.9.0/24, cidr: 10.9.9.0/28, node: {node}}}\n"
        )
    };
    let theirs = "the agent of node1 may not claim or release a block of another node";
    let (accepted, said) = feed(&["--token", token.trim(), "create", "-f", "-"], &block("node2"));
    assert!(!accepted && said.contains(theirs), "{said}");
    let (accepted, said) = feed(&["create", "-f", "-"], &block("node2"));
    assert!(accepted, "{said}");
    let delete = || text(&run(&["--token", token.trim(), "delete", "podaddressblock", &name]));
    let said = delete();
    kubectl(&["delete", "podaddressblock", &name]);
    assert!(said.contains(theirs), "{said}");
    let (accepted, said) =
        feed(&["--token", token.trim(), "create", "--dry-run=server", "-f", "-"], &block("node1"));
    assert!(accepted, "{said}");
}
