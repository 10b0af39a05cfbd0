//! NetworkPolicies on pods of one node, with real packets. Needs root.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use knit_agent::Standalone;
use knit_agent::daemon::ClusterNetworkObject;
use knit_engine::call::{AttachmentMetadata, InterfaceRequest, SandboxRequest};
use knit_engine::policies::PolicyEvent;
use knit_engine::policies::drop_logs::DropLogEvent;
use knit_engine::{AttachRequest, CallId, CallResult, Event};
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use knit_policy::{
    APP_LABEL, DropLogTarget, Labels, PodKey, PolicyId, PolicyKind, PolicyNamespace, PolicyPod,
    cluster_network_policy, network_policy,
};
use knit_testbed::{EchoServer, Namespace, Pod, Testbed, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::test_host::reopen;

const RANGES: [&str; 2] = ["10.75.0.0/24", "fd75:6b6e:6974::/64"];
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const EXTERNAL: [&str; 2] = ["192.0.2.9", "2001:db8::9"];
/// The pods, in the order of their addresses.
const PODS: [&str; 3] = ["web", "db", "other"];
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a packet that is dropped is waited for.
const DENIED: Duration = Duration::from_millis(400);

/// A node with three pods, each with TCP and UDP echo servers on ports 80 and 81, and an external host.
struct PolicyNode {
    isolated: bool,
    external: Namespace,
    host: Namespace,
    pods: BTreeMap<&'static str, Pod>,
    labels: BTreeMap<&'static str, Labels>,
    agent: Option<Standalone>,
    folder: TempDir,
    _servers: Vec<EchoServer>,
    _testbed: Testbed,
}

fn address(pod: &str, family: usize) -> IpAddr {
    let number = PODS.iter().position(|name| *name == pod).unwrap() as u8 + 2;
    match family {
        0 => IpAddr::from([10, 75, 0, number]),
        _ => IpAddr::from([0xfd75, 0x6b6e, 0x6974, 0, 0, 0, 0, u16::from(number)]),
    }
}

/// Pod `other` is in the namespace `other`, the others in `shop`.
fn namespace_of(pod: &str) -> &'static str {
    if pod == "other" { "other" } else { "shop" }
}

fn both(pod: &str) -> [IpAddr; 2] {
    [0, 1].map(|family| address(pod, family))
}

impl PolicyNode {
    fn new(test: &str) -> Self {
        Self::with_masquerade(test, false)
    }

    fn with_masquerade(test: &str, masquerade: bool) -> Self {
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
        let pods = PODS.map(|name| (name, testbed.pod(name))).into();
        let folder = TempDir::new().unwrap();
        let agent = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        let labels = PODS.map(|name| (name, Labels::from([("app".to_owned(), name.to_owned())]))).into();
        let mut node = Self {
            isolated: false,
            external,
            host,
            pods,
            labels,
            agent: Some(agent),
            folder,
            _servers: Vec::new(),
            _testbed: testbed,
        };
        let ranges = RANGES.map(|text| text.parse().unwrap());
        let node_routes = NodeRoutesIntent {
            anti_spoofing: true,
            network_policy: true,
            masquerade,
            ..NodeRoutesIntent::default()
        };
        let bridge = "knit0".parse().unwrap();
        let cluster = ClusterNetworkObject::new(&ranges, &bridge, Some(1500), Some(&node_routes));
        node.handle(cluster.applied());
        // The bridge's own setting counts.
        node.host.set_sysctl("net.bridge.bridge-nf-call-iptables", "0");
        node.host.set_sysctl("net.bridge.bridge-nf-call-ip6tables", "0");
        node
    }

    /// Lists policies, namespaces and pods for the agent.
    fn list(&mut self, policies: &[(&str, Value)]) {
        let policies = policies.iter().map(|(name, spec)| policy(name, spec)).collect();
        let pods = PODS.map(|name| self.policy_pod(name)).into();
        let namespace = |isolated: bool| PolicyNamespace { isolated, ..PolicyNamespace::default() };
        let namespaces = [("shop", namespace(self.isolated)), ("other", namespace(false))];
        let namespaces = namespaces.map(|(name, namespace)| (name.to_owned(), namespace)).into();
        for event in [
            PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, policies),
            PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new()),
            PolicyEvent::AppPodsListed(false),
            PolicyEvent::NamespacesListed(namespaces),
            PolicyEvent::PodsListed(pods),
        ] {
            self.handle(Event::Policies(event));
        }
    }

    fn policy_pod(&self, name: &str) -> (PodKey, PolicyPod) {
        let key = PodKey { namespace: namespace_of(name).to_owned(), name: name.to_owned() };
        let labels = self.labels[name].clone();
        (
            key,
            PolicyPod { uid: name.to_owned(), labels, addresses: both(name).into(), ..PolicyPod::default() },
        )
    }

    fn apply(&mut self, name: &str, spec: &Value) {
        self.handle(Event::Policies(PolicyEvent::PolicyApplied(Box::new(policy(name, spec)))));
    }

    fn apply_cluster(&mut self, name: &str, spec: &Value) {
        let (policy, warnings) = cluster_network_policy::translate(PolicyId::of_cluster(name), spec);
        assert_eq!(warnings, [""; 0]);
        self.handle(Event::Policies(PolicyEvent::PolicyApplied(Box::new(policy.unwrap()))));
    }

    fn isolate(&mut self, isolated: bool) {
        self.isolated = isolated;
        let namespace = Some(PolicyNamespace { isolated, ..PolicyNamespace::default() });
        self.handle(Event::Policies(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace }));
    }

    /// Translates connections to the address of a Service as kube-proxy does: on the client's node, before routing.
    fn add_service(&self, rules: &[&str]) {
        let chain = "add chain ip service translate { type nat hook prerouting priority -100; }";
        for line in ["add table ip service", chain].iter().chain(rules) {
            self.host.output("nft", &[line]).unwrap();
        }
    }

    fn delete(&mut self, name: &str) {
        let id = PolicyId::namespaced("shop", name);
        self.handle(Event::Policies(PolicyEvent::PolicyDeleted(id)));
    }

    fn set_label(&mut self, pod: &'static str, app: &str) {
        self.labels.insert(pod, Labels::from([("app".to_owned(), app.to_owned())]));
        let (key, pod) = self.policy_pod(pod);
        self.handle(Event::Policies(PolicyEvent::PodChanged { key, pod: Some(pod) }));
    }

    fn handle(&mut self, event: Event) -> Vec<(CallId, CallResult)> {
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.node().handle(event).unwrap().answers)
    }

    fn attach_all(&mut self) {
        for name in PODS {
            let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
            let id = name.to_owned();
            let netns = format!("/proc/{}/ns/net", self.pods[name].pid());
            let answers = self.handle(Event::AttachRequested(Box::new(AttachRequest {
                call: CallId(id.clone()),
                dialect: Dialect::Kni,
                sandbox: SandboxRequest {
                    id: id.clone(),
                    netns,
                    namespace: namespace_of(name).to_owned(),
                    pod: id.clone(),
                    uid: id,
                    ..SandboxRequest::default()
                },
                interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
                metadata: AttachmentMetadata::default(),
                fail_if_present: false,
                ticket: 1,
                started_at: 0,
            })));
            assert!(matches!(&answers[..], [(_, CallResult::Attached { .. })]), "{answers:?}");
            for at in both(name) {
                let namespace = self.pods[name].namespace();
                for port in [80, 81] {
                    self._servers.push(namespace.tcp_echo((at, port)));
                    self._servers.push(namespace.udp_echo((at, port)));
                }
            }
        }
    }

    fn namespace(&self, end: &str) -> &Namespace {
        match end {
            "node" => &self.host,
            "external" => &self.external,
            pod => self.pods[pod].namespace(),
        }
    }

    /// Asserts that a pod is reached over TCP, in both families.
    #[track_caller]
    fn assert_reached(&self, from: &str, to: &str, port: u16) {
        for at in both(to) {
            let result = self.namespace(from).tcp_reaches((at, port));
            assert!(result.is_ok(), "{from} does not reach {to}: {result:?}\n{}", self.rules());
        }
    }

    /// Asserts that a pod is not reached over TCP, in both families.
    #[track_caller]
    fn assert_denied(&self, from: &str, to: &str, port: u16) {
        for at in both(to) {
            let at = SocketAddr::from((at, port));
            let result = self.namespace(from).run(|| TcpStream::connect_timeout(&at, DENIED));
            assert!(result.is_err(), "{from} reaches {to} at {at}\n{}", self.rules());
        }
    }

    #[track_caller]
    fn assert_denied_by_udp(&self, from: &str, to: &str, port: u16) {
        for at in both(to) {
            let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let received = self.namespace(from).run(|| {
                let socket = UdpSocket::bind(any)?;
                socket.set_read_timeout(Some(DENIED))?;
                socket.send_to(b"knit", (at, port))?;
                socket.recv(&mut [0; 16])
            });
            assert!(received.is_err(), "{from} reaches {to} at {at}\n{}", self.rules());
        }
    }

    /// Whether a pod answers a ping, both families alike.
    fn pings(&self, from: &str, to: &str) -> bool {
        let [four, six] = both(to).map(|at| {
            self.namespace(from)
                .output("ping", &["-n", "-c", "2", "-i", "0.2", "-w", "1", &at.to_string()])
                .is_ok()
        });
        assert_eq!(four, six, "the families differ\n{}", self.rules());
        four
    }

    /// Whether a pod answers a ping to its link-local address.
    fn pings_link_local(&self, from: &str, to: &str) -> bool {
        let shown = self.namespace(to).ip_json(&["-6", "addr", "show", "dev", "eth0"]);
        let all = shown.as_array().unwrap().iter().flat_map(|link| link["addr_info"].as_array().unwrap());
        let at = all.filter_map(|one| one["local"].as_str()).find(|at| at.starts_with("fe80:")).unwrap();
        self.namespace(from)
            .output("ping", &["-n", "-c", "2", "-i", "0.2", "-w", "1", "-I", "eth0", at])
            .is_ok()
    }

    fn rules(&self) -> String {
        self.host.output("nft", &["list", "table", "inet", "knit"]).unwrap_or_default()
    }

    /// An open connection.
    fn connect(&self, from: &str, to: &str, port: u16) -> TcpStream {
        let at = SocketAddr::from((address(to, 0), port));
        let stream = self.namespace(from).run(|| TcpStream::connect_timeout(&at, TIMEOUT).unwrap());
        stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        stream
    }

    fn restart(&mut self) {
        self.agent = None;
        let folder = self.folder.path();
        self.agent = Some(self.host.run_as_agent(|| reopen(folder)));
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }
}

fn policy(name: &str, spec: &Value) -> knit_policy::Policy {
    let id = PolicyId::namespaced("shop", name);
    let (policy, warning) = network_policy::translate(id, spec);
    assert_eq!(warning, None);
    policy
}

/// Whether the other end of a connection still echoes.
fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream.write_all(b"knit").is_ok() && stream.read_exact(&mut answer).is_ok()
}

fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

/// Pods with the label `app: db` are reached from those with `app: web` on port 80.
fn db_from_web() -> Value {
    let ports = json!([{"port": 80}, {"port": 80, "protocol": "UDP"}]);
    let web = json!({"namespaceSelector": {}, "podSelector": app("web")});
    json!({"podSelector": app("db"), "ingress": [{"from": [web], "ports": ports}]})
}

#[test]
fn only_what_a_policy_allows_reaches_a_pod() {
    let mut node = PolicyNode::new("np-ingress");
    node.list(&[]);
    node.attach_all();
    for from in ["web", "other", "external", "node"] {
        node.assert_reached(from, "db", 81);
    }
    assert!(node.pings_link_local("other", "db"));
    node.apply("db", &db_from_web());
    node.assert_reached("web", "db", 80);
    assert!(!node.pings_link_local("other", "db"), "{}", node.rules());
    for at in both("db") {
        node.namespace("web").udp_reaches((at, 80)).unwrap();
    }
    // Another port, another pod, not a pod, another protocol.
    node.assert_denied("web", "db", 81);
    node.assert_denied_by_udp("web", "db", 81);
    node.assert_denied("other", "db", 80);
    node.assert_denied("external", "db", 80);
    assert!(!node.pings("web", "db"), "a rule about ports is not about ICMP");
    // The node itself always reaches its pods; connections from the pod are not restricted.
    node.assert_reached("node", "db", 81);
    node.assert_reached("db", "other", 81);
    node.assert_reached("web", "other", 81);
    assert!(node.pings("db", "web"));
    node.set_label("other", "web");
    node.assert_reached("other", "db", 80);
    node.set_label("other", "other");
    node.assert_denied("other", "db", 80);
    // No unit owns the elements of peers, but they are no strays.
    let strays = {
        let agent = node.agent.as_mut().unwrap();
        node.host.run_as_agent(|| agent.node().strays().unwrap())
    };
    assert!(strays.is_empty(), "{strays}");
    // Neither a restart nor a lost table opens the pod.
    node.restart();
    node.assert_reached("web", "db", 80);
    node.assert_denied("other", "db", 80);
    node.host.output("nft", &["delete", "table", "inet", "knit"]).unwrap();
    node.handle(Event::PacketFilterChanged);
    // The agent does not know the policies yet.
    node.assert_denied("web", "db", 80);
    node.list(&[("db", db_from_web())]);
    node.assert_reached("web", "db", 80);
    node.assert_denied("other", "db", 80);
    node.delete("db");
    node.assert_reached("other", "db", 80);
    node.assert_reached("external", "db", 81);
}

#[test]
fn a_pod_reaches_only_what_a_policy_allows() {
    let mut node = PolicyNode::new("np-egress");
    let to_db = json!([{"podSelector": app("db")}]);
    let range = json!([{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.9/32"]}}]);
    let egress = json!([{"to": to_db, "ports": [{"port": 80}]}, {"to": range}]);
    let spec = json!({"podSelector": app("web"), "policyTypes": ["Egress"], "egress": egress});
    node.list(&[("web", spec)]);
    node.attach_all();
    node.assert_reached("web", "db", 80);
    node.assert_denied("web", "db", 81);
    node.assert_denied("web", "other", 80);
    assert!(!node.pings("web", "other"));
    // Replies pass.
    node.assert_reached("other", "web", 80);
    // An exception of the range, and an address in it.
    let denied = node.external.tcp_echo((EXTERNAL[0], 80));
    node.namespace("db").tcp_reaches(denied.address()).unwrap();
    let result = node.namespace("web").run(|| TcpStream::connect_timeout(&denied.address(), DENIED));
    assert!(result.is_err(), "{}", node.rules());
    node.external.address("eth0", "192.0.2.8/24");
    let allowed = node.external.tcp_echo(("192.0.2.8", 80));
    node.namespace("web").tcp_reaches(allowed.address()).unwrap();
}

#[test]
fn a_changed_policy_applies_to_open_connections() {
    let mut node = PolicyNode::new("np-live");
    node.list(&[("db", json!({"podSelector": app("db"), "ingress": [{}]}))]);
    node.attach_all();
    node.assert_reached("web", "db", 80);
    let (mut web, mut other) = (node.connect("web", "db", 80), node.connect("other", "db", 80));
    assert!(echoes(&mut web) && echoes(&mut other));
    node.apply("db", &db_from_web());
    assert!(echoes(&mut web), "still allowed\n{}", node.rules());
    assert!(!echoes(&mut other), "no longer allowed\n{}", node.rules());
    node.apply("db", &json!({"podSelector": app("db"), "ingress": [{}]}));
    eventually("the retransmitted packets pass again", TIMEOUT, || echoes(&mut other));
}

#[test]
fn services_are_judged_by_their_backends() {
    let mut node = PolicyNode::new("np-service");
    node.list(&[("db", db_from_web())]);
    node.attach_all();
    node.assert_reached("web", "db", 80);
    node.add_service(&[
        "add rule ip service translate ip daddr 10.96.0.10 tcp dport 8000 dnat to 10.75.0.3:80",
        "add rule ip service translate ip daddr 10.96.0.10 tcp dport 8001 dnat to 10.75.0.3:81",
        "add chain ip service hairpin { type nat hook postrouting priority 100; }",
        "add rule ip service hairpin ct status dnat ip saddr 10.75.0.3 ip daddr 10.75.0.3 masquerade",
    ]);
    let connect = |from: &str, port: u16| {
        let at = SocketAddr::from(([10, 96, 0, 10], port));
        node.namespace(from).run(|| TcpStream::connect_timeout(&at, DENIED)).is_ok()
    };
    node.namespace("web").tcp_reaches(("10.96.0.10", 8000)).unwrap();
    assert!(!connect("other", 8000), "{}", node.rules());
    assert!(!connect("web", 8001), "{}", node.rules());
    // The pod reaches itself through the Service, on any port.
    node.namespace("db").tcp_reaches(("10.96.0.10", 8001)).unwrap();
}

#[test]
fn pods_of_an_isolated_namespace_are_reached_through_services_only() {
    let mut node = PolicyNode::new("np-isolated");
    node.list(&[]);
    node.attach_all();
    node.add_service(&[
        "add rule ip service translate ip daddr 10.96.0.10 tcp dport 8000 dnat to 10.75.0.3:80",
    ]);
    node.assert_reached("other", "db", 80);
    let mut open = node.connect("other", "db", 80);
    assert!(echoes(&mut open));
    node.isolate(true);
    node.list(&[]);
    // a: pods of the namespace reach each other.
    node.assert_reached("web", "db", 80);
    assert!(node.pings("web", "db"));
    // b: pods of other namespaces do not reach them, nor do their open connections go on.
    node.assert_denied("other", "db", 80);
    node.assert_denied_by_udp("other", "db", 80);
    assert!(!node.pings("other", "db") && !node.pings_link_local("other", "db"), "{}", node.rules());
    assert!(!echoes(&mut open), "{}", node.rules());
    // c: they reach pods of other namespaces.
    node.assert_reached("db", "other", 80);
    assert!(node.pings("db", "other"));
    // d and e: Services are reached from the namespace and from others.
    for from in ["web", "other"] {
        node.namespace(from).tcp_reaches(("10.96.0.10", 8000)).unwrap();
    }
    // Not pods: the node, an external host.
    node.assert_reached("node", "db", 80);
    node.assert_reached("external", "db", 80);
    // A restart and a lost table do not open the namespace.
    node.restart();
    node.assert_denied("other", "db", 80);
    node.list(&[]);
    node.assert_denied("other", "db", 80);
    node.isolate(false);
    node.assert_reached("other", "db", 80);
    eventually("the retransmitted packets pass again", TIMEOUT, || echoes(&mut open));
    assert!(!node.rules().contains("policy"), "nothing remains without policies\n{}", node.rules());
}

/// Elements lead from the addresses of all isolated pods to their segments.
#[test]
fn a_node_without_pods_has_the_segments_of_the_cluster_and_no_problem() {
    for (test, masquerade) in [("np-no-pods", false), ("np-no-pods-nat", true)] {
        let mut node = PolicyNode::with_masquerade(test, masquerade);
        let problems = |node: &mut PolicyNode| node.agent.as_mut().unwrap().node().state().problems.clone();
        node.list(&[]);
        node.isolate(true);
        assert!(problems(&mut node).is_empty(), "{:?}", problems(&mut node));
        assert!(node.rules().contains("10.75.0.3 : jump policy_segment_"), "{}", node.rules());
        node.restart();
        node.list(&[]);
        assert!(problems(&mut node).is_empty(), "{:?}", problems(&mut node));
        node.isolate(false);
        assert!(problems(&mut node).is_empty(), "{:?}", problems(&mut node));
        assert!(!node.rules().contains("policy_"), "{}", node.rules());
    }
}

#[test]
fn pods_of_an_app_are_reached_from_the_app_only() {
    let mut node = PolicyNode::new("np-app");
    node.list(&[]);
    node.attach_all();
    node.add_service(&[
        "add rule ip service translate ip daddr 10.96.0.10 tcp dport 8000 dnat to 10.75.0.3:80",
    ]);
    let bank = |app: &str| {
        Labels::from([("app".to_owned(), app.to_owned()), (APP_LABEL.to_owned(), "bank".to_owned())])
    };
    node.labels.insert("db", bank("db"));
    node.handle(Event::Policies(PolicyEvent::AppPodsListed(true)));
    node.list(&[]);
    node.assert_denied("web", "db", 80);
    node.assert_denied("other", "db", 80);
    node.namespace("web").tcp_reaches(("10.96.0.10", 8000)).unwrap();
    node.assert_reached("db", "web", 80);
    node.labels.insert("web", bank("web"));
    let (key, pod) = node.policy_pod("web");
    node.handle(Event::Policies(PolicyEvent::PodChanged { key, pod: Some(pod) }));
    node.assert_reached("web", "db", 80);
    // A NetworkPolicy decides instead.
    let from_other = json!([{"namespaceSelector": {}, "podSelector": app("other")}]);
    node.apply("db", &json!({"podSelector": app("db"), "ingress": [{"from": from_other}]}));
    node.assert_reached("other", "db", 80);
    node.assert_denied("web", "db", 80);
}

#[test]
fn policies_of_admins_come_before_and_after_those_of_tenants() {
    let mut node = PolicyNode::new("np-admin");
    node.list(&[("db", db_from_web())]);
    node.attach_all();
    let subject = json!({"pods": {"namespaceSelector": {}, "podSelector": app("db")}});
    let policy = |tier: &str, priority: u16, action: &str, from: Value| {
        let ingress = json!([{"action": action, "from": [from]}]);
        json!({"tier": tier, "priority": priority, "subject": subject, "ingress": ingress})
    };
    let pods = |name: &str| json!({"pods": {"namespaceSelector": {}, "podSelector": app(name)}});
    node.assert_reached("web", "db", 80);
    node.assert_denied("other", "db", 80);
    // An admin denies what a tenant allows, and allows what a tenant does not.
    node.apply_cluster("deny", &policy("Admin", 10, "Deny", json!({"namespaces": {}})));
    node.apply_cluster("allow", &policy("Admin", 5, "Accept", pods("other")));
    node.assert_denied("web", "db", 80);
    node.assert_reached("other", "db", 81);
    // Passed on, the tenant decides.
    node.apply_cluster("pass", &policy("Admin", 1, "Pass", json!({"namespaces": {}})));
    node.assert_reached("web", "db", 80);
    node.assert_denied("other", "db", 80);
    // What applies without a NetworkPolicy.
    node.apply_cluster("default", &policy("Baseline", 1, "Deny", pods("web")));
    node.assert_reached("web", "db", 80);
    node.delete("db");
    node.assert_denied("web", "db", 80);
    node.assert_reached("other", "db", 80);
}

#[test]
fn dropped_packets_are_logged_at_a_limited_rate_and_still_dropped() {
    let mut node = PolicyNode::new("np-log");
    let db = DropLogTarget::Policy(PolicyId::namespaced("shop", "db"));
    let change = DropLogEvent::Changed { target: db, enabled: true };
    node.handle(Event::Policies(PolicyEvent::DropLogs(change)));
    node.list(&[("db", db_from_web())]);
    node.attach_all();
    node.assert_reached("web", "db", 80);
    node.assert_denied("other", "db", 80);
    let rules = node.rules();
    let log =
        "limit rate 10/minute burst 10 packets log prefix \"knit drop NetworkPolicy shop/db ingress: \"";
    assert!(rules.contains(log), "{rules}");
}
