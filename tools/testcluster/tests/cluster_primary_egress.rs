//! Knit as the cluster's network: pods of a namespace leave by a gateway, and by the next one when its node is not Ready.
//!
//! Run by `cargo xtask test cluster`; by hand against a cluster that is up (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_primary_egress`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::beside::{eventually, folder, on_node};
use support::kubectl::{Namespace, kubectl, run};
use support::web::{addresses, ask, pod};

/// The node that has the gateway's address first, and the one that has it next.
const FIRST: &str = "node2";
const NEXT: &str = "node1";

/// A gateway for one namespace; it goes when the test ends, also when it fails.
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

    /// Which node has its addresses, as its status says.
    fn active(&self) -> String {
        kubectl(&["get", "egressgateway", &self.name, "-o", "jsonpath={.status.activeNode}"])
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = run(&["get", "egressgateway", &self.name, "-o", "yaml"]);
            eprintln!("{}", support::kubectl::text(&said));
        }
        run(&["delete", "egressgateway", &self.name, "--wait=false"]);
    }
}

/// A kubelet that says nothing, until this is dropped.
struct Silent(Pid);

impl Silent {
    fn on(node: &str) -> Self {
        let recorded = std::fs::read_to_string(folder().join(format!("run/kubelet-{node}.pid"))).unwrap();
        let pid = Pid::from_raw(recorded.split_whitespace().next().unwrap().parse().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// This machine, which is neither pod nor node, as nodes reach it; and an address beside it that nobody has.
fn outside(family: &str, free: &str) -> (IpAddr, IpAddr) {
    let route = on_node(NEXT, &["ip", family, "-j", "route", "show", "default"]);
    let route: serde_json::Value = serde_json::from_str(&route).unwrap();
    let outside = route[0]["gateway"].as_str().unwrap();
    let end = outside.rfind(['.', ':']).unwrap() + 1;
    (outside.parse().unwrap(), format!("{}{free}", &outside[..end]).parse().unwrap())
}

/// As whom a pod is seen by this machine.
fn seen_as(namespace: &Namespace, pod: &str, outside: IpAddr) -> IpAddr {
    let listener = TcpListener::bind((outside, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let came = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Nobody answers it; it asks until it was seen.
        scope.spawn(|| {
            (0..30).any(|_| {
                ask(namespace, pod, outside, port, "");
                came.load(Ordering::SeqCst)
            })
        });
        let accepted = eventually("the pod comes", || listener.accept().ok(), Option::is_some);
        came.store(true, Ordering::SeqCst);
        accepted.unwrap().1.ip()
    })
}

fn is_held(node: &str, address: IpAddr) -> bool {
    on_node(node, &["ip", "-o", "addr", "show", "dev", "eth0"]).contains(&format!(" {address}/"))
}

#[test]
fn the_outside_sees_the_gateways_address_also_when_its_node_is_not_ready() {
    let (namespace, other) = (Namespace::new("egress"), Namespace::new("egress-other"));
    namespace.apply(&[pod("a", NEXT, 8080, false), pod("b", FIRST, 8080, false)].concat());
    other.apply(&pod("c", NEXT, 8080, false));
    for one in [&namespace, &other] {
        one.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    }
    let families = [outside("-4", "200"), outside("-6", "200")];
    let held = families.map(|(_, address)| address);
    let gateway = Gateway::new(&namespace, &held);
    eventually("the first node has it", || gateway.active(), |active| active == FIRST);
    for (outside, address) in families {
        eventually("the node has the address", || is_held(FIRST, address), |held| *held);
        for pod in ["a", "b"] {
            let seen = || seen_as(&namespace, pod, outside);
            eventually(&format!("pod {pod} is seen as the gateway"), seen, |seen| *seen == address);
        }
        assert_ne!(seen_as(&other, "c", outside), address, "a pod of another namespace");
    }
    // Inside of the cluster pods are themselves.
    let (a, b) = (addresses(&namespace, "a"), addresses(&namespace, "b"));
    for (mine, theirs) in a.iter().zip(&b) {
        let answer = || ask(&namespace, "a", *theirs, 8080, "clientip");
        let seen = eventually("an answer", answer, Option::is_some).unwrap();
        assert!(seen.contains(&mine.to_string()), "{seen}, not {mine}");
    }

    let silent = Silent::on(FIRST);
    eventually("the next node has it", || gateway.active(), |active| active == NEXT);
    for (outside, address) in families {
        eventually(
            "the address has moved",
            || (is_held(FIRST, address), is_held(NEXT, address)),
            |held| *held == (false, true),
        );
        let seen = || seen_as(&namespace, "a", outside);
        eventually("the pod is seen as the gateway", seen, |seen| *seen == address);
    }
    drop(silent);
    eventually("it comes back", || gateway.active(), |active| active == FIRST);
    eventually("wholly", || held.map(|address| is_held(NEXT, address)), |held| *held == [false; 2]);
    for (outside, address) in families {
        let seen = || seen_as(&namespace, "a", outside);
        eventually("the pod is seen as the gateway", seen, |seen| *seen == address);
    }

    // It takes everything along.
    drop(gateway);
    for (outside, address) in families {
        let seen = || seen_as(&namespace, "a", outside);
        eventually("the pod is seen as its node", seen, |seen| *seen != address);
        eventually("nobody has the address", || is_held(FIRST, address), |held| !held);
    }
    for node in [FIRST, NEXT] {
        let rules = || on_node(node, &["ip", "rule", "show", "priority", "7501"]);
        eventually("no rule is left", rules, |rules| rules.trim().is_empty());
    }
}
