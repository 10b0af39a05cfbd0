//! An unprivileged tenant, on a real cluster: a namespace with `restricted` pod security, and a ServiceAccount with rights on
//! exactly two of Knit's kinds, Veth and PodSocket. It can do what these allow, on running pods, and nothing else.
//!
//! Run by `cargo xtask test cluster`, which loads the image.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
}

use serde_json::{Value, json};
use support::kubectl::{Namespace, kubectl, run, text};
use support::operator::{IMAGE, assert_foreign_state, eventually, installed, stable_foreign_state};

const NODES: [&str; 2] = ["node1", "node2"];
const GRANTED: &str = "veths.podnetwork.opdev.io,podsockets.podnetwork.opdev.io";

/// A user with a token, in a namespace.
struct Tenant<'a> {
    namespace: &'a Namespace,
    token: String,
}

impl<'a> Tenant<'a> {
    /// A ServiceAccount that may write pods and the two kinds, and read their state.
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
            "state-reader",
            "--verb=get,list",
            "--resource=podnetworkstates.podnetwork.opdev.io",
        ]);
        let account = format!("--serviceaccount={}:tenant", namespace.name);
        for role in ["tenant", "state-reader"] {
            namespace.kubectl(&["create", "rolebinding", role, &format!("--role={role}"), &account]);
        }
        let token = format!("--token={}", namespace.kubectl(&["create", "token", "tenant"]).trim());
        Self { namespace, token }
    }

    fn create(&self, object: &Value) -> (bool, String) {
        self.namespace.feed(&[&self.token, "create", "-f", "-"], &object.to_string())
    }

    #[track_caller]
    fn assert_creates(&self, object: &Value) {
        let (accepted, output) = self.create(object);
        assert!(accepted, "{output}");
    }

    #[track_caller]
    fn assert_rejected(&self, object: &Value, reason: &str) {
        let (accepted, output) = self.create(object);
        assert!(!accepted && output.contains(reason), "{output}");
    }

    /// Runs kubectl as the tenant; returns its output.
    fn kubectl(&self, args: &[&str]) -> String {
        text(&run(&[&[self.token.as_str(), "-n", &self.namespace.name], args].concat()))
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
fn a_restricted_tenant_can_do_what_two_kinds_allow_and_nothing_else() {
    let _exclusive = installed();
    let namespace = Namespace::new("tenant");
    let neighbour = Namespace::new("neighbour");
    kubectl(&["label", "namespace", &namespace.name, "pod-security.kubernetes.io/enforce=restricted"]);
    let tenant = Tenant::new(&namespace);
    let (accepted, output) = neighbour.feed(&["create", "-f", "-"], &pod("theirs", "node1").to_string());
    assert!(accepted, "{output}");
    for name in ["one", "two"] {
        tenant.assert_creates(&pod(name, "node1"));
    }
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=120s"]);
    neighbour.kubectl(&["wait", "--for=condition=Ready", "pod/theirs", "--timeout=120s"]);
    let before = stable_foreign_state(&NODES);

    // A network for running pods.
    let lan = json!({"interfaceName": "lan0", "master": "tenantbr", "cidr": "192.168.109.0/24", "mtu": 1400});
    tenant.assert_creates(&object("Veth", "lan", lan));
    let address = |pod: &str| {
        let shown = tenant.kubectl(&["exec", pod, "--", "ip", "-4", "-o", "addr", "show", "dev", "lan0"]);
        shown.split("inet ").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned)
    };
    let seen = eventually(
        "both pods are on the network",
        || ["one", "two"].map(address),
        |seen| seen.iter().all(Option::is_some),
    );
    let other = seen[1].clone().unwrap();
    let ping = || tenant.kubectl(&["exec", "one", "--", "ping", "-c", "1", "-W", "2", &other]);
    eventually("they reach each other", ping, |output| output.contains(" 0% packet loss"));
    let theirs = neighbour.kubectl(&["exec", "theirs", "--", "ip", "-o", "link"]);
    assert!(!theirs.contains("lan0"), "labels select within their namespace: {theirs}");
    let capabilities = tenant.kubectl(&["exec", "one", "--", "grep", "CapEff", "/proc/1/status"]);
    assert!(capabilities.contains("0000000000000000"), "{capabilities}");

    // A change of the existing interface, and its state.
    tenant.kubectl(&["patch", "veth", "lan", "--type=merge", "-p", "{\"spec\":{\"mtu\":1300}}"]);
    let mtu = || tenant.kubectl(&["exec", "one", "--", "ip", "-o", "link", "show", "dev", "lan0"]);
    eventually("the MTU is changed", mtu, |output| output.contains("mtu 1300"));
    let state = tenant.kubectl(&["get", "podnetworkstates", "one", "-o", "jsonpath={.status.interfaces}"]);
    assert_eq!(state, "1");

    // A privileged port without a capability.
    let web =
        json!({"uid": 65532, "sockets": [{"name": "http", "type": "tcp", "address": "0.0.0.0", "port": 80}]});
    tenant.assert_creates(&object("PodSocket", "web", web));
    let listens = || tenant.kubectl(&["exec", "one", "--", "cat", "/proc/net/unix"]);
    eventually("the socket is offered", listens, |output| output.contains("@knit/sockets/web"));

    // Nothing else: no other kind, no cluster resources, no privileges, no pods of others.
    for (kind, plural, spec) in [
        ("Bridge", "bridges", json!({"name": "tenantbr2"})),
        ("Macvlan", "macvlans", json!({"interfaceName": "m0", "parent": "eth0"})),
        ("VirtualNetwork", "virtualnetworks", json!({"subnets": ["192.168.108.0/24"]})),
        (
            "PodRoute",
            "podroutes",
            json!({"routes": [{"destination": "10.92.0.0/24", "via": "192.168.109.1"}]}),
        ),
        ("Uplink", "uplinks", json!({"link": "eth0", "namespaces": ["*"]})),
        ("PodAddressPool", "podaddresspools", json!({"cidr": "10.93.0.0/16"})),
    ] {
        tenant.assert_rejected(&object(kind, "more", spec), &format!("cannot create resource \"{plural}\""));
    }
    let raw = json!({"sockets": [{"name": "ping", "type": "raw", "protocol": "icmp"}]});
    tenant.assert_rejected(
        &object("PodSocket", "raw", raw),
        "raw and packet sockets are not granted to namespace",
    );
    for (field, value) in [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/containers/0/securityContext/capabilities", json!({"add": ["NET_ADMIN"]})),
        ("/spec/containers/0/securityContext/allowPrivilegeEscalation", json!(true)),
    ] {
        let mut greedy = pod("greedy", "node1");
        let (parent, last) = field.rsplit_once('/').unwrap();
        greedy.pointer_mut(parent).unwrap()[last] = value;
        tenant.assert_rejected(&greedy, "violates PodSecurity");
    }
    let other_namespace =
        text(&run(&[&tenant.token, "-n", &neighbour.name, "get", "veths.podnetwork.opdev.io"]));
    assert!(other_namespace.contains("forbidden"), "{other_namespace}");
    let node = tenant.kubectl(&["label", "node", "node1", "mine=true"]);
    assert!(node.contains("forbidden"), "{node}");
    let written = tenant.kubectl(&["delete", "podnetworkstates", "one"]);
    assert!(written.contains("forbidden"), "only Knit writes states: {written}");

    // The main CNI plugin's bridge is not usable as a master.
    tenant.assert_creates(&object(
        "Veth",
        "sly",
        json!({
            "selector": {"matchLabels": {"podnetwork.opdev.io/veth": "lan"}},
            "interfaceName": "sly0",
            "master": "cni0",
        }),
    ));
    let problem =
        || tenant.kubectl(&["get", "veth", "sly", "-o", "jsonpath={.status.conditions[0].message}"]);
    eventually("the conflict is reported", problem, |output| output.contains("cni0"));
    let links = tenant.kubectl(&["exec", "one", "--", "ip", "-o", "link"]);
    assert!(!links.contains("sly0"), "{links}");

    // Deleting the objects removes everything; foreign state is unchanged.
    tenant.kubectl(&["delete", "veth", "--all"]);
    tenant.kubectl(&["delete", "podsocket", "--all"]);
    let links = || tenant.kubectl(&["exec", "one", "--", "ip", "-o", "link"]);
    eventually("the pod is restored", links, |output| !output.contains("lan0") && output.contains("eth0"));
    eventually("no socket is offered", listens, |output| !output.contains("@knit/sockets/"));
    assert_foreign_state(&before, &NODES);
}
