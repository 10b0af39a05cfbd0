//! Knit as the cluster's network: egress traffic of a namespace's pods uses a gateway, and the next one when its node is not Ready.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_egress`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::net::{IpAddr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::kubectl::{Namespace, kubectl, run};
use support::operator::{eventually, folder, on_node};
use support::web::{addresses, pod, request};

/// The preferred node of the gateway's address, and the next one.
const FIRST: &str = "node2";
const NEXT: &str = "node1";

/// An EgressGateway for one namespace, deleted when dropped.
struct Gateway {
    name: String,
}

impl Gateway {
    fn new(namespace: &Namespace, addresses: &[IpAddr]) -> Self {
        let gateway = Self { name: namespace.name.clone() };
        let addresses: Vec<String> = addresses.iter().map(|address| format!("'{address}'")).collect();
        namespace.apply(&format!(
            "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: EgressGateway
metadata: {{name: {0}}}
spec:
  namespaces: [{0}]
  addresses: [{1}]
  nodes: [{FIRST}, {NEXT}]
",
            gateway.name,
            addresses.join(", ")
        ));
        gateway
    }

    /// The active node in its status.
    fn active(&self) -> String {
        kubectl(&["get", "egressgateway", &self.name, "-o", "jsonpath={.status.activeNode}"])
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = run(&["get", "egressgateway", &self.name, "-o", "yaml"]);
            eprintln!("{}", support::kubectl::text(&output));
        }
        run(&["delete", "egressgateway", &self.name, "--wait=false"]);
    }
}

/// A stopped kubelet, continued when dropped.
struct StoppedKubelet(Pid);

impl StoppedKubelet {
    fn on(node: &str) -> Self {
        let recorded = std::fs::read_to_string(folder().join(format!("run/kubelet-{node}.pid"))).unwrap();
        let pid = Pid::from_raw(recorded.split_whitespace().next().unwrap().parse().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for StoppedKubelet {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// This machine's address on the node subnet, which is neither pod nor node; and an unused address of the same subnet.
fn external(family: &str, free: &str) -> (IpAddr, IpAddr) {
    let route = on_node(NEXT, &["ip", family, "-j", "route", "show", "default"]);
    let route: serde_json::Value = serde_json::from_str(&route).unwrap();
    let external = route[0]["gateway"].as_str().unwrap();
    let end = external.rfind(['.', ':']).unwrap() + 1;
    (external.parse().unwrap(), format!("{}{free}", &external[..end]).parse().unwrap())
}

/// The source address of a pod's connections to this machine.
fn source_address(namespace: &Namespace, pod: &str, external: IpAddr) -> IpAddr {
    let listener = TcpListener::bind((external, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connected = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The server does not answer; the pod retries until its connection is seen.
        scope.spawn(|| {
            (0..30).any(|_| {
                request(namespace, pod, external, port, "");
                connected.load(Ordering::SeqCst)
            })
        });
        let accepted = eventually("the pod connects", || listener.accept().ok(), Option::is_some);
        connected.store(true, Ordering::SeqCst);
        accepted.unwrap().1.ip()
    })
}

/// The hardware address that this machine, an external host on the nodes' subnet, knows of an address. It is changed only by traffic and by
/// announcements.
fn known_mac(address: IpAddr) -> String {
    let output = Command::new("ip").args(["-j", "neigh", "show", &address.to_string()]).output().unwrap();
    let entries: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    entries[0]["lladdr"].as_str().unwrap_or_default().to_owned()
}

/// The hardware address of a node.
fn mac(node: &str) -> String {
    let links = on_node(node, &["ip", "-j", "link", "show", "dev", "eth0"]);
    let links: serde_json::Value = serde_json::from_str(&links).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

fn has_address(node: &str, address: IpAddr) -> bool {
    on_node(node, &["ip", "-o", "addr", "show", "dev", "eth0"]).contains(&format!(" {address}/"))
}

#[test]
fn external_hosts_see_the_gateways_address_also_when_its_node_is_not_ready() {
    let (namespace, other) = (Namespace::new("egress"), Namespace::new("egress-other"));
    namespace.apply(&[pod("a", NEXT, 8080, false), pod("b", FIRST, 8080, false)].concat());
    other.apply(&pod("c", NEXT, 8080, false));
    for one in [&namespace, &other] {
        one.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    }
    let families = [external("-4", "200"), external("-6", "200")];
    let held = families.map(|(_, address)| address);
    let gateway = Gateway::new(&namespace, &held);
    eventually("the first node is active", || gateway.active(), |active| active == FIRST);
    for (external, address) in families {
        eventually("the node has the address", || has_address(FIRST, address), |held| *held);
        for pod in ["a", "b"] {
            let seen = || source_address(&namespace, pod, external);
            eventually(&format!("pod {pod} uses the gateway's address"), seen, |seen| *seen == address);
        }
        assert_ne!(source_address(&other, "c", external), address, "a pod of another namespace");
    }
    // Inside the cluster pods keep their own addresses.
    let (a, b) = (addresses(&namespace, "a"), addresses(&namespace, "b"));
    for (mine, theirs) in a.iter().zip(&b) {
        let answer = || request(&namespace, "a", *theirs, 8080, "clientip");
        let seen = eventually("an answer", answer, Option::is_some).unwrap();
        assert!(seen.contains(&mine.to_string()), "{seen}, not {mine}");
    }

    assert_eq!(held.map(known_mac), [mac(FIRST), mac(FIRST)], "this machine answered through the first node");
    let stopped = StoppedKubelet::on(FIRST);
    eventually("the next node is active", || gateway.active(), |active| active == NEXT);
    // Without any traffic: the next node announces the addresses that it took over.
    let next = mac(NEXT);
    eventually(
        "the addresses are announced",
        || held.map(known_mac),
        |known| known.iter().all(|mac| *mac == next),
    );
    for (external, address) in families {
        eventually(
            "the address has moved",
            || (has_address(FIRST, address), has_address(NEXT, address)),
            |held| *held == (false, true),
        );
        let seen = || source_address(&namespace, "a", external);
        eventually("the pod uses the gateway's address", seen, |seen| *seen == address);
    }
    drop(stopped);
    eventually("the first node is active again", || gateway.active(), |active| active == FIRST);
    eventually(
        "the address has moved back",
        || held.map(|address| has_address(NEXT, address)),
        |held| *held == [false; 2],
    );
    for (external, address) in families {
        let seen = || source_address(&namespace, "a", external);
        eventually("the pod uses the gateway's address", seen, |seen| *seen == address);
    }

    // Deleting the gateway removes everything.
    drop(gateway);
    for (external, address) in families {
        let seen = || source_address(&namespace, "a", external);
        eventually("the pod uses its node's address", seen, |seen| *seen != address);
        eventually("no node has the address", || has_address(FIRST, address), |held| !held);
    }
    for node in [FIRST, NEXT] {
        let rules = || on_node(node, &["ip", "rule", "show", "priority", "7501"]);
        eventually("no rule is left", rules, |rules| rules.trim().is_empty());
    }
}
