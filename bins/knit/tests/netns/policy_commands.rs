//! `knit policy` with an agent that enforces policies on the real kernel. What an API server lists comes from the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use knit_agent::config::Config;
use knit_agent::daemon::{ClusterNetworkObject, Daemon, Handle};
use knit_agent::http::serve_metrics;
use knit_agent::log::LogBuffer;
use knit_agent::services::{AgentInfo, Services, listen};
use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_kni::{Client, v1};
use knit_model::intent::NodeRoutesIntent;
use knit_policy::{
    Labels, PodKey, Policy, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, cluster_network_policy,
    network_policy,
};
use knit_testbed::{EchoServer, Namespace, Pod, Testbed, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::support::agent::{Machine, netns};

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a packet that is dropped is waited for.
const DENIED: Duration = Duration::from_millis(400);
const METRICS: &str = "127.0.0.1:19475";
/// Each pod with its namespace, in the order of their addresses.
const PODS: [(&str, &str); 3] = [("shop", "web"), ("shop", "db"), ("lab", "other")];

/// An agent with the profile `primary`, without an API server.
struct PolicyAgent {
    folder: TempDir,
    handle: Handle,
    daemon: Option<Daemon>,
    runtime: Option<Runtime>,
    host: Namespace,
    pods: Vec<Pod>,
    _stop: watch::Sender<bool>,
    _servers: Vec<EchoServer>,
    _testbed: Testbed,
}

impl PolicyAgent {
    fn start(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let (host, folder) = (testbed.host(), TempDir::new().unwrap());
        host.set_sysctl("net.ipv4.ip_forward", "1");
        let mut config = Config {
            node_name: "node1".to_owned(),
            state_dir: folder.path().join("state"),
            kni_socket: folder.path().join("kni.sock"),
            ..Config::default()
        };
        config.cluster_network.enabled = false;
        let (stop, stopped) = watch::channel(false);
        // Threads inherit the network namespace and the capabilities of the one that starts them.
        let (daemon, runtime) = host.run_as_agent(|| {
            let daemon = Daemon::start(config.options(None).unwrap(), None).unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let info = AgentInfo { profile: "primary".to_owned(), ..AgentInfo::new(&config) };
            let services = Services::new(daemon.handle(), info, LogBuffer::default());
            let listener = runtime.block_on(listen(&config.kni_socket)).unwrap();
            runtime.block_on(serve_metrics(METRICS, daemon.handle(), stopped.clone())).unwrap();
            runtime.spawn(services.serve(listener, stopped));
            (daemon, runtime)
        });
        let pods = PODS.map(|(_, name)| testbed.pod(name)).into();
        Self {
            folder,
            handle: daemon.handle(),
            daemon: Some(daemon),
            runtime: Some(runtime),
            host,
            pods,
            _stop: stop,
            _servers: Vec::new(),
            _testbed: testbed,
        }
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("kni.sock")
    }

    fn set_cluster_network(&self, network_policy: bool) {
        let routes = NodeRoutesIntent { network_policy, ..NodeRoutesIntent::default() };
        let ranges = ["10.75.0.0/24".parse().unwrap()];
        let bridge = "knit0".parse().unwrap();
        let object = ClusterNetworkObject::new(&ranges, &bridge, Some(1500), Some(&routes));
        self.runtime().block_on(self.handle.set_cluster_network(Some(object))).unwrap();
    }

    /// Attaches all pods, each with an echo server on ports 80 and 81.
    fn attach_pods(&mut self) {
        for (at, (namespace, name)) in PODS.into_iter().enumerate() {
            let domain = v1::isolation::Domain::NetnsPath(netns(&self.pods[at]));
            let request = v1::AttachRequest {
                sandbox: Some(v1::SandboxSpec {
                    id: name.to_owned(),
                    name: name.to_owned(),
                    namespace: namespace.to_owned(),
                    uid: name.to_owned(),
                    isolation: Some(v1::Isolation { domain: Some(domain) }),
                    ..v1::SandboxSpec::default()
                }),
                ..v1::AttachRequest::default()
            };
            let socket = self.socket();
            let call = async move { Client::connect(socket).await?.attach(request).await };
            self.runtime().block_on(call).unwrap();
            for port in [80, 81] {
                let server = self.pods[at].namespace().tcp_echo(SocketAddr::from((address(at), port)));
                self._servers.push(server);
            }
        }
    }

    fn submit(&self, event: PolicyEvent) {
        self.handle.submit(Event::Policies(event));
    }

    /// Lists these policies, all pods and their namespaces.
    fn list(&self, policies: Vec<Policy>, cluster_policies: Vec<Policy>) {
        let namespaces = ["shop", "lab"].map(|name| (name.to_owned(), PolicyNamespace::default()));
        self.submit(PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, policies));
        self.submit(PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, cluster_policies));
        self.submit(PolicyEvent::AppPodsListed(false));
        self.submit(PolicyEvent::NamespacesListed(namespaces.into()));
        self.list_pods();
    }

    fn list_pods(&self) {
        let pods = PODS.into_iter().enumerate().map(|(at, (namespace, name))| {
            let key = PodKey { namespace: namespace.to_owned(), name: name.to_owned() };
            let labels = Labels::from([("app".to_owned(), name.to_owned())]);
            let addresses = vec![address(at).into()];
            (key, PolicyPod { uid: name.to_owned(), labels, addresses, ..PolicyPod::default() })
        });
        self.submit(PolicyEvent::PodsListed(pods.collect()));
    }

    /// Exit code, standard output, standard error.
    fn knit(&self, arguments: &[&str]) -> (i32, String, String) {
        knit(&self.socket(), arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (_, out, err) = self.knit(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{arguments:?}: {out}{err}"))
    }

    /// Whether a pod reaches another one over TCP.
    fn reaches(&self, from: usize, to: usize, port: u16) -> bool {
        let to = SocketAddr::from((address(to), port));
        self.pods[from].namespace().run(|| TcpStream::connect_timeout(&to, DENIED)).is_ok()
    }

    /// The value of a series of the metric.
    fn dropped(&self, series: &str) -> Option<u64> {
        let mut stream = self.host.run(|| TcpStream::connect(METRICS)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: knit\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let name = format!("knit_policy_dropped_packets_total{{{series}}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
    }
}

impl Drop for PolicyAgent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }
}

fn knit(socket: &std::path::Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit"));
    let output = command.args(arguments).env("KNIT_KNI_SOCKET", socket).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn address(at: usize) -> [u8; 4] {
    [10, 75, 0, u8::try_from(at).unwrap() + 2]
}

fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

/// Pods with the label `app: db` are reached from those of the namespace on port 80.
fn db_policy() -> Policy {
    let rule = json!({"from": [{"podSelector": {}}], "ports": [{"port": 80}]});
    let spec = json!({"podSelector": app("db"), "ingress": [rule]});
    network_policy::translate(PolicyId::namespaced("shop", "db"), &spec).0
}

/// No pod of other namespaces reaches `shop`.
fn guard_policy() -> Policy {
    let name = |name: &str| json!({"podSelector": app(name), "namespaceSelector": {}});
    let ingress = json!([
        {"action": "Pass", "from": [{"pods": name("web")}]},
        {"action": "Deny", "from": [{"pods": name("other")}]},
    ]);
    let spec = json!({"tier": "Admin", "priority": 10, "subject": {"pods": name("db")}, "ingress": ingress});
    cluster_network_policy::translate(PolicyId::of_cluster("guard"), &spec).0.unwrap()
}

#[test]
fn policies_are_explained_and_what_they_drop_is_counted() {
    let mut agent = PolicyAgent::start("policy-commands");
    agent.set_cluster_network(true);
    let (code, out, err) = agent.knit(&["policy", "why", "shop/web", "shop/db"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("has not listed NetworkPolicies, ClusterNetworkPolicies"), "{err}");
    agent.list(vec![db_policy()], vec![guard_policy()]);
    agent.attach_pods();
    // The kernel does what the commands report.
    let why = |agent: &PolicyAgent, from: &str, to: &str, port: u16| {
        let (code, out, err) = agent.knit(&["policy", "why", from, to, "--port", &port.to_string()]);
        assert_eq!(err, "");
        (code, out)
    };
    assert!(agent.reaches(0, 1, 80) && !agent.reaches(0, 1, 81) && !agent.reaches(2, 1, 80));
    let (code, out) = why(&agent, "shop/web", "shop/db", 80);
    let expected = "\
shop/web (10.75.0.2) to shop/db (10.75.0.3), tcp port 80: allowed
  egress of shop/web, enforced on this node: allowed, no policy is about it
  ingress of shop/db, enforced on this node: allowed, by NetworkPolicy shop/db ingress[0]
    ClusterNetworkPolicy guard (Admin, priority 10): ingress[0] passes it on
    NetworkPolicy shop/db: ingress[0] allows it
";
    assert_eq!((code, out.as_str()), (0, expected));
    let (code, out) = why(&agent, "shop/web", "10.75.0.3", 81);
    assert!(code == 1 && out.contains("denied, no rule of its NetworkPolicies matches"), "{out}");
    let (code, out) = why(&agent, "lab/other", "shop/db", 80);
    assert!(code == 1 && out.contains("denied, by ClusterNetworkPolicy guard ingress[1]"), "{out}");
    assert_eq!(agent.knit(&["policy", "why", "shop/none", "shop/db"]).0, 2);

    let list = agent.json(&["policy", "list"]);
    let policies = list["policies"].as_array().unwrap();
    let dropped = |at: usize| policies[at]["droppedPackets"].as_u64().unwrap();
    assert_eq!([&policies[0]["policy"]["name"], &policies[1]["policy"]["name"]], ["guard", "db"]);
    assert!(dropped(0) > 0 && dropped(1) > 0, "{list}");
    assert_eq!(agent.json(&["policy", "list", "-n", "lab"])["policies"].as_array().unwrap().len(), 1);
    let (code, out, _) = agent.knit(&["policy", "show", "shop/db"]);
    assert_eq!(code, 0);
    for line in [
        "  ClusterNetworkPolicy guard (Admin, priority 10): 2 rules",
        "  NetworkPolicy shop/db: 1 rule",
        "Egress: not restricted",
        "Isolation: none",
    ] {
        assert!(out.lines().any(|one| one == line), "{line} is not in\n{out}");
    }
    let shown = agent.json(&["policy", "show", "shop/db"]);
    let chains = shown["directions"][0]["chains"].as_array().unwrap();
    let sums: Vec<u64> = chains.iter().map(|chain| chain["droppedPackets"].as_u64().unwrap()).collect();
    assert_eq!(sums, [dropped(0), dropped(1)], "{shown}");
    assert!(agent.knit(&["policy", "show", "shop/none"]).2.contains("not found on this node (NotFound)"));

    let tenant = r#"kind="NetworkPolicy",namespace="shop",name="db",direction="ingress""#;
    let admin = r#"kind="ClusterNetworkPolicy",namespace="",name="guard",direction="ingress""#;
    assert_eq!([agent.dropped(admin), agent.dropped(tenant)], [Some(dropped(0)), Some(dropped(1))]);
    // A changed policy: the kernel's counters start again, the metric goes on.
    let total = agent.dropped(tenant).unwrap();
    let mut changed = db_policy();
    let rules = changed.ingress.as_mut().unwrap();
    rules.push(rules[0].clone());
    agent.submit(PolicyEvent::PolicyApplied(Box::new(changed)));
    let in_kernel = || agent.json(&["policy", "list"])["policies"][1]["droppedPackets"].as_u64().unwrap();
    eventually("the chain is written again", TIMEOUT, || in_kernel() == 0);
    assert_eq!(agent.dropped(tenant), Some(total));
    assert!(!agent.reaches(0, 1, 81));
    assert_eq!(agent.dropped(tenant), Some(total + in_kernel()));
    assert!(in_kernel() > 0);
    agent.submit(PolicyEvent::PolicyDeleted(PolicyId::namespaced("shop", "db")));
    eventually("the deleted policy has no series", TIMEOUT, || agent.dropped(tenant).is_none());
}

#[test]
fn isolation_is_listed_with_what_it_drops() {
    let mut agent = PolicyAgent::start("policy-isolation");
    agent.set_cluster_network(true);
    agent.list(Vec::new(), Vec::new());
    agent.attach_pods();
    assert_eq!(agent.knit(&["policy", "list"]).1, "no policy restricts pods of this node\n");
    assert_eq!(agent.knit(&["policy", "why", "lab/other", "shop/db"]).0, 0);
    let namespace = Some(PolicyNamespace { isolated: true, ..PolicyNamespace::default() });
    agent.submit(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace });
    agent.list_pods();
    eventually("the namespace is isolated", TIMEOUT, || !agent.reaches(2, 1, 80));
    let list = agent.json(&["policy", "list"]);
    let isolated = &list["policies"][0];
    assert_eq!(isolated["policy"], json!({"kind": "IsolatedNamespace", "namespace": "shop"}));
    assert_eq!(isolated["pods"], 2);
    let dropped = isolated["droppedPackets"].as_u64().unwrap();
    let series = r#"kind="IsolatedNamespace",namespace="shop",name="",direction="ingress""#;
    // A connection from before may still retransmit its last packets.
    assert!(dropped > 0 && agent.dropped(series) >= Some(dropped), "{list}");
    let (code, out, _) = agent.knit(&["policy", "why", "lab/other", "shop/db"]);
    let reason = "isolation, enforced on this node: denied, other pods reach isolated namespace shop through Services only";
    assert!(code == 1 && out.contains(reason), "{out}");
    assert_eq!(agent.knit(&["policy", "why", "lab/other", "shop/db", "--service"]).0, 0);
}

#[test]
fn an_agent_that_does_not_enforce_policies_reports_it() {
    let agent = PolicyAgent::start("policy-off");
    agent.set_cluster_network(false);
    let (code, out, _) = agent.knit(&["policy", "list"]);
    let off = "policies are not enforced on this node: `clusterNetwork.networkPolicy` is false in the agent's configuration";
    assert_eq!((code, out), (0, format!("{off}\n")));
    let (code, out, err) = agent.knit(&["policy", "why", "shop/web", "192.0.2.1"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains(off), "{err}");
    // Another profile.
    let machine = Machine::new("policy-profile");
    let pod = machine.testbed.pod("a");
    let agent = machine.agent();
    agent.attach("sb1", &pod);
    let (code, out, _) = knit(&agent.socket(), &["policy", "show", "sb1"]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with("policies are not enforced on this node: ") && out.contains("`standalone`"),
        "{out}"
    );
    assert!(out.ends_with("Pod:        default/sb1\n"), "{out}");
}
