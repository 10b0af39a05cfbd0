//! Services without kube-proxy: while agents are killed, and while a cluster is moved to kube-proxy and back.
//!
//! Run by `cargo xtask test cluster`; manually against a running cluster (`cargo xtask cluster up --network knit --service-proxy
//! knit`): `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary_services`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use support::kubectl::{Namespace, kubectl, run};
use support::operator::{cluster, eventually, on_node, testcluster};
use support::web::{pod, request, url};

/// Both tests restart the agents of all nodes.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING_TEST: Mutex<()> = Mutex::new(());
    RUNNING_TEST.lock().unwrap_or_else(PoisonError::into_inner)
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {net: 'yes'}
  ports: [{port: 80, targetPort: 8080}]
---
";

/// Sends requests from inside a pod in a loop, and prints how many were sent and how many failed.
const CLIENT: &str = r#"
sent=0 failed=0
while [ ! -e /tmp/stop ] && [ $sent -lt 20000 ]; do
  for url in $@; do
    sent=$((sent+1))
    curl -s -g -o /dev/null --max-time 2 "$url" || failed=$((failed+1))
  done
done
echo "$sent sent, $failed failed"
"#;

/// A Service with a backend on each node, its cluster IPs and the URLs that lead to it from a client on node1.
fn service(namespace: &Namespace) -> (Vec<IpAddr>, Vec<String>) {
    let client = pod("client", "node1", 9090, false).replace("net: 'yes'", "net: 'no'");
    namespace.apply(
        &[SERVICE.to_owned(), client, pod("b", "node1", 8080, false), pod("c", "node2", 8080, false)]
            .concat(),
    );
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let found = namespace.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    let addresses: Vec<IpAddr> = found.split_whitespace().map(|one| one.parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "both families: {found}");
    let port = namespace.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    let path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    let nodes = kubectl(&["get", "node", "node2", "-o", path]);
    let by_node = nodes.split_whitespace().map(|node| (node.parse().unwrap(), port.parse().unwrap()));
    let all = addresses.iter().map(|address| (*address, 80)).chain(by_node);
    let urls = all.map(|(address, port)| url(address, port, "hostname")).collect();
    for address in &addresses {
        let both = || {
            let answers = (0..20).map(|_| request(namespace, "client", *address, 80, "hostname"));
            answers.collect::<Option<std::collections::BTreeSet<String>>>()
        };
        eventually("both backends answer", both, |seen| seen.as_ref().is_some_and(|seen| seen.len() == 2));
    }
    (addresses, urls)
}

/// Runs `work` while a pod sends requests; none may fail.
fn under_load(namespace: &Namespace, urls: &[String], work: impl FnOnce()) {
    let output = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            let args = ["-n", &namespace.name, "exec", "client", "--", "sh", "-c", CLIENT, "client"];
            let output = run(&[&args[..], &urls].concat());
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        work();
        namespace.kubectl(&["exec", "client", "--", "touch", "/tmp/stop"]);
        client.join().unwrap()
    });
    let sent: u32 = output.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
    // At its limit the client ended before the work did.
    assert!(output.ends_with(", 0 failed") && (50..20_000).contains(&sent), "{output:?}");
}

fn has_kube_proxy(node: &str) -> bool {
    on_node(node, &["nft", "list", "tables"]).contains("table ip kube-proxy")
}

fn has_knits_rules(node: &str) -> bool {
    on_node(node, &["nft", "list", "table", "inet", "knit"]).contains("service_backends4")
}

#[test]
fn no_request_through_a_service_fails_while_every_agent_is_rolled_and_then_killed() {
    let _alone = alone();
    assert!(!has_kube_proxy("node1") && !has_kube_proxy("node2"));
    let namespace = Namespace::new("services");
    let (_, urls) = service(&namespace);
    under_load(&namespace, &urls, || {
        let agents = |args: &[&str]| kubectl(&[&["-n", "pod-network-operator"], args].concat());
        agents(&["rollout", "restart", "daemonset/knit-agent"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        agents(&["delete", "pod", "-l", "app=knit-agent", "--force", "--grace-period=0"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
    });
}

#[test]
fn no_request_fails_while_a_cluster_is_moved_to_kube_proxy_and_back() {
    let _alone = alone();
    let namespace = Namespace::new("moved");
    let (_, urls) = service(&namespace);
    let name = cluster();
    let change = |to: &str| testcluster(&["service-proxy", to, "--name", &name]);
    under_load(&namespace, &urls, || {
        change("kube-proxy");
        for node in ["node1", "node2"] {
            let rules = || (has_kube_proxy(node), has_knits_rules(node));
            eventually("kube-proxy alone translates", rules, |found| *found == (true, false));
        }
        // Requests by kube-proxy's rules.
        std::thread::sleep(std::time::Duration::from_secs(2));
        change("knit");
        for node in ["node1", "node2"] {
            let rules = || (has_kube_proxy(node), has_knits_rules(node));
            eventually("Knit alone translates", rules, |found| *found == (false, true));
        }
        std::thread::sleep(std::time::Duration::from_secs(2));
    });
}
