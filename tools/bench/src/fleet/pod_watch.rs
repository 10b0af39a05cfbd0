//! Ways to watch the labels and addresses of all pods, which network policy needs: what each costs one agent.
//!
//! A process with the library of the agents watches all pods in one form and keeps labels and addresses, nothing else.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use knit_kernel::memory;
use knit_kube::WatchUpdate;
use knit_kube::kube::api::{ApiResource, DynamicObject, GroupVersionKind, Object, ObjectMeta};
use knit_kube::kube::core::PartialObjectMeta;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Client};
use serde::{Deserialize, Serialize};

/// The label of slices, and the key of their pods.
pub const SLICE_LABEL: &str = "knit-bench/pod-slice";
pub const SLICE_KEY: &str = "pods";
/// Page size of lists, as of the agents' lists of large objects.
const PAGE_SIZE: u32 = 100;

/// Arguments of the watching process.
#[derive(Args)]
pub struct Options {
    /// The kubeconfig
    #[arg(long)]
    kubeconfig: PathBuf,
    /// What is watched
    #[arg(long, value_enum)]
    form: Form,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Pods, completely
    Full,
    /// Pods as `PartialObjectMetadata`: labels, no addresses
    Metadata,
    /// Objects that a controller compiles, each with many pods
    Slices,
}

/// What policy needs of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyPod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its addresses.
    pub addresses: Vec<String>,
}

/// The part of a pod's spec that is kept: none.
#[derive(Clone, Debug, Default, Deserialize)]
struct NoSpec {}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatus {
    #[serde(default, rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodIp {
    ip: String,
}

type FullPod = Object<NoSpec, PodStatus>;

/// Waits for a line, then watches until this process is killed.
pub fn serve(options: &Options) -> Result<()> {
    memory::limit_arenas();
    // The memory of the process without a watch is measured first.
    std::io::stdin().read_exact(&mut [0]).context("the benchmark has ended")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let client = knit_kube::connect(Some(&options.kubeconfig)).await?;
        match options.form {
            Form::Full => watch_full(client).await,
            Form::Metadata => watch_metadata(client).await,
            Form::Slices => watch_slices(client).await,
        }
        Ok(())
    })
}

async fn watch_full(client: Client) {
    let api: Api<FullPod> = Api::all_with(client, &pods());
    let mut known = BTreeMap::new();
    let read = |pod: FullPod| {
        let addresses = pod.status.into_iter().flat_map(|status| status.pod_ips).map(|one| one.ip);
        policy_pod(pod.metadata, addresses.collect())
    };
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    knit_kube::watch("pods", api, config, |update| store(&mut known, update, read)).await;
}

async fn watch_metadata(client: Client) {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &pods());
    let mut known = BTreeMap::new();
    let read = |pod: PartialObjectMeta<DynamicObject>| policy_pod(pod.metadata, Vec::new());
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    knit_kube::watch("metadata of pods", api, config, |update| store(&mut known, update, read)).await;
}

async fn watch_slices(client: Client) {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "ConfigMap"), "configmaps");
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut known = BTreeMap::new();
    let read = |slice: DynamicObject| {
        let text = slice.data.pointer(&format!("/data/{SLICE_KEY}")).and_then(serde_json::Value::as_str);
        let pods: Vec<PolicyPod> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        (slice.metadata.name.unwrap_or_default(), pods)
    };
    let config = watcher::Config::default().labels(&format!("{SLICE_LABEL}=true")).page_size(PAGE_SIZE);
    knit_kube::watch("slices", api, config, |update| store(&mut known, update, read)).await;
}

fn pods() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods")
}

/// A pod by its uid.
fn policy_pod(metadata: ObjectMeta, addresses: Vec<String>) -> (String, PolicyPod) {
    let pod = PolicyPod {
        name: metadata.name.unwrap_or_default(),
        namespace: metadata.namespace.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
        addresses,
    };
    (metadata.uid.unwrap_or_default(), pod)
}

/// Keeps what was read of objects, by key.
fn store<K, V>(known: &mut BTreeMap<String, V>, update: WatchUpdate<K>, read: impl Fn(K) -> (String, V)) {
    match update {
        WatchUpdate::Listed(objects) => {
            *known = objects.into_iter().map(read).collect();
            // The list is not needed again.
            memory::trim();
        }
        WatchUpdate::Applied(object) => {
            let (key, value) = read(object);
            known.insert(key, value);
        }
        WatchUpdate::Deleted(object) => drop(known.remove(&read(object).0)),
    }
}
