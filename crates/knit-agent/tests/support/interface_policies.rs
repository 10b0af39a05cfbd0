//! A node with three pods that have an interface of one kind each, and MultiNetworkPolicies about it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use knit_agent::Standalone;
use knit_engine::policies::PolicyEvent;
use knit_engine::{Event, State};
use knit_policy::{
    Labels, PodKey, PodNetworks, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, multi_network_policy,
};
use knit_testbed::{Dump, EchoServer, Namespace, Pod, Testbed};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::test_host::{objects, problems, reopen};

/// The pods.
pub const PODS: [&str; 3] = ["web", "db", "other"];
const NAMESPACE: &str = "default";
/// How long a packet that is dropped is waited for.
const DENIED: Duration = Duration::from_millis(400);

/// A node with three pods, each with TCP and UDP echo servers on ports 80 and 81 of its additional interface.
pub struct InterfaceNode {
    host: Namespace,
    pods: BTreeMap<&'static str, Pod>,
    agent: Option<Standalone>,
    folder: TempDir,
    networks: BTreeMap<&'static str, PodNetworks>,
    servers: Vec<EchoServer>,
    clean: BTreeMap<&'static str, Dump>,
    _testbed: Testbed,
}

impl InterfaceNode {
    /// A node with a NIC `nic0`, and pods with these objects. The objects select pods by the label `app`.
    pub fn new(test: &str, yaml: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, cable) = (testbed.host(), testbed.namespace("cable"));
        testbed.connect(&host, "nic0", &cable, "nic0");
        let pods: BTreeMap<&'static str, Pod> = PODS.map(|name| (name, testbed.pod(name))).into();
        // Connection tracking adds sysctls once its module is loaded.
        let tracking = "table inet probe { chain probe { ct state new accept; }; }; delete table inet probe";
        host.output("nft", &[tracking]).unwrap();
        let folder = TempDir::new().unwrap();
        let agent = host.run_as_agent(|| Standalone::open(folder.path()).unwrap());
        let clean = pods.iter().map(|(name, pod)| (*name, Dump::settled(pod.namespace()))).collect();
        let mut node = Self {
            host,
            pods,
            agent: Some(agent),
            folder,
            networks: BTreeMap::new(),
            servers: Vec::new(),
            clean,
            _testbed: testbed,
        };
        node.handle(Event::Policies(PolicyEvent::OnInterfaces(true)));
        for name in PODS {
            let (labels, pid) = (labels(name), node.pods[name].pid());
            let agent = node.agent.as_mut().unwrap();
            node.host.run_as_agent(|| agent.add_sandbox(NAMESPACE, name, labels, pid).unwrap());
        }
        node.apply_objects(yaml);
        node
    }

    pub fn apply_objects(&mut self, yaml: &str) {
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.apply(objects(yaml), "test").unwrap());
        assert_eq!(problems(agent), "");
        self.read_networks();
    }

    pub fn delete_objects(&mut self, yaml: &str) {
        let keys = super::test_host::keys(yaml);
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.delete(&keys, "test").unwrap());
        self.read_networks();
    }

    /// What agents publish in PodNetworkStates.
    fn read_networks(&mut self) {
        let mut all = BTreeMap::new();
        for state in self.state().pod_states() {
            let pod = PODS.into_iter().find(|name| state.sandbox.pod == *name).unwrap();
            let mut networks = PodNetworks::new();
            for interface in state.objects.iter().flat_map(|object| &object.interfaces) {
                for network in &interface.networks {
                    let addresses = interface.addresses.iter().map(|address| address.addr());
                    networks.entry(network.clone()).or_default().extend(addresses);
                }
            }
            all.insert(pod, networks);
        }
        self.networks = all;
    }

    pub fn state(&self) -> &State {
        self.agent.as_ref().unwrap().state()
    }

    fn handle(&mut self, event: Event) {
        let agent = self.agent.as_mut().unwrap();
        self.host.run_as_agent(|| agent.node().handle(event).unwrap());
    }

    fn policy_event(&mut self, event: PolicyEvent) {
        self.handle(Event::Policies(event));
    }

    /// Lists policies, namespaces, pods and their addresses for the agent.
    pub fn list(&mut self, policies: &[(&str, &str, Value)]) {
        let policies = policies.iter().map(|(name, of, spec)| policy(name, of, spec)).collect();
        let namespaces = [(NAMESPACE.to_owned(), PolicyNamespace::default())].into();
        let pods = PODS.map(|name| (key(name), self.policy_pod(name))).into();
        self.policy_event(PolicyEvent::PoliciesListed(PolicyKind::MultiNetworkPolicy, policies));
        self.policy_event(PolicyEvent::NamespacesListed(namespaces));
        self.policy_event(PolicyEvent::PodsListed(pods));
        self.list_networks();
    }

    fn uid(&self, pod: &str) -> String {
        let sandbox = self.state().sandboxes.values().find(|sandbox| sandbox.pod == pod);
        sandbox.unwrap().uid.clone()
    }

    fn policy_pod(&self, name: &str) -> PolicyPod {
        PolicyPod { uid: self.uid(name), labels: labels(name), ..PolicyPod::default() }
    }

    pub fn list_networks(&mut self) {
        let networks = self.networks.iter().map(|(name, all)| (key(name), (self.uid(name), all.clone())));
        let networks = networks.collect();
        self.policy_event(PolicyEvent::PodNetworksListed(networks));
    }

    /// A pod's addresses on additional networks as another agent publishes them.
    pub fn set_networks(&mut self, pod: &str, networks: Option<PodNetworks>) {
        let networks = networks.map(|networks| (self.uid(pod), networks));
        self.policy_event(PolicyEvent::PodNetworksChanged { key: key(pod), networks });
    }

    pub fn networks(&self, pod: &str) -> PodNetworks {
        self.networks[pod].clone()
    }

    pub fn apply(&mut self, name: &str, policy_for: &str, spec: &Value) {
        self.policy_event(PolicyEvent::PolicyApplied(Box::new(policy(name, policy_for, spec))));
    }

    pub fn delete(&mut self, name: &str) {
        self.policy_event(PolicyEvent::PolicyDeleted(PolicyId::multi_network(NAMESPACE, name)));
    }

    /// The agent starts again and knows nothing of what was watched.
    pub fn restart(&mut self) {
        self.agent = None;
        let folder = self.folder.path();
        self.agent = Some(self.host.run_as_agent(|| reopen(folder)));
        self.handle(Event::Policies(PolicyEvent::OnInterfaces(true)));
        self.handle(Event::Resync);
    }

    /// The addresses of a pod's interface, by family.
    pub fn addresses(&self, pod: &str) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = self.networks[pod].values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Starts the echo servers.
    pub fn serve(&mut self) {
        for name in PODS {
            for at in self.addresses(name) {
                let namespace = self.pods[name].namespace();
                for port in [80, 81] {
                    self.servers.push(namespace.tcp_echo((at, port)));
                    self.servers.push(namespace.udp_echo((at, port)));
                }
            }
        }
    }

    pub fn namespace(&self, pod: &str) -> &Namespace {
        self.pods[pod].namespace()
    }

    #[track_caller]
    pub fn assert_reached(&self, from: &str, to: &str, port: u16) {
        for at in self.addresses(to) {
            let result = self.namespace(from).tcp_reaches((at, port));
            assert!(result.is_ok(), "{from} does not reach {to} at {at}: {result:?}\n{}", self.rules(to));
        }
    }

    #[track_caller]
    pub fn assert_denied(&self, from: &str, to: &str, port: u16) {
        for at in self.addresses(to) {
            let at = SocketAddr::from((at, port));
            let result = self.namespace(from).run(|| TcpStream::connect_timeout(&at, DENIED));
            assert!(result.is_err(), "{from} reaches {to} at {at}\n{}", self.rules(to));
        }
    }

    /// An open connection to the first address of a pod.
    pub fn connect(&self, from: &str, to: &str, port: u16) -> TcpStream {
        let at = SocketAddr::from((self.addresses(to)[0], port));
        let stream =
            self.namespace(from).run(|| TcpStream::connect_timeout(&at, Duration::from_secs(10)).unwrap());
        stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        stream
    }

    /// The table in a pod's namespace.
    pub fn rules(&self, pod: &str) -> String {
        self.namespace(pod).output("nft", &["list", "ruleset"]).unwrap_or_default()
    }

    /// Asserts that the pods are as they were before they had interfaces.
    pub fn assert_pods_are_clean(&self) {
        for (name, before) in &self.clean {
            assert_eq!(self.rules(name), "", "{name}");
            let difference = before.difference(&Dump::settled(self.namespace(name)));
            assert_eq!(difference, "", "{name}");
        }
    }
}

fn key(pod: &str) -> PodKey {
    PodKey { namespace: NAMESPACE.to_owned(), name: pod.to_owned() }
}

fn labels(pod: &str) -> Labels {
    [("app".to_owned(), pod.to_owned()), ("net".to_owned(), "x".to_owned())].into()
}

fn policy(name: &str, policy_for: &str, spec: &Value) -> knit_policy::Policy {
    let id = PolicyId::multi_network(NAMESPACE, name);
    let (policy, warnings) = multi_network_policy::translate(id, Some(policy_for), spec);
    assert_eq!(warnings, [""; 0]);
    policy
}

pub fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

/// Pods with the label `app: db` are reached from those with `app: web` on port 80.
pub fn db_from_web() -> Value {
    let ports = json!([{"port": 80}, {"port": 80, "protocol": "UDP"}]);
    json!({"podSelector": app("db"), "ingress": [{"from": [{"podSelector": app("web")}], "ports": ports}]})
}

/// What policies do on the interface of one kind: in both directions, on open connections, across a restart of the agent, and
/// nothing of it stays.
pub fn check(test: &str, yaml: &str, network: &str) {
    let mut node = InterfaceNode::new(test, yaml);
    node.list(&[]);
    node.serve();
    assert!(node.networks("db").contains_key(network), "{:?}", node.networks("db"));
    for name in PODS {
        assert_eq!(node.rules(name), "", "no policy needs no table");
    }
    node.assert_reached("other", "db", 81);
    let mut open = node.connect("other", "db", 81);
    assert!(echoes(&mut open));
    node.apply("db", network, &db_from_web());
    node.list_networks();
    node.assert_reached("web", "db", 80);
    for at in node.addresses("db") {
        node.namespace("web").udp_reaches((at, 80)).unwrap();
    }
    node.assert_denied("web", "db", 81);
    node.assert_denied("other", "db", 80);
    assert!(!echoes(&mut open), "an open connection\n{}", node.rules("db"));
    node.assert_reached("db", "other", 81);
    assert_eq!(node.rules("web"), "", "no policy is about it");
    // Connections from a pod.
    let to_db = json!([{"to": [{"podSelector": app("db")}], "ports": [{"port": 80}]}]);
    let egress = json!({"podSelector": app("web"), "policyTypes": ["Egress"], "egress": to_db});
    node.apply("web", network, &egress);
    node.assert_reached("web", "db", 80);
    node.assert_denied("web", "other", 80);
    node.assert_reached("other", "web", 80);
    // Addresses of peers come and go.
    let known = node.networks("web");
    node.set_networks("web", None);
    node.assert_denied("web", "db", 80);
    node.set_networks("web", Some(known));
    node.assert_reached("web", "db", 80);
    // A policy about another network.
    node.apply("absent", "VirtualNetwork/other/absent", &json!({"podSelector": {}}));
    node.assert_reached("other", "web", 80);
    node.restart();
    node.assert_denied("other", "db", 80);
    node.assert_reached("web", "db", 80);
    node.list(&[("db", network, db_from_web())]);
    node.assert_denied("other", "db", 80);
    node.assert_reached("web", "other", 80);
    node.delete("db");
    node.assert_reached("other", "db", 81);
    for name in PODS {
        assert_eq!(node.rules(name), "", "{name}");
    }
    node.apply("db", network, &db_from_web());
    node.delete_objects(yaml);
    node.assert_pods_are_clean();
}

/// Whether the other end of a connection still echoes.
fn echoes(stream: &mut TcpStream) -> bool {
    use std::io::{Read, Write};
    let mut answer = [0; 4];
    stream.write_all(b"knit").is_ok() && stream.read_exact(&mut answer).is_ok()
}
