//! Creates cheap pods on a cluster and opens their network namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use knit_cri::{RuntimeClient, SandboxProcess};
use knit_kernel::Netns;
use knit_kube::kube::Api;
use knit_kube::kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::{KnitCluster, wait_until};
use knit_testcluster::{containerd_socket, node_name};

/// The image of every pod: the sandbox image, which every node has.
const IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// Enough for a hundred pods on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(400);

/// A running pod and its network namespace.
pub struct RunningPod {
    /// The name of the pod.
    pub name: String,
    /// Its network namespace.
    pub netns: Netns,
}

/// A pod to create.
pub struct PodSpec {
    /// The name of the pod.
    pub name: String,
    /// The number of its node.
    pub node: u8,
    /// The labels of the pod.
    pub labels: BTreeMap<String, String>,
}

/// Creates a namespace and waits for its default ServiceAccount, without which pods are rejected.
pub fn create_namespace(knit: &KnitCluster, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(knit.client().clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    knit.block_on(api.create(&PostParams::default(), &namespace)).context("cannot create the namespace")?;
    let accounts: Api<ServiceAccount> = Api::namespaced(knit.client().clone(), name);
    wait_until("the namespace has a default ServiceAccount", START_TIMEOUT, || {
        let account = knit.block_on(accounts.get_opt("default"))?;
        Ok(account.map(|_| ()).ok_or_else(|| "there is no ServiceAccount default".to_owned()))
    })
}

/// Creates a pod, bound to its node without the scheduler.
pub async fn create(api: &Api<Pod>, spec: &PodSpec) -> Result<()> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": spec.name, "labels": spec.labels},
        "spec": {
            "nodeName": node_name(spec.node),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never"}],
        },
    }))?;
    api.create(&PostParams::default(), &pod).await.with_context(|| format!("pod {}", spec.name))?;
    Ok(())
}

/// Deletes a pod without a grace period, if it exists.
pub async fn delete(api: &Api<Pod>, name: &str) -> Result<()> {
    match api.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(knit_kube::kube::Error::Api(error)) if error.code == 404 => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("pod {name}")),
    }
}

/// Creates pods and waits until all of them run.
pub fn create_running(knit: &KnitCluster, namespace: &str, specs: &[PodSpec]) -> Result<Vec<RunningPod>> {
    let api: Api<Pod> = Api::namespaced(knit.client().clone(), namespace);
    for spec in specs {
        knit.block_on(create(&api, spec))?;
    }
    wait_running(knit, namespace, specs.len())?;
    let mut found = network_namespaces(knit, namespace)?;
    specs
        .iter()
        .map(|spec| {
            let netns = found
                .remove(&spec.name)
                .with_context(|| format!("pod {} has no network namespace", spec.name))?;
            Ok(RunningPod { name: spec.name.clone(), netns })
        })
        .collect()
}

/// Waits until the namespace has this many pods and all of them run.
pub fn wait_running(knit: &KnitCluster, namespace: &str, number: usize) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(knit.client().clone(), namespace);
    let mut reported = 0;
    wait_until("the pods run", START_TIMEOUT, || {
        let listed = knit.block_on(api.list(&ListParams::default()))?.items;
        let runs = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
        };
        let running = listed.iter().filter(runs).count();
        if running >= reported + 25 {
            reported = running;
            eprintln!("  ...  {running} of {number} pods run");
        }
        let all = running == number && listed.len() == number;
        Ok(if all { Ok(()) } else { Err(format!("{running} of {} run, expected {number}", listed.len())) })
    })
}

/// The network namespaces of all running pods of a namespace, by pod name, from the container runtimes.
pub fn network_namespaces(knit: &KnitCluster, namespace: &str) -> Result<BTreeMap<String, Netns>> {
    let mut found = BTreeMap::new();
    for node in knit.cluster().node_numbers() {
        let socket = containerd_socket(knit.cluster(), node);
        knit.block_on(async {
            let (mut runtime, _) = RuntimeClient::connect(&socket).await?;
            for sandbox in runtime.running_sandboxes().await? {
                if sandbox.namespace != namespace {
                    continue;
                }
                let SandboxProcess::Pid(pid) = runtime.sandbox_process(&sandbox.id).await? else {
                    bail!("pod {} has no process", sandbox.name);
                };
                found.insert(sandbox.name, Netns::of_process(pid)?);
            }
            anyhow::Ok(())
        })?;
    }
    Ok(found)
}
