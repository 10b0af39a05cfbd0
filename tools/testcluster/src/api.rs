//! Reads the state of the cluster with kubectl.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::daemon::{self, Readiness};
use super::layout::node_name;
use super::node;
use super::state::Cluster;
use knit_dev::process;

/// A node as Kubernetes reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    pub name: String,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// The message of its condition `Ready`.
    pub reason: String,
    /// Its internal addresses.
    pub addresses: Vec<String>,
    /// Its pod ranges, one per family.
    pub pod_ranges: Vec<String>,
    /// The kubelet's version.
    pub kubelet: String,
    /// The container runtime and its version.
    pub runtime: String,
}

/// The nodes that have registered.
pub fn nodes(cluster: &Cluster) -> Result<Vec<NodeSummary>> {
    let mut get = cluster.kubectl()?;
    get.args(["get", "nodes", "--output=json", "--request-timeout=10s"]);
    let list: Value = serde_json::from_str(&process::output(&mut get)?).context("kubectl get nodes")?;
    Ok(list["items"].as_array().into_iter().flatten().map(summarize).collect())
}

fn summarize(node: &Value) -> NodeSummary {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let status = &node["status"];
    let ready = list(&status["conditions"]).into_iter().find(|condition| condition["type"] == "Ready");
    let ready = ready.unwrap_or_default();
    let internal = list(&status["addresses"]).into_iter().filter(|address| address["type"] == "InternalIP");
    NodeSummary {
        name: text(&node["metadata"]["name"]),
        ready: ready["status"] == "True",
        reason: text(&ready["message"]),
        addresses: internal.map(|address| text(&address["address"])).collect(),
        pod_ranges: list(&node["spec"]["podCIDRs"]).iter().map(text).collect(),
        kubelet: text(&status["nodeInfo"]["kubeletVersion"]),
        runtime: text(&status["nodeInfo"]["containerRuntimeVersion"]),
    }
}

/// Waits until every node is registered and meets a condition.
pub fn wait_for_nodes(
    cluster: &Cluster,
    what: &str,
    timeout: Duration,
    is_good: impl Fn(&NodeSummary) -> bool,
) -> Result<Vec<NodeSummary>> {
    let components: Vec<String> = cluster
        .node_numbers()
        .map(node::kubelet_component)
        .chain(["apiserver".to_owned(), "controller-manager".to_owned()])
        .collect();
    daemon::wait(cluster, what, timeout, &components, || {
        let registered = match nodes(cluster) {
            Ok(registered) => registered,
            Err(error) => return Ok(Readiness::NotYet(format!("{error:#}"))),
        };
        for number in cluster.node_numbers() {
            let name = node_name(number);
            match registered.iter().find(|node| node.name == name) {
                None => return Ok(Readiness::NotYet(format!("{name} has not registered"))),
                Some(node) if !is_good(node) => {
                    return Ok(Readiness::NotYet(format!("{name}: {}", node.reason)));
                }
                Some(_) => {}
            }
        }
        Ok(Readiness::Ready(registered))
    })
}

/// The state of CoreDNS's pods in one line.
pub fn dns_pod_status(cluster: &Cluster) -> String {
    let get = || -> Result<String> {
        let mut get = cluster.kubectl()?;
        get.args(["get", "pods", "--namespace=kube-system", "--selector=k8s-app=kube-dns", "--no-headers"]);
        process::output(get.arg("--request-timeout=10s"))
    };
    get().map_or_else(|error| format!("{error:#}"), |text| text.trim().replace('\n', "; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_from_its_object() {
        let object = serde_json::json!({
            "metadata": {"name": "node1"},
            "spec": {"podCIDRs": ["10.224.0.0/24", "fd00:e0::/64"]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "172.30.0.11"}, {"type": "Hostname", "address": "node1"}],
                "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.4", "containerRuntimeVersion": "containerd://2.4.2"},
            },
        });
        let node = summarize(&object);
        assert!(node.ready);
        assert_eq!(node.addresses, ["172.30.0.11"]);
        assert_eq!(node.pod_ranges.len(), 2);
        assert!(!summarize(&serde_json::json!({"metadata": {"name": "new"}})).ready);
    }
}
