//! The cluster: one node that runs, full of pods, then thousands of nodes, pods and objects in the API server only.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use http::Request;

use super::api;
use super::manifests::{self, Load};
use knit_dev::places;
use knit_dev::progress::{Step, seconds};
use knit_soak::harness::KnitCluster;
use knit_soak::harness::pods::{self, PodSpec};
use knit_testcluster::node_name;

/// The number of pods on the measured node, which is the kubelet's default limit. Pods of the control plane and of Knit count.
pub const LOCAL_PODS: usize = 110;
/// The namespace of the measured node's pods.
const NAMESPACE: &str = "local";
/// Programs of the control plane.
const CONTROL_PLANE: [&str; 2] = ["etcd", "kube-apiserver"];

/// Installs the definitions of Knit's kinds.
pub fn install_kinds(knit: &KnitCluster) -> Result<()> {
    let folder = places::workspace().join("deploy/crds");
    knit.kubectl(&["apply", "--server-side", "-k", &folder.display().to_string()])?;
    let ranges = places::workspace().join("deploy/admission/clusterranges.yaml");
    knit.kubectl(&["apply", "--server-side", "-f", &ranges.display().to_string()])?;
    knit.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).map(drop)
}

/// Starts pods on the measured node until it has as many as it can have.
pub fn start_pods(knit: &KnitCluster) -> Result<()> {
    let running = pods_of_node(knit)?;
    ensure!(running <= LOCAL_PODS, "the node already has {running} pods");
    let step = Step::start(format!("start {} pods", LOCAL_PODS - running));
    pods::create_namespace(knit, NAMESPACE)?;
    let spec = |number| PodSpec { name: format!("pod-{number:03}"), node: 1, labels: BTreeMap::new() };
    pods::create_running(knit, NAMESPACE, &(0..LOCAL_PODS - running).map(spec).collect::<Vec<_>>())?;
    step.done();
    Ok(())
}

/// The path of one of these pods, which has a complete status.
pub fn local_pod_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/pod-000")
}

fn pods_of_node(knit: &KnitCluster) -> Result<usize> {
    let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", node_name(1));
    let request = Request::get(path).body(Vec::new())?;
    let text = knit.block_on(knit.client().request_text(request)).context("cannot list pods")?;
    let list: serde_json::Value = serde_json::from_str(&text)?;
    Ok(list["items"].as_array().map_or(0, Vec::len))
}

/// Fills the API server, nodes first. Each kind is a line of the remark that is returned.
pub fn fill(knit: &KnitCluster, load: Load) -> Result<String> {
    let namespaces = load.namespaces();
    create(knit, "namespaces", namespaces, manifests::create_namespace)?;
    create(knit, "service accounts", namespaces, manifests::service_account)?;
    let objects = create(knit, "objects of Knit", load.objects, manifests::object)?;
    let pods = create(knit, "pods", load.pods, move |number| load.pod(number))?;
    Ok(format!("created {objects}, {pods}"))
}

/// Creates the Nodes.
pub fn add_nodes(knit: &KnitCluster, load: Load) -> Result<String> {
    create(knit, "nodes", load.nodes, manifests::node)
}

fn create(
    knit: &KnitCluster,
    what: &str,
    number: usize,
    object: impl Fn(usize) -> manifests::Create + Send + Sync + 'static,
) -> Result<String> {
    let step = Step::start(format!("create {number} {what}"));
    let time = api::create_all(knit, what, number, object)?;
    let rate = format!("{:.0} per second", number as f64 / time.as_secs_f64());
    step.done_with(&rate);
    Ok(format!("{number} {what} in {} ({rate})", seconds(time)))
}

/// A remark about the memory of the API server and its store.
pub fn control_plane_memory(knit: &KnitCluster) -> Result<String> {
    let mut found = Vec::new();
    for pid in knit_testcluster::processes(knit.cluster())? {
        // A process may end between these reads.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        if let Some(kibibytes) = resident.filter(|_| CONTROL_PLANE.contains(&name.trim())) {
            found.push(format!("{} {:.1} GiB", name.trim(), kibibytes / f64::from(1 << 20)));
        }
    }
    Ok(format!("resident memory: {}", found.join(", ")))
}
