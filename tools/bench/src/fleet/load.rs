//! Pods of the fleet, and objects for some of them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use knit_kube::kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::protocol::{self, FleetPod, SELECTED};
use crate::scale::manifests::{self, Create, MAX_NODES};
use knit_soak::harness::KnitCluster;

/// The namespace of the fleet's pods.
pub const NAMESPACE: &str = "fleet";
/// The number of nodes of an object: at most 16 can hold a block of its range.
const NODES_PER_OBJECT: usize = 10;
const VETHS: &str = "/apis/podnetwork.opdev.io/v1alpha1/namespaces/fleet/veths";
/// Concurrent requests.
const CONCURRENT: usize = 16;
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// The name of an agent's node. Foreign nodes are counted from the other end.
pub fn node(agent: usize) -> String {
    manifests::node_name(MAX_NODES - 1 - agent)
}

/// The Node object of an agent.
pub fn create_node(agent: usize) -> Create {
    manifests::node(MAX_NODES - 1 - agent)
}

/// The namespace of the fleet's pods, with the ServiceAccount that the controller manager would create.
pub fn create_namespace(number: usize) -> Create {
    match number {
        0 => Create { path: "/api/v1/namespaces".to_owned(), body: json!({"metadata": {"name": NAMESPACE}}) },
        _ => Create {
            path: format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"),
            body: json!({"metadata": {"name": "default"}}),
        },
    }
}

/// Creates pods on all nodes, as the scheduler leaves them. An object selects the first of each node.
pub fn create_pods(knit: &KnitCluster, agents: usize, pods: usize) -> Result<Vec<FleetPod>> {
    let all = (0..agents).flat_map(|agent| (0..pods).map(move |number| (agent, number)));
    let client = knit.client().clone();
    for_each(knit, all, move |(agent, number)| create_pod(client.clone(), agent, number))
}

async fn create_pod(client: Client, agent: usize, number: usize) -> Result<FleetPod> {
    let name = format!("{}-{number:03}", node(agent));
    let mut labels: BTreeMap<String, String> = [("app".to_owned(), "fleet".to_owned())].into();
    if number == 0 {
        labels.insert(SELECTED.to_owned(), object_name(object_of(agent)));
    }
    let body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node(agent),
            "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.example.com/fleet:v1"}],
        },
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let created = send(&client, Method::POST, &path, JSON, &body).await?;
    let uid = created.pointer("/metadata/uid").and_then(Value::as_str).context("the pod has no uid")?;
    Ok(FleetPod { agent, name, namespace: NAMESPACE.to_owned(), uid: uid.to_owned(), labels })
}

/// Reports pods as running, as kubelets do.
pub fn report_running(
    knit: &KnitCluster,
    pods: &[FleetPod],
    addresses: &BTreeMap<String, Vec<String>>,
) -> Result<()> {
    let all = pods.iter().map(|pod| (pod.name.clone(), addresses.get(&pod.uid).cloned().unwrap_or_default()));
    let client = knit.client().clone();
    for_each(knit, all, move |(name, addresses)| {
        let client = client.clone();
        async move {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/status");
            let body = json!({"status": running_status(&addresses)});
            send(&client, Method::PATCH, &path, MERGE, &body).await
        }
    })
    .map(drop)
}

/// The status of a running pod with these addresses.
pub fn running_status(addresses: &[String]) -> Value {
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({
        "phase": "Running",
        "podIP": addresses.first(),
        "podIPs": addresses.iter().map(|address| json!({"ip": address})).collect::<Vec<_>>(),
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": conditions.map(condition),
        "containerStatuses": [{
            "name": "main",
            "image": "registry.example.com/fleet:v1",
            "imageID": format!("registry.example.com/fleet@sha256:{:064x}", 7),
            "containerID": format!("containerd://{:064x}", 9),
            "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    })
}

/// Deletes pods, whose containers have ended.
pub fn delete_pods(knit: &KnitCluster, pods: &[FleetPod]) -> Result<()> {
    let client = knit.client().clone();
    let names = pods.iter().map(|pod| pod.name.clone());
    for_each(knit, names, move |name| {
        let client = client.clone();
        async move {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}");
            send(&client, Method::DELETE, &path, JSON, &json!({"gracePeriodSeconds": 0})).await
        }
    })
    .map(drop)
}

/// The number of the object that selects a pod on the node of an agent.
pub fn object_of(agent: usize) -> usize {
    agent / NODES_PER_OBJECT
}

fn object_name(number: usize) -> String {
    format!("hot-{number}")
}

fn object_path(number: usize) -> String {
    format!("{VETHS}/{}", object_name(number))
}

/// What happens to the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// They are created.
    Create,
    /// Their MTU is changed.
    Change,
    /// They are deleted.
    Delete,
}

/// Creates, changes or deletes the objects for the nodes of all agents. Returns when the request of each was sent.
pub fn step_objects(knit: &KnitCluster, agents: usize, step: Step) -> Result<BTreeMap<usize, u64>> {
    let client = knit.client().clone();
    let objects = 0..=object_of(agents - 1);
    let sent = for_each(knit, objects, move |number| {
        let client = client.clone();
        async move {
            let start = protocol::now();
            let (method, path, media_type, body) = request(step, number);
            send(&client, method, &path, media_type, &body).await?;
            Ok((number, start))
        }
    })?;
    Ok(sent.into_iter().collect())
}

fn request(step: Step, number: usize) -> (Method, String, &'static str, Value) {
    match step {
        Step::Create => {
            let body = json!({
                "apiVersion": "podnetwork.opdev.io/v1alpha1",
                "kind": "Veth",
                "metadata": {"name": object_name(number)},
                "spec": {
                    "interfaceName": "hot0", "master": format!("hotbr{number}"),
                    "cidr": format!("10.{}.0.0/16", 128 + number), "mtu": 1400,
                },
            });
            (Method::POST, VETHS.to_owned(), JSON, body)
        }
        Step::Change => (Method::PATCH, object_path(number), MERGE, json!({"spec": {"mtu": 1300}})),
        Step::Delete => (Method::DELETE, object_path(number), JSON, json!({})),
    }
}

/// Sends a request. The response has the object's metadata only.
pub async fn send(
    client: &Client,
    method: Method,
    path: &str,
    media_type: &str,
    body: &Value,
) -> Result<Value> {
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media_type);
    let request = request.header(ACCEPT, METADATA_ONLY).body(serde_json::to_vec(body)?)?;
    let text = client.request_text(request).await.with_context(|| format!("request of {path}"))?;
    serde_json::from_str(&text).with_context(|| format!("response of {path}"))
}

/// Runs requests for all items, some at a time. The results are in any order.
pub fn for_each<I: Send + 'static, T: Send + 'static, F>(
    knit: &KnitCluster,
    items: impl IntoIterator<Item = I>,
    request: impl Fn(I) -> F,
) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>> + Send + 'static,
{
    knit.block_on(async {
        let (mut running, mut results) = (JoinSet::new(), Vec::new());
        for item in items {
            if running.len() >= CONCURRENT {
                results.extend(
                    running.join_next().await.transpose().context("a request panicked")?.transpose()?,
                );
            }
            running.spawn(request(item));
        }
        while let Some(done) = running.join_next().await {
            results.push(done.context("a request panicked")??);
        }
        Ok(results)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_range_has_more_nodes_than_blocks() {
        let mut nodes = BTreeMap::<usize, usize>::new();
        (0..1_000).for_each(|agent| *nodes.entry(object_of(agent)).or_default() += 1);
        assert!(nodes.values().all(|nodes| *nodes <= 16), "{nodes:?}");
        let ranges: std::collections::BTreeSet<String> =
            nodes.keys().map(|number| request(Step::Create, *number).3["spec"]["cidr"].to_string()).collect();
        assert_eq!(ranges.len(), nodes.len());
        assert!(ranges.iter().all(|range| !range.contains(".256.")), "{ranges:?}");
    }
}
