//! A tenant without privileges, on a real cluster: a namespace under `restricted` pod security, and a ServiceAccount that may
//! write exactly two of Knit's kinds, Veth and PodSocket. It does what these allow, on running pods, and nothing else.
//!
//! Run by `cargo xtask test cluster`, which loads the image.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod beside;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use serde_json::{Value, json};
use support::beside::{IMAGE, assert_others_have, eventually, installed, others_at_rest};
use support::kubectl::{Namespace, kubectl, run, text};

const NODES: [&str; 2] = ["node1", "node2"];
const GRANTED: &str = "veths.podnetwork.opdev.io,podsockets.podnetwork.opdev.io";

/// Someone with a token, in a namespace.
struct Tenant<'a> {
    namespace: &'a Namespace,
    token: String,
}

impl<'a> Tenant<'a> {
    /// A ServiceAccount that may write pods and the two kinds, and look at what came of it.
    fn new(namespace: &'a Namespace) -> Self {
        namespace.kubectl(&["create", "serviceaccount", "tenant"]);
        let all = "--verb=get,list,create,patch,delete";
        namespace.kubectl(&[
            "create",
            "role",
            "tenant",
            all,
            &format!("--resource=pods,pods/exec,{GRANTED}"),
        ]);
        namespace.kubectl(&[
            "create",
            "role",
            "looks",
            "--verb=get,list",
            "--resource=podnetworkstates.podnetwork.opdev.io",
        ]);
        let account = format!("--serviceaccount={}:tenant", namespace.name);
        for role in ["tenant", "looks"] {
            namespace.kubectl(&["create", "rolebinding", role, &format!("--role={role}"), &account]);
        }
        let token = format!("--token={}", namespace.kubectl(&["create", "token", "tenant"]).trim());
        Self { namespace, token }
    }

    fn create(&self, object: &Value) -> (bool, String) {
        self.namespace.feed(&[&self.token, "create", "-f", "-"], &object.to_string())
    }

    #[track_caller]
    fn creates(&self, object: &Value) {
        let (accepted, said) = self.create(object);
        assert!(accepted, "{said}");
    }

    #[track_caller]
    fn is_refused(&self, object: &Value, why: &str) {
        let (accepted, said) = self.create(object);
        assert!(!accepted && said.contains(why), "{said}");
    }

    /// What a command prints, good or bad.
    fn says(&self, words: &[&str]) -> String {
        text(&run(&[&[self.token.as_str(), "-n", &self.namespace.name], words].concat()))
    }
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"podnetwork.opdev.io/veth": "lan", "podnetwork.opdev.io/podsocket": "web"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {"runAsUser": 65532, "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "args": ["pause"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    })
}

#[test]
fn a_restricted_tenant_does_what_two_kinds_allow_and_nothing_else() {
    let _turn = installed();
    let namespace = Namespace::new("tenant");
    let neighbour = Namespace::new("neighbour");
    kubectl(&["label", "namespace", &namespace.name, "pod-security.kubernetes.io/enforce=restricted"]);
    let tenant = Tenant::new(&namespace);
    let (accepted, said) = neighbour.feed(&["create", "-f", "-"], &pod("theirs", "node1").to_string());
    assert!(accepted, "{said}");
    for name in ["one", "two"] {
        tenant.creates(&pod(name, "node1"));
    }
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=120s"]);
    neighbour.kubectl(&["wait", "--for=condition=Ready", "pod/theirs", "--timeout=120s"]);
    let before = others_at_rest(&NODES);

    // A network on pods that run.
    let lan = json!({"interfaceName": "lan0", "master": "tenantbr", "cidr": "10.90.0.0/24", "mtu": 1400});
    tenant.creates(&object("Veth", "lan", lan));
    let address = |pod: &str| {
        let shown = tenant.says(&["exec", pod, "--", "ip", "-4", "-o", "addr", "show", "dev", "lan0"]);
        shown.split("inet ").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned)
    };
    let seen = eventually(
        "both pods are on the network",
        || ["one", "two"].map(address),
        |seen| seen.iter().all(Option::is_some),
    );
    let other = seen[1].clone().unwrap();
    let ping = || tenant.says(&["exec", "one", "--", "ping", "-c", "1", "-W", "2", &other]);
    eventually("they reach each other", ping, |said| said.contains(" 0% packet loss"));
    let theirs = neighbour.kubectl(&["exec", "theirs", "--", "ip", "-o", "link"]);
    assert!(!theirs.contains("lan0"), "a label is of its namespace: {theirs}");
    let capabilities = tenant.says(&["exec", "one", "--", "grep", "CapEff", "/proc/1/status"]);
    assert!(capabilities.contains("0000000000000000"), "{capabilities}");

    // A change on the living interface, and a look at what stands.
    tenant.says(&["patch", "veth", "lan", "--type=merge", "-p", "{\"spec\":{\"mtu\":1300}}"]);
    let mtu = || tenant.says(&["exec", "one", "--", "ip", "-o", "link", "show", "dev", "lan0"]);
    eventually("the MTU is another", mtu, |said| said.contains("mtu 1300"));
    let state = tenant.says(&["get", "podnetworkstates", "one", "-o", "jsonpath={.status.interfaces}"]);
    assert_eq!(state, "1");

    // A low port, without a capability.
    let web =
        json!({"uid": 65532, "sockets": [{"name": "http", "type": "tcp", "address": "0.0.0.0", "port": 80}]});
    tenant.creates(&object("PodSocket", "web", web));
    let listens = || tenant.says(&["exec", "one", "--", "cat", "/proc/net/unix"]);
    eventually("the socket is offered", listens, |said| said.contains("@knit/sockets/web"));

    // Nothing else: no other kind, nothing of the cluster's, no privilege, nobody else's pods.
    for (kind, plural, spec) in [
        ("Bridge", "bridges", json!({"name": "tenantbr2"})),
        ("Macvlan", "macvlans", json!({"interfaceName": "m0", "parent": "eth0"})),
        ("VirtualNetwork", "virtualnetworks", json!({"subnets": ["10.91.0.0/24"]})),
        ("PodRoute", "podroutes", json!({"routes": [{"destination": "10.92.0.0/24", "via": "10.90.0.1"}]})),
        ("Uplink", "uplinks", json!({"link": "eth0", "namespaces": ["*"]})),
        ("PodAddressPool", "podaddresspools", json!({"cidr": "10.93.0.0/16"})),
    ] {
        tenant.is_refused(&object(kind, "more", spec), &format!("cannot create resource \"{plural}\""));
    }
    let raw = json!({"sockets": [{"name": "ping", "type": "raw", "protocol": "icmp"}]});
    tenant
        .is_refused(&object("PodSocket", "raw", raw), "raw and packet sockets are not granted to namespace");
    for (field, value) in [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/containers/0/securityContext/capabilities", json!({"add": ["NET_ADMIN"]})),
        ("/spec/containers/0/securityContext/allowPrivilegeEscalation", json!(true)),
    ] {
        let mut greedy = pod("greedy", "node1");
        let (parent, last) = field.rsplit_once('/').unwrap();
        greedy.pointer_mut(parent).unwrap()[last] = value;
        tenant.is_refused(&greedy, "violates PodSecurity");
    }
    let elsewhere = text(&run(&[&tenant.token, "-n", &neighbour.name, "get", "veths.podnetwork.opdev.io"]));
    assert!(elsewhere.contains("forbidden"), "{elsewhere}");
    let node = tenant.says(&["label", "node", "node1", "mine=true"]);
    assert!(node.contains("forbidden"), "{node}");
    let written = tenant.says(&["delete", "podnetworkstates", "one"]);
    assert!(written.contains("forbidden"), "what Knit says is Knit's: {written}");

    // It names what is the node's, and gets something of its own: the bridge of the main CNI plugin is not touched.
    tenant.creates(&object(
        "Veth",
        "sly",
        json!({
            "selector": {"matchLabels": {"podnetwork.opdev.io/veth": "lan"}},
            "interfaceName": "sly0",
            "master": "cni0",
        }),
    ));
    let problem = || tenant.says(&["get", "veth", "sly", "-o", "jsonpath={.status.conditions[0].message}"]);
    eventually("it is said", problem, |said| said.contains("cni0"));
    let links = tenant.says(&["exec", "one", "--", "ip", "-o", "link"]);
    assert!(!links.contains("sly0"), "{links}");

    // Everything goes with its objects; what others have is as before.
    tenant.says(&["delete", "veth", "--all"]);
    tenant.says(&["delete", "podsocket", "--all"]);
    let links = || tenant.says(&["exec", "one", "--", "ip", "-o", "link"]);
    eventually("the pod is as it was", links, |said| !said.contains("lan0") && said.contains("eth0"));
    eventually("no socket is offered", listens, |said| !said.contains("@knit/sockets/"));
    assert_others_have(&before, &NODES);
}
