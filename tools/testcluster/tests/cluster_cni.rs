//! A node whose pods Knit connects, called by containerd through the CNI shim only.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit-cni`):
//! `KNIT_TEST_CLUSTER=knit KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_cni`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod kubectl;
}

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::kubectl::{Namespace, kubectl, text};

const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// Runs a command on the node.
fn on_node(args: &[&str]) -> Output {
    let cluster = std::env::var("KNIT_TEST_CLUSTER").expect("KNIT_TEST_CLUSTER names the cluster");
    let mut shell = Command::new(env!("CARGO_BIN_EXE_knit-testcluster"));
    shell.args(["--name", &cluster, "shell", "node1", "--"]).args(args);
    shell.stdin(Stdio::null()).output().unwrap()
}

/// The cluster's state directory.
fn folder() -> String {
    let cluster = std::env::var("KNIT_TEST_CLUSTER").expect("KNIT_TEST_CLUSTER names the cluster");
    format!("/var/lib/knit-cluster/{cluster}")
}

fn node_output(args: &[&str]) -> String {
    let output = on_node(args);
    assert!(output.status.success(), "{}: {}", args.join(" "), text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// One test stops the agent that all of them use: one runs at a time.
fn exclusive() -> MutexGuard<'static, ()> {
    static RUNNING_TEST: Mutex<()> = Mutex::new(());
    RUNNING_TEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flags with retries: a pod is ready a moment before its server listens.
const CURL_WITH_RETRIES: [&str; 8] =
    ["-sS", "--max-time", "10", "--retry", "20", "--retry-delay", "1", "--retry-all-errors"];

fn eventually(what: &str, seconds: u64, mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while let Err(missing) = check() {
        assert!(Instant::now() < end, "{what}: not after {seconds} s: {missing}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn pod(name: &str, annotations: &str, ports: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{{annotations}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: "{IMAGE}"
    imagePullPolicy: Never
    args: [netexec, --http-port=8080]
    ports: [{ports}]
---"#
    )
}

#[test]
fn the_kubelets_pods_get_addresses_host_ports_and_limits_from_knit() {
    let _exclusive = exclusive();
    let namespace = Namespace::new("cni");
    let limits = r#"kubernetes.io/ingress-bandwidth: "20M", kubernetes.io/egress-bandwidth: "10M""#;
    let ports = "{containerPort: 8080, hostPort: 31080}";
    namespace.apply(&format!("{}{}", pod("a", limits, ports), pod("b", "", "")));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);

    let addresses = |name: &str| {
        let found = namespace.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIPs[*].ip}"]);
        found.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (a, b) = (addresses("a"), addresses("b"));
    assert_eq!((a.len(), b.len()), (2, 2), "both families: {a:?} {b:?}");
    for address in &a {
        let url = match address.contains(':') {
            true => format!("http://[{address}]:8080/hostname"),
            false => format!("http://{address}:8080/hostname"),
        };
        let answer =
            namespace.kubectl(&[&["exec", "b", "--", "curl", "-g", &url][..], &CURL_WITH_RETRIES].concat());
        assert_eq!(answer, "a", "{url}");
    }

    // The host port, from outside the node: this machine.
    let node = kubectl(&[
        "get",
        "node",
        "node1",
        "-o",
        "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}",
    ]);
    let node = node.split_whitespace().next().unwrap().to_owned();
    let url = format!("http://{node}:31080/hostname");
    let mut curl = Command::new("curl");
    let answer = curl.args(CURL_WITH_RETRIES).arg(&url).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "a", "{url}: {}", text(&answer));

    // The agent's view of the pod.
    let pods: Value = serde_json::from_str(&knit(&["pods", "-o", "json"])).unwrap();
    let find = |name: &str| {
        let all = pods["pods"].as_array().unwrap().iter();
        let mut own = all.filter(|pod| pod["name"] == name && pod["namespace"] == namespace.name.as_str());
        own.next().unwrap_or_else(|| panic!("no pod {name} in {pods}")).clone()
    };
    let interface = &find("a")["interfaces"][0];
    assert_eq!(interface["provenance"]["dialect"], "cni");
    assert_eq!(interface["addresses"][0]["address"], a[0].as_str());
    assert_eq!(interface["bandwidth"]["egressBits"], 10_000_000, "{interface}");
    assert_eq!(interface["portMappings"][0]["hostPort"], 31080);

    namespace.kubectl(&["delete", "pod", "a", "--wait=true", "--timeout=60s"]);
    eventually("the pod's addresses are free", 60, || {
        let left = knit(&["pods", "-o", "json"]);
        if left.contains(&a[0]) { Err(left) } else { Ok(()) }
    });
}

/// Runs the `knit` command line on the node.
fn knit(args: &[&str]) -> String {
    let program = format!("{}/bin/knit", folder());
    let mut all = vec![program.as_str()];
    all.extend(args);
    node_output(&all)
}

#[test]
fn the_node_stays_ready_without_its_agent_for_a_while() {
    let _exclusive = exclusive();
    let ready = || {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        kubectl(&["get", "node", "node1", "-o", path])
    };
    eventually("the node is ready", 60, || if ready() == "True" { Ok(()) } else { Err(ready()) });
    // The runtime treats an agent that hangs like one that is gone, as in an upgrade.
    let pid_file = std::fs::read_to_string(format!("{}/run/knit-agent-node1.pid", folder())).unwrap();
    let agent = pid_file.split_whitespace().next().unwrap().to_owned();
    node_output(&["kill", "-STOP", &agent]);
    let not_ready = std::panic::catch_unwind(|| {
        for _ in 0..15 {
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(ready(), "True", "the data path works");
        }
        // As if the agent had been ready more than ten minutes ago.
        node_output(&["rm", "/run/knit/cni-ready"]);
        eventually("the node is not ready", 60, || if ready() == "True" { Err(ready()) } else { Ok(()) });
    });
    node_output(&["kill", "-CONT", &agent]);
    eventually("the node is ready again", 60, || if ready() == "True" { Ok(()) } else { Err(ready()) });
    not_ready.unwrap();
}

#[test]
fn cnitool_adds_checks_collects_and_deletes() {
    let _exclusive = exclusive();
    // A separate network, so that GC does not affect the cluster's pods.
    let setup = r#"mkdir -p /run/cnitool && ip netns add cnitool
        sed 's/"name": "knit"/"name": "tool"/' /etc/cni/net.d/10-knit.conflist > /run/cnitool/tool.conflist"#;
    node_output(&["sh", "-c", setup]);
    let run = |verb: &str| {
        let tool = "NETCONFPATH=/run/cnitool CNI_PATH=/opt/cni/bin CNI_IFNAME=eth0 cnitool";
        on_node(&["sh", "-c", &format!("{tool} {verb} tool /run/netns/cnitool")])
    };
    let addresses = || node_output(&["ip", "-n", "cnitool", "-o", "addr"]);
    let (status, added, checked, added_twice) = (run("status"), run("add"), run("check"), run("add"));
    let with = addresses();
    let (deleted, deleted_twice) = (run("del"), run("del"));
    let without = addresses();
    let (readded, gc) = (run("add"), run("gc"));
    let collected = addresses();
    node_output(&["sh", "-c", "ip netns del cnitool; rm -r /run/cnitool"]);

    assert!(status.status.success(), "{}", text(&status));
    assert!(added.status.success(), "{}", text(&added));
    let result: Value = serde_json::from_slice(&added.stdout).unwrap();
    assert_eq!(result["cniVersion"], "1.1.0");
    let ips = result["ips"].as_array().unwrap();
    assert_eq!(ips.len(), 2, "{result}");
    assert!(ips.iter().all(|one| with.contains(one["address"].as_str().unwrap())), "{result} {with}");
    assert!(checked.status.success(), "{}", text(&checked));
    assert!(text(&added_twice).contains("attached already"), "{}", text(&added_twice));
    assert!(
        deleted.status.success() && deleted_twice.status.success(),
        "{}{}",
        text(&deleted),
        text(&deleted_twice)
    );
    assert!(!without.contains("eth0"), "{without}");
    assert!(readded.status.success() && gc.status.success(), "{}{}", text(&readded), text(&gc));
    assert!(!collected.contains("eth0"), "{collected}");
}
