//! Pods that answer HTTP, and what they are asked.

use std::net::IpAddr;

use super::beside::IMAGE;
use super::kubectl::{Namespace, run};

/// A pod that answers HTTP on a port, in its own network or in its node's.
pub fn pod(name: &str, node: &str, port: u16, is_on_node: bool) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{net: 'yes'}}}}
spec:
  nodeName: {node}
  hostNetwork: {is_on_node}
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: "{IMAGE}", imagePullPolicy: Never, args: [netexec, --http-port={port}, --udp-port=-1]}}
---"#
    )
}

/// The pod's addresses, one of each family.
pub fn addresses(namespace: &Namespace, pod: &str) -> Vec<IpAddr> {
    let found = namespace.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"]);
    let all: Vec<IpAddr> = found.split_whitespace().map(|address| address.parse().unwrap()).collect();
    assert_eq!(all.len(), 2, "both families: {found}");
    all
}

/// Where a page is found.
pub fn url(to: IpAddr, port: u16, path: &str) -> String {
    let to = if to.is_ipv6() { format!("[{to}]") } else { to.to_string() };
    format!("http://{to}:{port}/{path}")
}

/// What a pod is told when it asks there, from a shell in it.
pub fn ask(namespace: &Namespace, pod: &str, to: IpAddr, port: u16, path: &str) -> Option<String> {
    let url = url(to, port, path);
    let words = ["-n", &namespace.name, "exec", pod, "--", "curl", "-sS", "-g", "--max-time", "5", &url];
    let output = run(&words);
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
