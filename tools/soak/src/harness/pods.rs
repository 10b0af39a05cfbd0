//! Pods to work on: cheap ones, and the way into their networks.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use knit_cri::{SandboxProcess, RuntimeClient};
use knit_kernel::Netns;
use knit_kube::kube::Api;
use knit_kube::kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use super::{Beside, until};
use knit_testcluster::{containerd_socket, node_name};

/// What a pod runs that only has to be there: the sandbox's own image, which every node has.
const IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// A hundred pods on a busy machine take this long at most.
const START: Duration = Duration::from_secs(400);

/// A pod whose network can be looked at.
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its network.
    pub netns: Netns,
}

/// A pod that is asked for.
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The number of its node.
    pub node: u8,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Makes a namespace, and waits until pods can be asked for in it.
pub fn make_namespace(beside: &Beside, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(beside.client().clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    beside.wait(api.create(&PostParams::default(), &namespace)).context("cannot make a namespace")?;
    let accounts: Api<ServiceAccount> = Api::namespaced(beside.client().clone(), name);
    until("the namespace has its account", START, || {
        let there = beside.wait(accounts.get_opt("default"))?;
        Ok(there.map(|_| ()).ok_or_else(|| "there is no ServiceAccount default".to_owned()))
    })
}

/// Asks for a pod. Without a scheduler: it is the node that matters.
pub async fn ask(api: &Api<Pod>, wanted: &Wanted) -> Result<()> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": wanted.name, "labels": wanted.labels},
        "spec": {
            "nodeName": node_name(wanted.node),
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never"}],
        },
    }))?;
    api.create(&PostParams::default(), &pod).await.with_context(|| format!("pod {}", wanted.name))?;
    Ok(())
}

/// Deletes a pod at once, if it is there.
pub async fn delete(api: &Api<Pod>, name: &str) -> Result<()> {
    match api.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(knit_kube::kube::Error::Api(why)) if why.code == 404 => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("pod {name}")),
    }
}

/// Makes pods, and waits until all of them run.
pub fn run(beside: &Beside, namespace: &str, wanted: &[Wanted]) -> Result<Vec<Running>> {
    let api: Api<Pod> = Api::namespaced(beside.client().clone(), namespace);
    for one in wanted {
        beside.wait(ask(&api, one))?;
    }
    wait(beside, namespace, wanted.len())?;
    let mut found = networks(beside, namespace)?;
    wanted
        .iter()
        .map(|one| {
            let netns =
                found.remove(&one.name).with_context(|| format!("pod {} has no network", one.name))?;
            Ok(Running { name: one.name.clone(), netns })
        })
        .collect()
}

/// Waits until so many pods of a namespace run, and no others are there.
pub fn wait(beside: &Beside, namespace: &str, number: usize) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(beside.client().clone(), namespace);
    let mut told = 0;
    until("the pods run", START, || {
        let listed = beside.wait(api.list(&ListParams::default()))?.items;
        let runs = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
        };
        let running = listed.iter().filter(runs).count();
        if running >= told + 25 {
            told = running;
            eprintln!("  ...  {running} of {number} pods run");
        }
        let all = running == number && listed.len() == number;
        Ok(if all { Ok(()) } else { Err(format!("{running} of {} run, {number} are wanted", listed.len())) })
    })
}

/// The networks of all pods of a namespace that run, by name, as the container runtimes know them.
pub fn networks(beside: &Beside, namespace: &str) -> Result<BTreeMap<String, Netns>> {
    let mut found = BTreeMap::new();
    for node in beside.cluster().node_numbers() {
        let socket = containerd_socket(beside.cluster(), node);
        beside.wait(async {
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
