//! MAC and IP addresses that an object chooses for an interface without a host end, with real packets. Needs root.

use std::collections::BTreeMap;
use std::time::Duration;

use knit_agent::Standalone;
use knit_engine::{Event, ObjectKey};
use knit_model::Mac;
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use crate::support::test_host::{objects, problems, reopen};

const NETWORK: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {net: shared}}, interfaceName: net1, master: br1, cidr: 10.1.0.0/24}}";
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pods on one bridge.
struct Pods {
    host: Namespace,
    agent: Standalone,
    _folder: TempDir,
    testbed: Testbed,
}

impl Pods {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, folder) = (testbed.host(), TempDir::new().unwrap());
        let agent = host.run_as_agent(|| reopen(folder.path()));
        let mut pods = Self { host, agent, _folder: folder, testbed };
        pods.apply(NETWORK);
        pods
    }

    fn add(&mut self, name: &str) -> Pod {
        let pod = self.testbed.pod(name);
        let labels = [("net", "shared"), ("pod", name)];
        let labels: BTreeMap<String, String> =
            labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (agent, pid) = (&mut self.agent, pod.pid());
        self.host.run_as_agent(|| agent.add_sandbox("default", name, labels, pid).unwrap());
        assert_eq!(problems(&self.agent), "");
        pod
    }

    fn apply(&mut self, yaml: &str) {
        let agent = &mut self.agent;
        self.host.run_as_agent(|| agent.apply(objects(yaml), "test").unwrap());
        assert_eq!(problems(&self.agent), "");
    }

    /// Gives pod `evil` a macvlan on its interface, and returns the warnings.
    fn add_macvlan(&mut self, name: &str, mac: Option<Mac>, address: &str) -> Vec<String> {
        let mac = mac.map(|mac| format!("hardwareAddr: '{mac}', ")).unwrap_or_default();
        let yaml = format!(
            "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {{name: {name}}}, spec: {{
            selector: {{matchLabels: {{pod: evil}}}}, interfaceName: {name}, parent: net1, {mac}
            addresses: ['{address}/24']}}}}"
        );
        self.apply(&yaml);
        self.warnings(name)
    }

    fn warnings(&self, macvlan: &str) -> Vec<String> {
        self.agent.state().report(&key(macvlan)).unwrap().warnings
    }
}

/// Whether packets from an interface arrive at a pod. The neighbour is static: replies go to the owner of the address.
fn arrives(from: &Pod, interface: &str, to: &Pod, address: &str) -> bool {
    let shown = to.namespace().ip_json(&["link", "show", "net1"]);
    let mac = shown[0]["address"].as_str().unwrap().to_owned();
    from.ip(&["neigh", "replace", address, "lladdr", &mac, "dev", interface]);
    let before = echo_requests(to);
    drop(from.output("ping", &["-n", "-c", "2", "-i", "0.2", "-w", "1", "-I", interface, address]));
    echo_requests(to) > before
}

/// How many echo requests a pod has received.
fn echo_requests(pod: &Pod) -> u64 {
    let text = pod.output("cat", &["/proc/net/snmp"]).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Icmp:")).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.position(|name| name == "InEchos").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_macvlan_cannot_send_with_the_addresses_of_another_pod() {
    let mut pods = Pods::new("chosen");
    let victim = pods.add("victim");
    let evil = pods.add("evil");
    let listener = pods.add("listener");
    let mac = Mac::derived("default/victim/net1");
    let shown = victim.namespace().ip_json(&["link", "show", "net1"]);
    assert_eq!(shown[0]["address"], mac.to_string());
    for (name, mac, address, dropped) in [
        ("both0", Some(mac), "10.1.0.2", 2),
        ("mac0", Some(mac), "10.1.0.90", 1),
        ("ip0", None, "10.1.0.2", 1),
        ("gw0", None, "10.1.0.1", 1),
        ("own0", None, "10.1.0.91", 0),
    ] {
        let warnings = pods.add_macvlan(name, mac, address);
        assert_eq!(warnings.len(), dropped, "{name}: {warnings:?}");
        let arrived = arrives(&evil, name, &listener, "10.1.0.4");
        assert_eq!(arrived, dropped == 0, "{name} {mac:?} {address}: {warnings:?}");
        // Another macvlan with this MAC address on the same interface could not exist.
        if dropped > 0 {
            pods.host.run_as_agent(|| pods.agent.delete(&[key(name)], "test").unwrap());
        }
    }
    assert!(arrives(&victim, "net1", &listener, "10.1.0.4"), "the owner is not affected");
    // The packets would arrive without anti-spoofing.
    pods.add_macvlan("both0", Some(mac), "10.1.0.2");
    pods.host.output("nft", &["delete", "table", "bridge", "knit"]).unwrap();
    eventually("packets arrive without the rules", TIMEOUT, || {
        arrives(&evil, "both0", &listener, "10.1.0.4")
    });
    pods.host.run_as_agent(|| pods.agent.node().handle(Event::PacketFilterChanged).unwrap());
    assert!(!arrives(&evil, "both0", &listener, "10.1.0.4"), "the rules are restored");
}

#[test]
fn a_pod_that_starts_later_gets_its_own_addresses_back() {
    let mut pods = Pods::new("chosenearly");
    let evil = pods.add("evil");
    let listener = pods.add("listener");
    let mac = Mac::derived("default/victim/net1");
    // The next free address of the network.
    assert_eq!(pods.add_macvlan("early0", Some(mac), "10.1.0.4"), [""; 0]);
    assert!(arrives(&evil, "early0", &listener, "10.1.0.3"), "these addresses are unused");
    let victim = pods.add("victim");
    assert!(arrives(&victim, "net1", &listener, "10.1.0.3"));
    assert!(!arrives(&evil, "early0", &listener, "10.1.0.3"));
    assert_eq!(pods.warnings("early0").len(), 2);
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: "Macvlan".to_owned(), namespace: "default".to_owned(), name: name.to_owned() }
}
