//! Knit as the cluster's network on two nodes: pods, nodes and the outside, as they see each other's addresses.
//!
//! Run by `cargo xtask test cluster`, together with what the reference network has to do; by hand against a cluster that is up
//! (`cargo xtask cluster up --network knit`):
//! `KNIT_TEST_KUBECTL=kubectl KUBECONFIG=... cargo test -p xtask --test cluster_primary`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod web;
}

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::beside::{eventually, on_node};
use support::kubectl::{Namespace, kubectl, run};
use support::web::{addresses, ask, pod, url};

fn node_addresses(node: &str) -> Vec<IpAddr> {
    let path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    let found = kubectl(&["get", "node", node, "-o", path]);
    found.split_whitespace().map(|address| address.parse().unwrap()).collect()
}

/// As whom a pod is seen there.
fn seen_as(namespace: &Namespace, pod: &str, to: IpAddr, port: u16) -> IpAddr {
    let answer = eventually("an answer", || ask(namespace, pod, to, port, "clientip"), Option::is_some);
    let answer = answer.unwrap();
    let (address, _) = answer.rsplit_once(':').expect("an address and a port");
    address.trim_matches(['[', ']']).parse().unwrap()
}

#[test]
fn pods_and_nodes_see_a_pods_own_address_and_the_outside_sees_its_nodes() {
    let namespace = Namespace::new("primary");
    let pods =
        [pod("a", "node1", 8080, false), pod("b", "node2", 8080, false), pod("host", "node2", 8099, true)];
    namespace.apply(&pods.concat());
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let (a, b) = (addresses(&namespace, "a"), addresses(&namespace, "b"));
    for (mine, theirs) in a.iter().zip(&b) {
        assert_eq!(seen_as(&namespace, "a", *theirs, 8080), *mine, "by a pod of another node");
    }
    for (mine, theirs) in a.iter().zip(node_addresses("node2")) {
        assert_eq!(seen_as(&namespace, "a", theirs, 8099), *mine, "by another node");
    }
    // What is neither pod nor node: this machine, which the control plane runs on.
    let gateway = on_node("node1", &["ip", "-j", "route", "show", "default"]);
    let gateway: serde_json::Value = serde_json::from_str(&gateway).unwrap();
    let outside: IpAddr = gateway[0]["gateway"].as_str().unwrap().parse().unwrap();
    let listener = TcpListener::bind((outside, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let came = AtomicBool::new(false);
    let peer = std::thread::scope(|scope| {
        // Nobody answers it; it asks until it was seen.
        scope.spawn(|| {
            (0..20).any(|_| {
                ask(&namespace, "a", outside, port, "");
                came.load(Ordering::SeqCst)
            })
        });
        listener.set_nonblocking(true).unwrap();
        let accepted = eventually("the pod comes", || listener.accept().ok(), Option::is_some);
        came.store(true, Ordering::SeqCst);
        accepted.unwrap().1.ip()
    });
    assert!(node_addresses("node1").contains(&peer), "{peer}");
    // All of it without a word in the nodes' own table.
    let main = on_node("node1", &["ip", "route", "show", "table", "main"]);
    assert!(!main.contains(" proto 75 "), "{main}");
    assert!(
        on_node("node1", &["ip", "route", "show", "table", "7500"]).contains(" via "),
        "ways to other nodes"
    );
}

#[test]
fn objects_work_on_pods_whose_first_interface_is_knits_and_leave_it_alone() {
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
  cidr: 192.168.131.0/24
",
    );
    let has = |link: &str| {
        let path = format!("/sys/class/net/{link}/ifindex");
        run(&["-n", &namespace.name, "exec", "a", "--", "cat", &path]).status.success()
    };
    eventually("the second interface", || has("net0"), |there| *there);
    let b = addresses(&namespace, "b");
    let works = |theirs: IpAddr| {
        let asked = || ask(&namespace, "a", theirs, 8080, "hostname");
        eventually(&format!("the first one works on: {theirs}"), asked, Option::is_some);
    };
    b.iter().copied().for_each(works);
    namespace.kubectl(&["delete", "veth", "net", "--wait=false"]);
    eventually("it goes again", || has("net0"), |there| !there);
    std::thread::sleep(Duration::from_millis(200));
    works(b[0]);
    assert!(has("eth0"));
}

#[test]
fn an_annotation_limits_a_running_pod_at_once_and_goes_with_it() {
    let namespace = Namespace::new("bandwidth");
    namespace.apply(&pod("a", "node1", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let number = || namespace.kubectl(&["exec", "a", "--", "cat", "/sys/class/net/eth0/iflink"]);
    let number: u64 = number().trim().parse().unwrap();
    // What goes into the pod leaves the host's end of its pair.
    let limited = || {
        let links = on_node("node1", &["ip", "-j", "link", "show"]);
        let links: serde_json::Value = serde_json::from_str(&links).unwrap();
        let of_pod = |link: &&serde_json::Value| link["ifindex"] == number;
        let link = links.as_array().unwrap().iter().find(of_pod).unwrap();
        on_node("node1", &["tc", "qdisc", "show", "dev", link["ifname"].as_str().unwrap()])
    };
    let annotate = |word: &str| namespace.kubectl(&["annotate", "--overwrite", "pod", "a", word]);
    assert!(!limited().contains("tbf"), "{}", limited());
    for (annotation, rate) in [("7M", "rate 7Mbit"), ("9M", "rate 9Mbit")] {
        annotate(&format!("kubernetes.io/ingress-bandwidth={annotation}"));
        eventually("the limit is there", limited, |shown| shown.contains(rate));
    }
    annotate("kubernetes.io/ingress-bandwidth-");
    eventually("the limit goes", limited, |shown| !shown.contains("tbf"));
}

/// Whether all of these addresses are elements of a table of node1, or none of them is.
fn are_in(table: &[&str], addresses: &[IpAddr]) -> Option<bool> {
    let listed = on_node("node1", &[&["nft", "list", "table"], table].concat());
    let words: BTreeSet<&str> = listed.split([' ', ',', '\n', '\t']).collect();
    let found = addresses.iter().filter(|address| words.contains(address.to_string().as_str())).count();
    (found == 0 || found == addresses.len()).then_some(found > 0)
}

#[test]
fn labels_of_a_namespace_hold_for_its_running_pods() {
    let namespace = Namespace::new("labels");
    namespace.apply(&pod("a", "node1", 8080, false));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    let own = addresses(&namespace, "a");
    let holds = |what: &str, guarded: bool, kept: bool| {
        let tables = || (are_in(&["bridge", "knit"], &own), are_in(&["inet", "knit"], &own));
        eventually(what, tables, |found| *found == (Some(guarded), Some(kept)));
    };
    let warning = format!("pods of namespace {} may spoof source addresses", namespace.name);
    let path = "jsonpath={.status.objects[*].warnings}";
    let told = || kubectl(&["get", "nodenetwork", "node1", "-o", path]);
    let label = |labels: &[&str]| {
        kubectl(&[&["label", "namespace", &namespace.name], labels].concat());
    };
    holds("a pod is guarded, and is seen as its node", true, false);
    label(&["knit.opdev.io/anti-spoofing=off", "knit.opdev.io/masquerade=off"]);
    holds("neither any more", false, true);
    eventually("the node says so", told, |told| told.contains(&warning));
    label(&["knit.opdev.io/anti-spoofing-", "knit.opdev.io/masquerade-"]);
    holds("and both again", true, false);
    eventually("the node says nothing", told, |told| !told.contains(&warning));
}

/// Asks again and again from inside a pod, and says how many questions there were and how many had no answer.
const CLIENT: &str = r#"
asked=0 failed=0
while [ ! -e /tmp/enough ] && [ $asked -lt 20000 ]; do
  for url in $@; do
    asked=$((asked+1))
    curl -s -g -o /dev/null --max-time 2 "$url" || failed=$((failed+1))
  done
done
echo "$asked asked, $failed failed"
"#;

#[test]
fn no_request_fails_while_every_agent_restarts_is_killed_and_is_upgraded() {
    let namespace = Namespace::new("restarts");
    namespace.apply(
        &[pod("a", "node1", 8080, false), pod("b", "node1", 8080, false), pod("c", "node2", 8080, false)]
            .concat(),
    );
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"]);
    // On the same node, on another one, in both families.
    let urls: Vec<String> = ["b", "c"]
        .iter()
        .flat_map(|pod| addresses(&namespace, pod))
        .map(|address| url(address, 8080, "hostname"))
        .collect();
    let said = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
            let words = ["-n", &namespace.name, "exec", "a", "--", "sh", "-c", CLIENT, "client"];
            let output = run(&[&words[..], &urls].concat());
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        let operator = ["-n", "pod-network-operator"];
        let agents = |words: &[&str]| kubectl(&[&operator[..], words].concat());
        // As an upgrade does it, then as a crash.
        agents(&["rollout", "restart", "daemonset/knit-agent"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        agents(&["delete", "pod", "-l", "app=knit-agent", "--force", "--grace-period=0"]);
        agents(&["rollout", "status", "daemonset/knit-agent", "--timeout=180s"]);
        // Pods come and go by the new ones.
        namespace.apply(&pod("late", "node1", 8080, false));
        namespace.kubectl(&["wait", "--for=condition=Ready", "pod/late", "--timeout=120s"]);
        namespace.kubectl(&["exec", "a", "--", "touch", "/tmp/enough"]);
        client.join().unwrap()
    });
    let asked: u32 = said.split(' ').next().unwrap_or_default().parse().unwrap_or_default();
    assert!(said.ends_with(", 0 failed") && asked > 50, "{said:?}");
}
