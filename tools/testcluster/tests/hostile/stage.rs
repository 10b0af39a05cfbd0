//! The scene of all attacks: two namespaces, their pods, and the tokens of the attackers. Created once.

use std::net::IpAddr;
use std::ops::Deref;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::frames::{Mac, parse_mac};
use crate::support::kubectl::{Namespace, command, feed, kubectl, run, text};
use crate::support::operator::{IMAGE, eventually, on_node};
use crate::support::programs::{copy, files, script};

pub const NODES: [&str; 2] = ["node1", "node2"];
/// The program that sends and receives frames, in every pod.
pub const FRAMES: &str = "LD_LIBRARY_PATH=/tmp /tmp/knit-frames";
/// What every frame of an attack contains.
pub const MARK: &str = "hostile-frame-";
/// The port of the pods' HTTP server.
pub const HTTP: u16 = 8080;
/// The port of the tunnels between nodes.
pub const TUNNEL: u16 = 7475;

/// A pod on the cluster network.
pub struct Host {
    pub pod: &'static str,
    pub node: &'static str,
    pub mac: Mac,
    pub ipv4: IpAddr,
    pub ipv6: IpAddr,
}

/// Namespaces and pods, the same for all attacks.
pub struct Scene {
    /// The namespace of the tenant who attacks.
    pub attacker: Namespace,
    /// The namespace of another tenant.
    pub victim: Namespace,
    /// kubectl's option with the token of the tenant who attacks.
    pub tenant: String,
    /// A pod of the attacker with the runtime's default capabilities.
    pub plain: Host,
    /// A pod of the attacker with NET_ADMIN in its own network namespace.
    pub admin: Host,
    /// A pod of the other tenant on the attacker's node.
    pub near: Host,
    /// A pod of the other tenant on the other node.
    pub far: Host,
    /// The MAC address of the cluster bridge of node1.
    pub gateway: Mac,
    /// The overlay network of the other tenant: its VNI, and the addresses of its pods.
    pub vni: u32,
    pub blue: [IpAddr; 2],
    /// An Uplink for the nodes' NIC that is open to the other tenant only.
    pub uplink: String,
    /// The addresses of the nodes and of the machine with the control plane.
    pub machines: Vec<String>,
}

/// The scene, for one test at a time: attacks compare the state of whole nodes.
pub struct Stage {
    scene: &'static Scene,
    _exclusive: MutexGuard<'static, ()>,
}

impl Deref for Stage {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        self.scene
    }
}

pub fn stage() -> Stage {
    static RUNNING_TEST: Mutex<()> = Mutex::new(());
    static SCENE: OnceLock<Scene> = OnceLock::new();
    let exclusive = RUNNING_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    Stage { scene: SCENE.get_or_init(Scene::new), _exclusive: exclusive }
}

/// The tenant's own network over both nodes, and what it offers to its pods only.
const VICTIM_OBJECTS: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [192.168.117.0/24], transport: vxlan}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: blue}
spec: {selector: {matchLabels: {team: victim}}, interfaceName: blue0, network: blue}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: {name: lab}
spec: {name: viclab0, cidr: 192.168.110.0/24}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodSocket
metadata: {name: web}
spec: {selector: {matchLabels: {team: victim}}, sockets: [{name: web, type: tcp, port: 81}]}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {private: dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=}
";

impl Scene {
    fn new() -> Self {
        let (attacker, victim) = (Namespace::new("attacker"), Namespace::new("victim"));
        let uplink = format!("hostile-{}", std::process::id());
        delete_at_exit(&[&attacker.name, &victim.name], &uplink);
        open_uplink(&uplink, &victim);
        let tenant = tenant_token(&attacker);
        attacker.apply(&pod("plain", "node1", "attacker", &[]));
        attacker.apply(&pod("admin", "node1", "attacker", &["NET_ADMIN", "NET_RAW"]));
        victim.apply(&pod("near", "node1", "victim", &[]));
        victim.apply(&pod("far", "node2", "victim", &[]));
        victim.apply(VICTIM_OBJECTS);
        for namespace in [&attacker, &victim] {
            namespace.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]);
        }
        for (namespace, pod) in
            [(&attacker, "plain"), (&attacker, "admin"), (&victim, "near"), (&victim, "far")]
        {
            for file in files("knit-frames") {
                copy(namespace, pod, &file, "/tmp");
            }
        }
        let (vni, blue) = overlay(&victim);
        for (pod, link) in ["near", "far"].iter().flat_map(|pod| [(pod, "eth0"), (pod, "blue0")]) {
            let watch = format!("{FRAMES} watch {link} {MARK} > /tmp/seen-{link} 2>&1 &");
            script(&victim, pod, &watch);
            let seen = || script(&victim, pod, &format!("cat /tmp/seen-{link}"));
            eventually("frames are watched", seen, |seen| seen.contains("watching"));
        }
        let gateway = on_node("node1", &["cat", "/sys/class/net/knit0/address"]);
        Self {
            plain: host(&attacker, "plain", "node1"),
            admin: host(&attacker, "admin", "node1"),
            near: host(&victim, "near", "node1"),
            far: host(&victim, "far", "node2"),
            gateway: parse_mac(gateway.trim()),
            attacker,
            victim,
            tenant,
            vni,
            blue,
            uplink,
            machines: machines(),
        }
    }

    /// kubectl's option with the token of node1's agent, as its root reads it.
    pub fn agent(&self) -> String {
        agent_token("node1")
    }

    /// Runs kubectl as the tenant, in its own namespace unless the arguments name another one.
    pub fn as_tenant(&self, args: &[&str]) -> (bool, String) {
        self.run(&self.tenant, args, "")
    }

    /// Runs kubectl with the token of node1's agent.
    pub fn as_agent(&self, args: &[&str]) -> (bool, String) {
        self.run(&self.agent(), args, "")
    }

    /// Changes the status of a node with the token of node1's agent, without storing it. Not with kubectl, which reads the
    /// subresource first: agents may not.
    pub fn patch_status_as_agent(&self, node: &str, patch: &str) -> (bool, String) {
        let token = self.agent().replace("--token=", "Authorization: Bearer ");
        let server = kubectl(&["config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        let url = format!("{server}/api/v1/nodes/{node}/status?dryRun=All");
        let mut curl = Command::new("curl");
        curl.args(["-sSk", "--max-time", "20", "-X", "PATCH", "-d", patch, "-H", &token]);
        curl.args(["-H", "Content-Type: application/strategic-merge-patch+json", &url]);
        let output = curl.output().unwrap();
        let answer = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success() && !answer.contains("\"Failure\""), answer)
    }

    /// Creates an object with this token in the attacker's namespace, without storing it: admission decides as for others.
    pub fn try_create(&self, token: &str, object: &Value) -> (bool, String) {
        self.run(token, &["create", "--dry-run=server", "-f", "-"], &object.to_string())
    }

    fn run(&self, token: &str, args: &[&str], input: &str) -> (bool, String) {
        let own = if args.contains(&"-n") { &[][..] } else { &["-n", self.attacker.name.as_str()] };
        feed(&[own, &[token], args].concat(), input)
    }
}

/// Asserts that a request failed, and for the expected reason: an expired token is none.
#[track_caller]
pub fn assert_denied((accepted, output): (bool, String), expected: &str) {
    assert!(!accepted, "accepted: {output}");
    assert!(output.contains(expected), "expected `{expected}`: {output}");
}

/// Pods of a team that serve HTTP.
fn pod(name: &str, node: &str, team: &str, capabilities: &[&str]) -> String {
    let security =
        if capabilities.is_empty() { json!({}) } else { json!({"capabilities": {"add": capabilities}}) };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"team": team, "pod": name}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "args": ["netexec", format!("--http-port={HTTP}"), "--udp-port=-1"],
                "securityContext": security,
            }],
        },
    })
    .to_string()
}

/// A tenant as the documentation grants it most: all kinds for tenants, and Kubernetes' own role for admins of a namespace.
fn tenant_token(namespace: &Namespace) -> String {
    namespace.kubectl(&["create", "serviceaccount", "tenant"]);
    let account = format!("--serviceaccount={}:tenant", namespace.name);
    for role in ["knit-tenant", "admin"] {
        namespace.kubectl(&["create", "rolebinding", role, &format!("--clusterrole={role}"), &account]);
    }
    let token = format!("--token={}", namespace.kubectl(&["create", "token", "tenant"]).trim());
    let may = || {
        text(&run(&["-n", &namespace.name, &token, "auth", "can-i", "create", "bridges.podnetwork.opdev.io"]))
    };
    eventually("the roles are effective", may, |may| may.trim() == "yes");
    token
}

/// The token of a node's agent from the node's disk, where its root reads it.
fn agent_token(node: &str) -> String {
    let selector = format!("spec.nodeName={node}");
    let path = "jsonpath={.items[0].metadata.uid}";
    let args =
        ["-n", "pod-network-operator", "get", "pods", "-l", "app=knit-agent", "--field-selector", &selector];
    let uid = kubectl(&[&args[..], &["-o", path]].concat());
    let volumes = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected");
    let token = on_node(node, &["sh", "-c", &format!("cat {volumes}/*/token")]);
    assert!(!token.trim().is_empty(), "the agent's token is in {volumes}");
    format!("--token={}", token.trim())
}

fn machines() -> Vec<String> {
    let path = "jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}";
    let nodes = kubectl(&["get", "nodes", "-o", path]);
    let gateway = on_node("node1", &["ip", "-j", "route", "show", "default"]);
    let gateway: Value = serde_json::from_str(&gateway).unwrap();
    let gateway = gateway[0]["gateway"].as_str().unwrap();
    nodes.split_whitespace().chain([gateway]).map(str::to_owned).collect()
}

fn open_uplink(name: &str, namespace: &Namespace) {
    let spec = json!({"link": "eth0", "namespaces": [namespace.name]});
    let object = json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "Uplink",
        "metadata": {"name": name},
        "spec": spec,
    });
    let (accepted, output) = feed(&["apply", "-f", "-"], &object.to_string());
    assert!(accepted, "{output}");
}

/// VNI and addresses of the other tenant's overlay network, once both pods are on it.
fn overlay(victim: &Namespace) -> (u32, [IpAddr; 2]) {
    let address = |pod: &str| {
        let shown = script(victim, pod, "ip -4 -o addr show dev blue0");
        let (_, rest) = shown.split_once("inet ")?;
        rest.split('/').next()?.parse().ok()
    };
    let blue = eventually(
        "pods are on their network",
        || ["near", "far"].map(address),
        |all| all.iter().all(Option::is_some),
    );
    let state = || victim.kubectl(&["get", "virtualnetwork", "blue", "-o", "jsonpath={.status.nodes}"]);
    let state = eventually("the network has a VNI", state, |state| state.matches(" to node").count() == 2);
    let (_, rest) = state.split_once("VNI ").unwrap();
    let vni: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let blue = blue.map(Option::unwrap);
    let ping = || script(victim, "near", &format!("ping -n -c 1 -W 1 {}", blue[1]));
    eventually("they reach each other", ping, |output| output.contains(" 0% packet loss"));
    (vni.parse().unwrap(), blue)
}

fn host(namespace: &Namespace, pod: &'static str, node: &'static str) -> Host {
    let shown = script(namespace, pod, "ip -j addr show dev eth0");
    let link: Value = serde_json::from_str(&shown).unwrap();
    let addresses = link[0]["addr_info"].as_array().unwrap();
    let address = |family: &str| {
        let found = addresses.iter().find(|one| one["family"] == family && one["scope"] == "global");
        found.unwrap()["local"].as_str().unwrap().parse().unwrap()
    };
    let mac = parse_mac(link[0]["address"].as_str().unwrap());
    Host { pod, node, mac, ipv4: address("inet"), ipv6: address("inet6") }
}

/// Deletes what the tests created when this process ends, however it ends: a process that waits for its end does it.
fn delete_at_exit(namespaces: &[&str], uplink: &str) {
    let kubectl = command(&[]);
    let kubectl = kubectl.get_program().to_str().unwrap();
    let script = format!(
        "cat > /dev/null; {kubectl} delete uplink {uplink}; {kubectl} delete namespace {} --wait=false",
        namespaces.join(" ")
    );
    let mut process = std::process::Command::new("sh");
    process.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // The end of this process closes the pipe.
    std::mem::forget(process.spawn().unwrap());
}
