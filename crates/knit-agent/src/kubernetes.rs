//! The node in a cluster, with the profiles `beside` and `primary`: objects come from the API server, pods from there and from the
//! container runtime.
//!
//! Watches feed the event loop with the same events as a directory of manifests and `knit sandbox add`. They decide nothing:
//! [`knit_engine::objects`] and [`knit_engine::pods`] interpret what they read, [`knit_crds::states`] renders the status that is written
//! back. While the API server or the runtime is unavailable, everything stays as it is.

/// Implements `Resource` for a struct that holds a subset of another resource's fields, so that it can be watched in its place. Its
/// metadata is in the field `metadata`.
macro_rules! impl_resource_subset {
    ($subset:ty, $resource:ty) => {
        impl knit_kube::kube::Resource for $subset {
            type DynamicType = ();
            type Scope = <$resource as knit_kube::kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$resource as knit_kube::kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$resource as knit_kube::kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$resource as knit_kube::kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$resource as knit_kube::kube::Resource>::plural(&())
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

mod address_capacity;
mod attachments;
mod blocks;
mod container_start;
mod informers;
mod namespaces;
mod network_status;
mod nodes;
mod objects;
mod overlay;
mod pod_events;
mod pods;
pub(crate) mod policies;
mod published_key;
mod quotas;
mod readiness_gates;
mod remote_pods;
mod repair_events;
mod runtime;
mod secrets;
mod service_ranges;
mod services;
mod state_follower;
mod status_writer;
mod tenant_ranges;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use knit_crds::Object;
use knit_engine::Event;
use knit_engine::pod_annotations::DefinitionEvent;
use knit_engine::pods::PodEvent;
use knit_ipam::Time;
use knit_kube::kube::Client;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot, watch};

use crate::config::{Config, Profile, ServiceProxy};
use crate::daemon::Handle;
use crate::error::Result;
use crate::node::ApiRequest;

pub use runtime::SandboxSource;

/// Shared by all watches and writers.
#[derive(Clone)]
struct Context {
    client: Client,
    /// The URL of the API server.
    api_server: Arc<str>,
    handle: Handle,
    node: Arc<str>,
    /// The reference of the monotonic clock.
    started: Instant,
    /// Wakes the container runtime watch: pods may have a new sandbox.
    sandboxes_changed: Arc<Notify>,
    /// Wakes the status writer: pods changed, perhaps without a change of sandboxes.
    pods_changed: Arc<Notify>,
    /// The inputs of the cluster network's ranges.
    network_inputs: Arc<nodes::NetworkInputs>,
    /// Wakes the overlay task: networks, blocks or this node changed.
    overlay_changed: Arc<Notify>,
    /// Wakes the remote pods task: egress gateways changed.
    gateways_changed: Arc<Notify>,
    /// Wakes the watches of pods of policies: policies or namespaces changed.
    policies_changed: Arc<watch::Sender<()>>,
    /// Wakes the health checks of Services: Services or endpoints changed.
    services_changed: Arc<Notify>,
    /// Wakes the writer of readiness gates: pods changed.
    gates_changed: Arc<Notify>,
    /// Wakes the writer of network status annotations: pods or definitions changed.
    networks_changed: Arc<Notify>,
    /// Number of [`informers`] that have not synced yet.
    unsynced: Arc<AtomicUsize>,
}

impl Context {
    /// Milliseconds of the monotonic clock.
    fn monotonic_now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Submits a change of pods. Writers that are woken query the loop after it has handled the change.
    fn submit_pods(&self, event: PodEvent) {
        self.handle.submit(Event::Pods(event));
        self.wake_pod_writers();
    }

    /// Wakes the writers whose output depends on pods.
    fn wake_pod_writers(&self) {
        self.pods_changed.notify_one();
        self.gates_changed.notify_one();
        self.networks_changed.notify_one();
    }
}

/// Starts all watches. They run as long as the async runtime of the calling task.
pub async fn start(config: &Config, handle: &Handle) -> Result<()> {
    let socket = named(&config.cri_socket).map(PathBuf::from);
    start_with(config, handle, SandboxSource::Runtime(socket)).await
}

/// The same, with sandboxes from another source than the configured container runtime.
pub async fn start_with(config: &Config, handle: &Handle, sandboxes: SandboxSource) -> Result<()> {
    let connection = knit_kube::connection(named(&config.kubeconfig)).await?;
    let api_server = connection.cluster_url.to_string().into();
    let client = knit_kube::client(connection)?;
    let reads_definitions = config.network_attachments.read;
    let context = Context {
        client,
        api_server,
        handle: handle.clone(),
        node: config.node_name.as_str().into(),
        started: Instant::now(),
        sandboxes_changed: Arc::default(),
        pods_changed: Arc::default(),
        network_inputs: Arc::default(),
        overlay_changed: Arc::default(),
        gateways_changed: Arc::default(),
        policies_changed: Arc::default(),
        services_changed: Arc::default(),
        gates_changed: Arc::default(),
        networks_changed: Arc::default(),
        // One for each kind, the pods, the container runtime, and the NetworkAttachmentDefinitions.
        unsynced: Arc::new(AtomicUsize::new(Object::kinds().len() + 2 + usize::from(reads_definitions))),
    };
    tracing::info!(node = config.node_name, "watching the API server and the container runtime");
    let (known, blocks_known) = oneshot::channel();
    if let Some(requests) = handle.take_api_requests() {
        tokio::spawn(execute_requests(context.clone(), requests));
        tokio::spawn(blocks::run(context.clone(), known));
    }
    if config.profile == Profile::Primary {
        tokio::spawn(nodes::run(context.clone(), config.cluster_network.clone()));
        tokio::spawn(namespaces::run(context.clone()));
        tokio::spawn(remote_pods::run(context.clone()));
        if config.cluster_network.service_proxy == ServiceProxy::Knit {
            tokio::spawn(services::run(context.clone()));
        }
    }
    tokio::spawn(policies::run(context.clone(), config.policy_enforcement()));
    tokio::spawn(service_ranges::run(context.clone()));
    tokio::spawn(tenant_ranges::run(context.clone()));
    tokio::spawn(overlay::run(context.clone(), config.profile, config.cluster_network.clone()));
    let nri = config.nri_socket();
    tokio::spawn(async move {
        // Without its blocks, an agent that lost its state would reject the addresses of running pods.
        let _ = blocks_known.await;
        start_watches(&context, sandboxes, reads_definitions);
        if let Some(socket) = nri {
            tokio::spawn(container_start::run(context, socket));
        }
    });
    Ok(())
}

/// Executes the engine's requests to the API server, each in a task of its own.
async fn execute_requests(context: Context, mut requests: UnboundedReceiver<ApiRequest>) {
    while let Some(request) = requests.recv().await {
        let context = context.clone();
        match request {
            ApiRequest::Block(request) => drop(tokio::spawn(blocks::execute(context, request))),
            ApiRequest::ClaimQuota(request) => drop(tokio::spawn(quotas::claim(context, request))),
        }
    }
}

fn start_watches(context: &Context, sandboxes: SandboxSource, reads_definitions: bool) {
    for kind in Object::kinds() {
        tokio::spawn(objects::run(context.clone(), kind));
    }
    tokio::spawn(pods::run(context.clone()));
    match sandboxes {
        SandboxSource::Runtime(socket) => drop(tokio::spawn(runtime::run(context.clone(), socket))),
        SandboxSource::Lists(lists) => drop(tokio::spawn(runtime::run_lists(context.clone(), lists))),
    }
    if reads_definitions {
        tokio::spawn(attachments::run(context.clone()));
        tokio::spawn(network_status::run(context.clone()));
    } else {
        context.handle.submit(Event::Definitions(DefinitionEvent::NotRead));
    }
    if let Some(secrets) = context.handle.secrets() {
        tokio::spawn(secrets::run(context.clone(), Arc::clone(secrets)));
    }
    tokio::spawn(repair_events::run(context.clone()));
    tokio::spawn(status_writer::run(context.clone()));
    tokio::spawn(readiness_gates::run(context.clone()));
}

fn named(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}
