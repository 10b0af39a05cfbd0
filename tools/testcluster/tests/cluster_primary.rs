//! Knit as the cluster's network on two nodes: the source addresses that pods, nodes and external hosts see.
//!
//! Run by `cargo xtask test cluster`, together with the tests of the reference network; manually against a running cluster
//! (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p knit-testcluster --test cluster_primary`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::kubectl::{Namespace, kubectl, run};
use support::operator::{eventually, on_node};
use support::web::{addresses, pod, request, url};

fn node_addresses(node: &str) -> Vec<IpAddr> {
    let path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    let found = kubectl(&["get", "node", node, "-o", path]);
    found.split_whitespace().map(|address| address.parse().unwrap()).collect()
}

/// The source address of a pod's requests to this server.
fn source_address(namespace: &Namespace, pod: &str, to: IpAddr, port: u16) -> IpAddr {
    let answer = eventually("an answer", || request(namespace, pod, to, port, "clientip"), Option::is_some);
    let answer = answer.unwrap();
    let (address, _) = answer.rsplit_once(':').expect("an address and a port");
    address.trim_matches(['[', ']']).parse().unwrap()
}

#[test]
fn pods_and_nodes_see_a_pods_own_address_and_external_hosts_see_its_nodes() {
    let namespace = Namespace::new("primary");
    let pods =
        [pod("a", "node1", 8080, false), pod("b", "node2", 8080, false), pod("host", "node2", 8099, true)];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let (a, b) = (addresses(&namespace, "a"), addresses(&namespace, "b"));
    for (mine, theirs) in a.iter().zip(&b) {
        assert_eq!(source_address(&namespace, "a", *theirs, 8080), *mine, "by a pod of another node");
    }
    for (mine, theirs) in a.iter().zip(node_addresses("node2")) {
        assert_eq!(source_address(&namespace, "a", theirs, 8099), *mine, "by another node");
    }
    // A host that is neither pod nor node: this machine, which runs the control plane.
    let gateway = on_node("node1", &["ip", "-j", "route", "show", "default"]);
    let gateway: serde_json::Value = serde_json::from_str(&gateway).unwrap();
    let external: IpAddr = gateway[0]["gateway"].as_str().unwrap().parse().unwrap();
    let listener = TcpListener::bind((external, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connected = AtomicBool::new(false);
    let peer = std::thread::scope(|scope| {
        // The server does not answer; the pod retries until its connection is seen.
        scope.spawn(|| {
            (0..20).any(|_| {
                request(&namespace, "a", external, port, "");
                connected.load(Ordering::SeqCst)
            })
        });
        listener.set_nonblocking(true).unwrap();
        let accepted = eventually("the pod connects", || listener.accept().ok(), Option::is_some);
        connected.store(true, Ordering::SeqCst);
        accepted.unwrap().1.ip()
    });
    assert!(node_addresses("node1").contains(&peer), "{peer}");
    // Knit's routes are not in the main table.
    let main = on_node("node1", &["ip", "route", "show", "table", "main"]);
    assert!(!main.contains(" proto 75 "), "{main}");
    assert!(
        on_node("node1", &["ip", "route", "show", "table", "7500"]).contains(" via "),
        "routes to other nodes"
    );
}

#[test]
fn objects_add_interfaces_to_pods_on_the_cluster_network_and_leave_eth0_alone() {
    let namespace = Namespace::new("further");
    namespace.apply(&pod("a", "node1", 8080, false));
    namespace.apply(&pod("b", "node2", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    namespace.apply(
        "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: net}
spec:
  selector: {matchLabels: {net: 'yes'}}
  interfaceName: net0
  master: prbr0
  cidr: 192.168.102.0/24
",
    );
    let has = |link: &str| {
        let path = format!("/sys/class/net/{link}/ifindex");
        run(&["-n", &namespace.name, "exec", "a", "--", "cat", &path]).status.success()
    };
    eventually("the second interface", || has("net0"), |present| *present);
    let b = addresses(&namespace, "b");
    let works = |theirs: IpAddr| {
        let answer = || request(&namespace, "a", theirs, 8080, "hostname");
        eventually(&format!("eth0 still works: {theirs}"), answer, Option::is_some);
    };
    b.iter().copied().for_each(works);
    namespace.kubectl(&["delete", "veth", "net", "--wait=false"]);
    eventually("it is removed", || has("net0"), |present| !present);
    std::thread::sleep(Duration::from_millis(200));
    works(b[0]);
    assert!(has("eth0"));
}

#[test]
fn a_bandwidth_annotation_limits_a_running_pod_until_it_is_removed() {
    let namespace = Namespace::new("bandwidth");
    namespace.apply(&pod("a", "node1", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let peer_index = || namespace.kubectl(&["exec", "a", "--", "cat", "/sys/class/net/eth0/iflink"]);
    let peer_index: u64 = peer_index().trim().parse().unwrap();
    // Ingress traffic of the pod is egress of its host end.
    let qdiscs = || {
        let links = on_node("node1", &["ip", "-j", "link", "show"]);
        let links: serde_json::Value = serde_json::from_str(&links).unwrap();
        let of_pod = |link: &&serde_json::Value| link["ifindex"] == peer_index;
        let link = links.as_array().unwrap().iter().find(of_pod).unwrap();
        on_node("node1", &["tc", "qdisc", "show", "dev", link["ifname"].as_str().unwrap()])
    };
    let annotate = |annotation: &str| namespace.kubectl(&["annotate", "--overwrite", "pod", "a", annotation]);
    assert!(!qdiscs().contains("tbf"), "{}", qdiscs());
    for (annotation, rate) in [("7M", "rate 7Mbit"), ("9M", "rate 9Mbit")] {
        annotate(&format!("kubernetes.io/ingress-bandwidth={annotation}"));
        eventually("the limit is there", qdiscs, |shown| shown.contains(rate));
    }
    annotate("kubernetes.io/ingress-bandwidth-");
    eventually("the limit is removed", qdiscs, |shown| !shown.contains("tbf"));
}

/// Whether all of these addresses are elements of a table of node1 or none is; nothing if only some are.
fn are_elements(table: &[&str], addresses: &[IpAddr]) -> Option<bool> {
    let listed = on_node("node1", &[&["nft", "list", "table"], table].concat());
    let elements: BTreeSet<&str> = listed.split([' ', ',', '\n', '\t']).collect();
    let found = addresses.iter().filter(|address| elements.contains(address.to_string().as_str())).count();
    (found == 0 || found == addresses.len()).then_some(found > 0)
}

#[test]
fn labels_of_a_namespace_apply_to_its_running_pods() {
    let namespace = Namespace::new("labels");
    namespace.apply(&pod("a", "node1", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let own = addresses(&namespace, "a");
    let wait_for = |what: &str, anti_spoofing: bool, no_masquerade: bool| {
        let tables = || (are_elements(&["bridge", "knit"], &own), are_elements(&["inet", "knit"], &own));
        eventually(what, tables, |found| *found == (Some(anti_spoofing), Some(no_masquerade)));
    };
    let warning = format!("pods of namespace {} may spoof source addresses", namespace.name);
    let path = "jsonpath={.status.objects[*].warnings}";
    let warnings = || kubectl(&["get", "nodenetwork", "node1", "-o", path]);
    let label = |labels: &[&str]| {
        kubectl(&[&["label", "namespace", &namespace.name], labels].concat());
    };
    wait_for("anti-spoofing and masquerade are on", true, false);
    label(&["knit.opdev.io/anti-spoofing=off", "knit.opdev.io/masquerade=off"]);
    wait_for("both are off", false, true);
    eventually("the node warns", warnings, |warnings| warnings.contains(&warning));
    label(&["knit.opdev.io/anti-spoofing-", "knit.opdev.io/masquerade-"]);
    wait_for("both are on again", true, false);
    eventually("the node does not warn", warnings, |warnings| !warnings.contains(&warning));
}

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

#[test]
fn no_request_fails_while_every_agent_is_rolled_and_then_killed() {
    let namespace = Namespace::new("restarts");
    namespace.apply(
        &[pod("a", "node1", 8080, false), pod("b", "node1", 8080, false), pod("c", "node2", 8080, false)]
            .concat(),
    );
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    // To the same node and to another one, in both families.
    let urls: Vec<String> = ["b", "c"]
        .iter()
        .flat_map(|pod| addresses(&namespace, pod))
        .map(|address| url(address, 8080, "hostname"))
        .collect();
    let output = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            let args = ["-n", &namespace.name, "exec", "a", "--", "sh", "-c", CLIENT, "client"];
            let output = run(&[&args[..], &urls].concat());
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        let operator = ["-n", "pod-network-operator"];
        let agents = |args: &[&str]| kubectl(&[&operator[..], args].concat());
        // First a rolling restart of the same image, then a crash.
        agents(&["rollout", "restart", "daemonset/knit-agent"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        agents(&["delete", "pod", "-l", "app=knit-agent", "--force", "--grace-period=0"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        // The new agents attach pods.
        namespace.apply(&pod("late", "node1", 8080, false));
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/late", "--timeout=120s"]);
        namespace.kubectl(&["exec", "a", "--", "touch", "/tmp/stop"]);
        client.join().unwrap()
    });
    let sent: u32 = output.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
    // At its limit the client ended before the last agent was killed.
    assert!(output.ends_with(", 0 failed") && (50..20_000).contains(&sent), "{output:?}");
}
