//! What Kubernetes says about the cluster, read with kubectl.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::daemon::{self, Look};
use super::layout::node_name;
use super::node;
use super::state::Cluster;
use knit_dev::process;

/// A node as Kubernetes sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Whether pods may run there.
    pub ready: bool,
    /// Why not, in Kubernetes' words.
    pub reason: String,
    /// Its own addresses.
    pub addresses: Vec<String>,
    /// What its pods get addresses from, one range per family.
    pub pod_ranges: Vec<String>,
    /// The kubelet's version.
    pub kubelet: String,
    /// The container runtime and its version.
    pub runtime: String,
}

/// The nodes that have registered.
pub fn nodes(cluster: &Cluster) -> Result<Vec<NodeView>> {
    let mut get = cluster.kubectl()?;
    get.args(["get", "nodes", "--output=json", "--request-timeout=10s"]);
    let list: Value = serde_json::from_str(&process::output(&mut get)?).context("kubectl get nodes")?;
    Ok(list["items"].as_array().into_iter().flatten().map(view).collect())
}

fn view(node: &Value) -> NodeView {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let status = &node["status"];
    let ready = list(&status["conditions"]).into_iter().find(|condition| condition["type"] == "Ready");
    let ready = ready.unwrap_or_default();
    let internal = list(&status["addresses"]).into_iter().filter(|address| address["type"] == "InternalIP");
    NodeView {
        name: text(&node["metadata"]["name"]),
        ready: ready["status"] == "True",
        reason: text(&ready["message"]),
        addresses: internal.map(|address| text(&address["address"])).collect(),
        pod_ranges: list(&node["spec"]["podCIDRs"]).iter().map(text).collect(),
        kubelet: text(&status["nodeInfo"]["kubeletVersion"]),
        runtime: text(&status["nodeInfo"]["containerRuntimeVersion"]),
    }
}

/// Waits until every node is there and `good`.
pub fn wait_for_nodes(
    cluster: &Cluster,
    what: &str,
    limit: Duration,
    good: impl Fn(&NodeView) -> bool,
) -> Result<Vec<NodeView>> {
    let parts: Vec<String> = cluster
        .node_numbers()
        .map(node::kubelet_part)
        .chain(["apiserver".to_owned(), "controller-manager".to_owned()])
        .collect();
    daemon::wait(cluster, what, limit, &parts, || {
        let seen = match nodes(cluster) {
            Ok(seen) => seen,
            Err(error) => return Ok(Look::NotYet(format!("{error:#}"))),
        };
        for number in cluster.node_numbers() {
            let name = node_name(number);
            match seen.iter().find(|node| node.name == name) {
                None => return Ok(Look::NotYet(format!("{name} has not registered"))),
                Some(node) if !good(node) => return Ok(Look::NotYet(format!("{name}: {}", node.reason))),
                Some(_) => {}
            }
        }
        Ok(Look::Done(seen))
    })
}

/// The state of CoreDNS' pods, in a line for people.
pub fn pods_of_dns(cluster: &Cluster) -> String {
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
        let node = view(&object);
        assert!(node.ready);
        assert_eq!(node.addresses, ["172.30.0.11"]);
        assert_eq!(node.pod_ranges.len(), 2);
        assert!(!view(&serde_json::json!({"metadata": {"name": "new"}})).ready);
    }
}
