//! Knit as the cluster's network, without kube-proxy: a Service gets addresses of a ServiceAddressPool, a host outside the cluster
//! reaches it there, and another node takes over when the announcing one is not Ready.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit --service-proxy
//! knit`): `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_load_balancer`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::kubectl::{Namespace, kubectl, run};
use support::operator::{eventually, folder, on_node};
use support::web::pod;

const NODES: [&str; 2] = ["node1", "node2"];

/// A ServiceAddressPool, deleted when dropped.
struct Pool(String);

impl Drop for Pool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = run(&["get", "serviceaddresspool", &self.0, "-o", "yaml"]);
            eprintln!("{}", support::kubectl::text(&output));
        }
        run(&["delete", "serviceaddresspool", &self.0, "--wait=false"]);
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

/// An unused address on the nodes' subnet.
fn unused(family: &str) -> IpAddr {
    let route = on_node(NODES[0], &["ip", family, "-j", "route", "show", "default"]);
    let route: serde_json::Value = serde_json::from_str(&route).unwrap();
    let external = route[0]["gateway"].as_str().unwrap();
    let end = external.rfind(['.', ':']).unwrap() + 1;
    format!("{}201", &external[..end]).parse().unwrap()
}

/// The answer to a request of this machine, which is outside the cluster.
fn answer(address: IpAddr) -> Option<String> {
    let timeout = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, 80), timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.lines().last()?.to_owned())
}

fn holder(address: IpAddr) -> Option<&'static str> {
    let has = |node: &&&str| {
        on_node(node, &["ip", "-o", "addr", "show", "dev", "eth0"]).contains(&format!(" {address}/"))
    };
    NODES.iter().find(has).copied()
}

#[test]
fn a_host_outside_reaches_a_service_also_when_the_announcing_node_is_not_ready() {
    let namespace = Namespace::new("load-balancer");
    let addresses = [unused("-4"), unused("-6")];
    let pool = Pool(namespace.name.clone());
    let [v4, v6] = addresses;
    namespace.apply(&format!(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: ServiceAddressPool
metadata: {{name: {0}}}
spec:
  cidrs: ['{v4}/32', '{v6}/128']
  namespaces: [{0}]
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  type: LoadBalancer
  loadBalancerClass: knit.opdev.io/load-balancer
  ipFamilyPolicy: RequireDualStack
  selector: {{net: 'yes'}}
  ports: [{{port: 80, targetPort: 8080}}]
---
",
        pool.0
    ));
    namespace.apply(&[pod("a", NODES[0], 8080, false), pod("b", NODES[1], 8080, false)].concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let path = "jsonpath={.status.loadBalancer.ingress[*].ip}";
    let assigned = || namespace.kubectl(&["get", "service", "web", "-o", path]);
    let has_both =
        |text: &String| addresses.iter().all(|one| text.split(' ').any(|ip| ip == one.to_string()));
    eventually("both addresses are assigned", assigned, has_both);
    for address in addresses {
        eventually("a pod answers", || answer(address), Option::is_some);
    }
    let used = || kubectl(&["get", "serviceaddresspool", &pool.0, "-o", "jsonpath={.status.addresses.used}"]);
    eventually("both are counted", used, |used| used == "2");

    let first = holder(v4).unwrap();
    let stopped = StoppedKubelet::on(first);
    eventually(
        "the other node has the address",
        || holder(v4),
        |held| held.is_some_and(|node| node != first),
    );
    eventually("a pod answers", || answer(v4), Option::is_some);
    drop(stopped);
    eventually("the first node has it again", || holder(v4), |held| *held == Some(first));

    // Of another type it has no address.
    namespace.kubectl(&["patch", "service", "web", "--type=merge", "-p", r#"{"spec":{"type":"ClusterIP"}}"#]);
    eventually("no address is assigned", assigned, |text| text.trim().is_empty());
    for address in addresses {
        eventually("no node has the address", || holder(address), Option::is_none);
    }
}
