//! Sockets for unprivileged pods, on a real cluster: a namespace with `restricted` pod security, a tenant with and one without the
//! right to create PodSockets, and a DHCP server on port 67 in a pod without capabilities.
//!
//! Run by `cargo xtask test cluster`, which loads the image and has built the example `dhcp-responder`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod operator;
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod programs;
}

use support::kubectl::{Namespace, kubectl};
use support::operator::{IMAGE, eventually, installed};
use support::programs::{copy, files, script};

const DHCP: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodSocket
metadata: {name: dhcp}
spec:
  uid: 65532
  sockets: [{name: server, type: udp, address: 0.0.0.0, port: 67, interface: eth0}]
";
const RAW: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PodSocket
metadata: {name: ping}
spec:
  sockets: [{name: ping, type: raw, protocol: icmp}]
";

/// A pod that meets the `restricted` level, with a directory for a program.
fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{'podnetwork.opdev.io/podsocket': dhcp}}}}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  securityContext: {{runAsUser: 65532, runAsGroup: 65532, runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  volumes: [{{name: data, emptyDir: {{}}}}]
  containers:
  - name: main
    image: {IMAGE}
    imagePullPolicy: Never
    args: [pause]
    volumeMounts: [{{name: data, mountPath: /data}}]
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"
    )
}

/// The token of a ServiceAccount with all rights on one kind in its namespace.
fn tenant(namespace: &Namespace, name: &str, kind: &str) -> String {
    namespace.kubectl(&["create", "serviceaccount", name]);
    let verbs = "--verb=get,list,create,update,patch,delete";
    namespace.kubectl(&["create", "role", name, verbs, &format!("--resource={kind}")]);
    let account = format!("--serviceaccount={}:{name}", namespace.name);
    namespace.kubectl(&["create", "rolebinding", name, &format!("--role={name}"), &account]);
    format!("--token={}", namespace.kubectl(&["create", "token", name]).trim())
}

#[test]
fn a_restricted_pod_serves_port_67_and_only_with_a_grant() {
    let _exclusive = installed();
    let namespace = Namespace::new("sockets");
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    kubectl(&["label", "namespace", &namespace.name, restricted]);
    let granted = tenant(&namespace, "granted", "podsockets.podnetwork.opdev.io");
    let other = tenant(&namespace, "other", "veths.podnetwork.opdev.io");

    // Without the grant it is rejected.
    let apply = |token: &str, object: &str| namespace.feed(&[token, "create", "-f", "-"], object);
    let (accepted, output) = apply(&other, DHCP);
    assert!(!accepted && output.contains("cannot create resource \"podsockets\""), "{output}");
    let rejection = "raw and packet sockets are not granted to namespace";
    let output = eventually(
        "raw sockets are rejected",
        || apply(&granted, RAW).1,
        |output| output.contains(rejection),
    );
    assert!(output.contains("podnetwork.opdev.io/raw-sockets=allowed"), "{output}");

    namespace.apply(&pod("server"));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/server", "--timeout=120s"]);
    for file in ["dhcp-responder", "icmp-ping"].map(files).into_iter().flatten() {
        copy(&namespace, "server", &file, "/data");
    }
    let start = |wait: u32| {
        format!(
            "LD_LIBRARY_PATH=/data /data/dhcp-responder --wait {wait} dhcp server 192.168.106.2 192.168.106.9"
        )
    };
    let output = script(&namespace, "server", &start(0));
    assert!(output.contains("no sockets are offered at @knit/sockets/dhcp"), "{output}");

    let (accepted, output) = apply(&granted, DHCP);
    assert!(accepted, "{output}");
    namespace.kubectl(&["wait", "--for=condition=Ready", "podsocket/dhcp", "--timeout=60s"]);
    let shown = namespace.kubectl(&["get", "podsocket", "dhcp", "-o", "json"]);
    assert!(shown.contains("{socket:server udp 0.0.0.0:67 on eth0}"), "{shown}");
    script(&namespace, "server", &format!("{} > /data/log 2>&1 &", start(30)));
    let log = || script(&namespace, "server", "cat /data/log");
    eventually("it listens on port 67", log, |output| output.contains("listening on 0.0.0.0:67"));
    assert!(
        script(&namespace, "server", "grep CapEff /proc/$(pidof dhcp-responder)/status")
            .contains("0000000000000000")
    );

    // A broadcast request from the pod itself: the fields up to the cookie are zero except for the first three.
    let discover = "{ printf '\\001\\001\\006'; head -c 233 /dev/zero; printf '\\143\\202\\123\\143\\065\\001\\001\\377'; }";
    let address = namespace.kubectl(&["get", "pod", "server", "-o", "jsonpath={.status.podIP}"]);
    let request =
        || script(&namespace, "server", &format!("{discover} | nc -u -w 1 {address} 67; cat /data/log"));
    eventually("it leases an address", request, |output| output.contains("leased 192.168.106.9"));

    // A second server gets an error for the used port; deleting the object removes the name, and the server keeps running.
    let output = script(&namespace, "server", &start(0));
    assert!(output.contains("address in use by an earlier client"), "{output}");
    namespace.kubectl(&["delete", "podsocket", "dhcp", "--timeout=60s"]);
    let restart = || script(&namespace, "server", &start(0));
    eventually("the socket is not offered", restart, |output| output.contains("no sockets are offered"));
    assert!(!script(&namespace, "server", "pidof dhcp-responder").is_empty());

    // An admin grants raw sockets to the namespace; the agent, confined as deployed, opens one for the pod.
    kubectl(&["label", "namespace", &namespace.name, "podnetwork.opdev.io/raw-sockets=allowed"]);
    eventually("raw sockets are granted", || apply(&granted, RAW), |(accepted, _)| *accepted);
    namespace.kubectl(&["label", "--overwrite", "pod", "server", "podnetwork.opdev.io/podsocket=ping"]);
    namespace.kubectl(&["wait", "--for=condition=Ready", "podsocket/ping", "--timeout=60s"]);
    let gateway = script(&namespace, "server", "ip route show default | cut -d' ' -f3");
    let ping = format!("LD_LIBRARY_PATH=/data /data/icmp-ping ping ping {}", gateway.trim());
    let output = script(&namespace, "server", &ping);
    assert!(output.contains(&format!("reply from {}", gateway.trim())), "{output}");
}
