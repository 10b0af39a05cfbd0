//! Namespace and pool settings (anti-spoofing, masquerade) apply to running pods, with real packets. Needs root.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::namespaces::{NamespaceEvent, NamespaceOptions, Namespaces};
use knit_engine::{AttachRequest, CallId, CallResult, Event, StoredObject};
use knit_model::intent::{AddressPoolIntent, Intent, IntentSpec, NodeRoutesIntent};
use knit_model::provenance::{Dialect, ObjectRef, Provenance};
use knit_testbed::{Namespace, Pod, Testbed, eventually};
use tempfile::TempDir;

use crate::support::test_host::reopen;

const RANGES: [&str; 2] = ["10.75.0.0/24", "fd75:6b6e:6974::/64"];
/// Pod addresses without the last number.
const POD_PREFIX: [&str; 2] = ["10.75.0.", "fd75:6b6e:6974::"];
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const EXTERNAL: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
const TIMEOUT: Duration = Duration::from_secs(10);

/// A node with a pod in each of two namespaces, and an external host with routes to pods.
struct TwoNamespaces {
    external: Namespace,
    host: Namespace,
    lab: Pod,
    shop: Pod,
    agent: Option<Standalone>,
    folder: TempDir,
    _testbed: Testbed,
}

impl TwoNamespaces {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, external) = (testbed.host(), testbed.namespace("external"));
        testbed.connect(&host, "eth0", &external, "eth0");
        for (at, length) in [24, 64].into_iter().enumerate() {
            host.address("eth0", &format!("{}/{length}", NODE[at]));
            external.address("eth0", &format!("{}/{length}", EXTERNAL[at]));
            external.ip(&["route", "add", RANGES[at], "via", NODE[at], "dev", "eth0"]);
        }
        host.set_sysctl("net.ipv4.ip_forward", "1");
        host.set_sysctl("net.ipv6.conf.all.forwarding", "1");
        let (lab, shop) = (testbed.pod("lab"), testbed.pod("shop"));
        let folder = TempDir::new().unwrap();
        let agent = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        Self { external, host, lab, shop, agent: Some(agent), folder, _testbed: testbed }
    }

    fn handle(&mut self, event: Event) -> Vec<(CallId, CallResult)> {
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.node().handle(event).unwrap().answers)
    }

    fn configure(&mut self, node_routes: NodeRoutesIntent) {
        let ranges = RANGES.map(|text| text.parse().unwrap());
        let cluster =
            ClusterNetworkObject::new(&ranges, &"knit0".parse().unwrap(), Some(1500), Some(&node_routes));
        self.handle(cluster.applied());
    }

    fn attach_both(&mut self) {
        for (namespace, pid) in [("lab", self.lab.pid()), ("shop", self.shop.pid())] {
            let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
            let netns = format!("/proc/{pid}/ns/net");
            let (id, namespace) = (namespace.to_owned(), namespace.to_owned());
            let answers = self.handle(Event::AttachRequested(Box::new(AttachRequest {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: SandboxRequest { id, netns, namespace, ..SandboxRequest::default() },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
                metadata: AttachmentMetadata::default(),
                fail_if_present: false,
                ticket: 1,
                started_at: 0,
            })));
            assert!(matches!(&answers[..], [(_, CallResult::Attached { .. })]), "{answers:?}");
        }
    }

    /// Gives a namespace these options, and all others none.
    fn set_terms(&mut self, namespace: &str, terms: NamespaceOptions) {
        let all = Namespaces::from([(namespace.to_owned(), terms)]);
        self.handle(Event::Namespaces(NamespaceEvent::Listed(all)));
    }

    /// Restarts the agent without sending it the namespace settings again.
    fn restart(&mut self) {
        self.agent = None;
        let folder = self.folder.path();
        self.agent = Some(self.host.run_as_agent(|| reopen(folder)));
        self.handle(Event::Restarted);
        self.handle(Event::PacketFilterChanged);
    }

    /// The source addresses of a pod as the external host sees them, one per family.
    fn source_addresses(&self, pod: &Pod) -> Vec<String> {
        EXTERNAL.iter().map(|to| source_address(&self.external, pod, to).to_string()).collect()
    }
}

/// The source address that a listener sees. A new neighbour may take a moment to respond.
fn source_address(external: &Namespace, pod: &Pod, to: &str) -> IpAddr {
    let listener = external.run(|| UdpSocket::bind((to, 0)).unwrap());
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let at = listener.local_addr().unwrap();
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut from = None;
    eventually("a packet of the pod arrives", TIMEOUT, || {
        let sent: io::Result<usize> = pod.namespace().run(|| UdpSocket::bind(any)?.send_to(b"hello", at));
        from = sent.and_then(|_| listener.recv_from(&mut [0; 16])).ok();
        from.is_some()
    });
    from.unwrap().1.ip()
}

fn pod_addresses(number: u8) -> [String; 2] {
    POD_PREFIX.map(|prefix| format!("{prefix}{number}"))
}

/// Whether a pod gets a reply with a forged source address.
fn gets_reply(pod: &Pod, forged: &str, neighbour: &str) -> bool {
    pod.output("ping", &["-n", "-c", "1", "-w", "1", "-I", forged, neighbour]).is_ok()
}

#[test]
fn spoofing_exemption_of_a_namespace_applies_and_ends_at_once() {
    let mut node = TwoNamespaces::new("ns-guard");
    node.configure(NodeRoutesIntent { anti_spoofing: true, ..NodeRoutesIntent::default() });
    node.attach_both();
    let (lab, shop) = (node.lab.clone(), node.shop.clone());
    for (pod, number) in [(&lab, 77), (&shop, 78)] {
        let [four, six] = pod_addresses(number);
        pod.namespace().ip(&["addr", "add", &format!("{four}/32"), "dev", "eth0"]);
        pod.namespace().ip(&["addr", "add", &format!("{six}/128"), "dev", "eth0", "nodad"]);
    }
    let forged = |from: &Pod, number: u8, to: u8| {
        let (forged, to) = (pod_addresses(number), pod_addresses(to));
        [0, 1].map(|family| gets_reply(from, &forged[family], &to[family]))
    };
    let both = |what: &str, from: &Pod, number: u8, to: u8| {
        eventually(what, TIMEOUT, || forged(from, number, to) == [true; 2]);
    };
    assert_eq!(forged(&lab, 77, 3), [false; 2], "no exemption");
    node.set_terms("lab", NamespaceOptions { allow_spoofing: true, masquerade: None });
    both("an exempt pod can spoof", &lab, 77, 3);
    assert_eq!(forged(&shop, 78, 2), [false; 2], "the other namespace is not exempt");
    node.restart();
    both("also after a restart", &lab, 77, 3);
    node.set_terms("other", NamespaceOptions { allow_spoofing: true, masquerade: None });
    assert_eq!(forged(&lab, 77, 3), [false; 2], "the exemption is revoked");
    both("its own address works", &lab, 2, 3);
}

fn pool(masquerade: Option<bool>, generation: i64) -> Event {
    let object = ObjectRef {
        kind: "PodAddressPool".to_owned(),
        namespace: String::new(),
        name: "pool".to_owned(),
        uid: "1".to_owned(),
        generation,
    };
    let range = "10.75.0.0/16".parse().unwrap();
    let spec = IntentSpec::AddressPool(AddressPoolIntent {
        name: "pool".to_owned(),
        range,
        block: 24,
        namespaces: Vec::new(),
        masquerade,
    });
    let origin = Provenance {
        dialect: Dialect::Kubernetes,
        object: Some(object.clone()),
        field: "spec".to_owned(),
        call: None,
    };
    Event::ObjectApplied(StoredObject {
        object,
        intents: vec![Intent { origin, spec }],
        warnings: Vec::new(),
        manifest: serde_json::Value::Null,
        since: 0,
        file: None,
    })
}

#[test]
fn masquerade_follows_namespace_then_pool_then_agent() {
    let mut node = TwoNamespaces::new("ns-leave");
    node.configure(NodeRoutesIntent { masquerade: true, ..NodeRoutesIntent::default() });
    node.attach_both();
    let (lab, shop) = (node.lab.clone(), node.shop.clone());
    assert_eq!(
        (node.source_addresses(&lab), node.source_addresses(&shop)),
        (NODE.map(String::from).into(), NODE.map(String::from).into())
    );
    node.set_terms("lab", NamespaceOptions { allow_spoofing: false, masquerade: Some(false) });
    assert_eq!(node.source_addresses(&lab), pod_addresses(2));
    assert_eq!(node.source_addresses(&shop), NODE, "the other namespace is unaffected");
    node.restart();
    assert_eq!(
        (node.source_addresses(&lab), node.source_addresses(&shop)),
        (pod_addresses(2).into(), NODE.map(String::from).into())
    );
    // The pool has an IPv4 range only.
    node.handle(pool(Some(false), 1));
    assert_eq!(node.source_addresses(&shop), [pod_addresses(3)[0].as_str(), NODE[1]]);
    node.set_terms("shop", NamespaceOptions { allow_spoofing: false, masquerade: Some(true) });
    assert_eq!(node.source_addresses(&shop), NODE, "the namespace overrides the pool");
    assert_eq!(node.source_addresses(&lab), [pod_addresses(2)[0].as_str(), NODE[1]]);
    // Pods always see each other's own addresses.
    let (own, peer) = (pod_addresses(3), pod_addresses(2));
    for family in [0, 1] {
        assert_eq!(source_address(lab.namespace(), &shop, &peer[family]).to_string(), own[family]);
    }
    node.configure(NodeRoutesIntent { masquerade: false, ..NodeRoutesIntent::default() });
    assert_eq!(
        (node.source_addresses(&shop), node.source_addresses(&lab)),
        (NODE.map(String::from).into(), pod_addresses(2).into())
    );
    node.handle(pool(Some(true), 2));
    assert_eq!(node.source_addresses(&lab), [NODE[0], pod_addresses(2)[1].as_str()]);
    node.handle(pool(None, 3));
    node.handle(Event::Namespaces(NamespaceEvent::Listed(Namespaces::new())));
    assert_eq!(
        (node.source_addresses(&shop), node.source_addresses(&lab)),
        (pod_addresses(3).into(), pod_addresses(2).into())
    );
    let table = node.host.output("nft", &["list", "table", "inet", "knit"]);
    assert!(table.is_err(), "the table is deleted: {table:?}");
}
