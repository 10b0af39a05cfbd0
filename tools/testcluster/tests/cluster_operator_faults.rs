//! Knit next to the reference network while an agent, all agents or the API server are unavailable.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::kubectl::{Namespace, feed, kubectl, run, text};
use support::operator::{IMAGE, cluster, eventually, folder, installed, on_node, testcluster};

const OPERATOR_NAMESPACE: &str = "pod-network-operator";

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

/// The number of ready pods in the status, or the error: the API server is unavailable at times.
fn ready_pods(namespace: &Namespace) -> String {
    let path = "jsonpath={.status.readyPods}";
    text(&run(&["-n", &namespace.name, "get", "podconfig", "net", "-o", path]))
}

fn has_bridge(bridge: &str) -> bool {
    on_node("node1", &["ip", "-br", "link"])
        .lines()
        .any(|line| line.split_whitespace().next() == Some(bridge))
}

/// Pings from the network namespace of a pod, without the API server. It ends after two minutes.
struct PingLoop(Child);

impl PingLoop {
    /// From the pod on node1 with this address.
    fn start(from: &str, to: &str) -> Self {
        let find = format!(
            "for name in $(ls /run/netns); do ip -n $name -o addr show 2>/dev/null | grep -q ' {from}/' && echo $name; done; true"
        );
        let found = on_node("node1", &["bash", "-c", &find]);
        let netns = found.lines().next().unwrap_or_else(|| panic!("no namespace of node1 has {from}"));
        let net = format!("--net=/run/netns/{netns}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_knit-testcluster"));
        command.args(["shell", "node1", "--name", &cluster(), "--", "nsenter", &net]);
        command.args(["ping", "-i", "0.2", "-W", "1", "-w", "120", to]);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Asserts that no packet was lost, from before the faults until after them.
    fn assert_none_lost(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the traffic ended before the last fault");
        let output = text(&self.0.wait_with_output().unwrap());
        assert!(output.contains(" 0% packet loss"), "{output}");
    }
}

/// The API server is killed, until this is dropped: connections are closed, new ones refused.
struct NoApiServer;

impl NoApiServer {
    fn kill() -> Self {
        let pid = std::fs::read_to_string(folder().join("run/apiserver.pid")).unwrap();
        let pid = Pid::from_raw(pid.split_whitespace().next().unwrap().parse().unwrap());
        let server = Self;
        kill(pid, Signal::SIGKILL).unwrap();
        eventually(
            "no request is answered",
            || run(&["get", "--raw=/livez"]).status.success(),
            |answered| !answered,
        );
        server
    }
}

impl Drop for NoApiServer {
    fn drop(&mut self) {
        testcluster(&["restart", "apiserver", "--name", &cluster()]);
    }
}

#[test]
fn pods_keep_their_network_while_the_agent_and_then_the_api_server_are_unavailable() {
    let _exclusive = installed();
    let namespace = Namespace::new("away");
    namespace.apply(&format!("{}{}{}", object("awaybr0"), pod("a"), pod("b")));
    eventually("both pods", || ready_pods(&namespace), |ready| ready == "2");
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    let path = "jsonpath={.status.objects[0].interfaces[0].addresses[0]}";
    let address = namespace.kubectl(&["get", "podnetworkstate", "a", "-o", path]);
    let address = address.split('/').next().unwrap_or_default();
    let pinging = PingLoop::start(address, "192.168.120.1");

    let agent = kubectl(&[
        "-n",
        OPERATOR_NAMESPACE,
        "get",
        "pods",
        "-l",
        "app=knit-agent",
        "--field-selector=spec.nodeName=node1",
        "-o",
        "name",
    ]);
    kubectl(&["-n", OPERATOR_NAMESPACE, "delete", agent.trim(), "--grace-period=0", "--force"]);
    namespace.apply(&pod("c"));
    eventually("the next agent serves the new pod", || ready_pods(&namespace), |ready| ready == "3");

    let no_api_server = NoApiServer::kill();
    std::thread::sleep(Duration::from_secs(20));
    assert!(has_bridge("awaybr0"), "nothing is removed while the API server is unavailable");
    drop(no_api_server);

    eventually("the API server answers", || namespace.try_apply(&pod("d")), |(accepted, _)| *accepted);
    eventually("new pods are configured", || ready_pods(&namespace), |ready| ready == "4");
    pinging.assert_none_lost();
    namespace.kubectl(&["delete", "podconfig", "net", "--timeout=60s"]);
    eventually("the bridge is removed", || has_bridge("awaybr0"), |present| !present);
}

/// No node has an agent, until this is dropped.
struct NoAgents;

impl NoAgents {
    fn remove() -> Self {
        assert!(set_node_selector(r#"{"knit.test/no-such": "node"}"#));
        eventually(
            "no agent runs",
            || kubectl(&["-n", OPERATOR_NAMESPACE, "get", "pods", "-l", "app=knit-agent", "-o", "name"]),
            |pods| pods.is_empty(),
        );
        Self
    }
}

impl Drop for NoAgents {
    fn drop(&mut self) {
        // Without the agents later tests would fail.
        let _ = (0..10).any(|_| set_node_selector("null"));
        run(&["-n", OPERATOR_NAMESPACE, "rollout", "status", "daemonset/knit-agent", "--timeout=120s"]);
    }
}

fn set_node_selector(selector: &str) -> bool {
    let patch = format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{selector}}}}}}}}}"#);
    let args = ["-n", OPERATOR_NAMESPACE, "patch", "daemonset", "knit-agent", "--type=merge", "-p", &patch];
    run(&args).status.success()
}

#[test]
fn an_object_is_deleted_without_agents_and_agents_clean_up_when_they_return() {
    let _exclusive = installed();
    let namespace = Namespace::new("silent");
    namespace.apply(&format!("{}{}", object("silentbr0"), pod("a")));
    eventually("the pod", || ready_pods(&namespace), |ready| ready == "1");
    let no_agents = NoAgents::remove();
    namespace.kubectl(&["delete", "podconfig", "net", "--timeout=90s"]);
    assert!(has_bridge("silentbr0"), "no agent could remove it");
    drop(no_agents);
    eventually("the agent has removed it", || has_bridge("silentbr0"), |present| !present);
    let states = || namespace.kubectl(&["get", "podnetworkstates", "-o", "name"]);
    eventually("no state is left", states, |states| states.is_empty());
}

#[test]
fn an_agent_may_write_the_state_of_its_own_node_only() {
    let _exclusive = installed();
    let pods = kubectl(&[
        "-n",
        OPERATOR_NAMESPACE,
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
        OPERATOR_NAMESPACE,
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
            r#"{"metadata":{"annotations":{"test":"yes"}}}"#,
        ]))
    };
    // The agent creates it a moment after it is ready.
    eventually("the agent's own node", || label("node1"), |output| output.contains("patched"));
    eventually(
        "the agent may not write the state of the other node",
        || label("node2"),
        |output| output.contains("the agent of node1 may not write the state of node node2"),
    );
    // Blocks are claimed and released for its own node only.
    let name = format!("claimed-{}", std::process::id());
    let block = |node: &str| {
        format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: PodAddressBlock\nmetadata: {{name: {name}}}\nspec: {{pool: t/x/10.9.9.0/24, cidr: 10.9.9.0/28, node: {node}}}\n"
        )
    };
    let rejection = "the agent of node1 may not claim or release a block of another node";
    let (accepted, output) = feed(&["--token", token.trim(), "create", "-f", "-"], &block("node2"));
    assert!(!accepted && output.contains(rejection), "{output}");
    let (accepted, output) = feed(&["create", "-f", "-"], &block("node2"));
    assert!(accepted, "{output}");
    let delete = || text(&run(&["--token", token.trim(), "delete", "podaddressblock", &name]));
    let output = delete();
    kubectl(&["delete", "podaddressblock", &name]);
    assert!(output.contains(rejection), "{output}");
    let (accepted, output) =
        feed(&["--token", token.trim(), "create", "--dry-run=server", "-f", "-"], &block("node1"));
    assert!(accepted, "{output}");
}
