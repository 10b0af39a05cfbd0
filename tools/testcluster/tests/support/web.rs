//! Pods that serve HTTP, and requests to them.

use std::net::IpAddr;

use super::kubectl::{Namespace, run};
use super::operator::IMAGE;

/// A pod that serves HTTP on a port, in its own network or in its node's.
pub fn pod(name: &str, node: &str, port: u16, host_network: bool) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{net: 'yes'}}}}
spec:
  nodeName: {node}
  hostNetwork: {host_network}
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

/// The URL of a page.
pub fn url(to: IpAddr, port: u16, path: &str) -> String {
    let to = if to.is_ipv6() { format!("[{to}]") } else { to.to_string() };
    format!("http://{to}:{port}/{path}")
}

/// The response to a request from inside a pod, if there is one.
pub fn request(namespace: &Namespace, pod: &str, to: IpAddr, port: u16, path: &str) -> Option<String> {
    let url = url(to, port, path);
    let args = ["-n", &namespace.name, "exec", pod, "--", "curl", "-sS", "-g", "--max-time", "5", &url];
    let output = run(&args);
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
