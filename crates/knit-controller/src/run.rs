//! The controller process: watches in, effects out, while it holds the lease.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use knit_controller_engine::{
    Effect, Event, HeldBlock, NamespaceInfo, SegmentOptions, State, labels, sample, step,
};
use knit_crds::states::{NodeNetwork, PodAddressBlock, PodNetworkState};
use knit_crds::{KindInfo, Object};
use knit_engine::ObjectKey;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::core::PartialObjectMeta;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Client, Resource, ResourceExt};
use knit_kube::{EventRecorder, WatchUpdate, api_resource, parse_object};
use knit_policy::{APP_LABEL, is_isolated};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::effects::Executor;
use crate::health::{self, Health};
use crate::lease::Election;
use crate::service_info;

/// The delay after the first update, so that updates that arrive together are reconciled together.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The reconciliation interval while objects are pending.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// The reconciliation interval while blocks of deleted nodes await their expiry, or failed writes their repetition.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);
/// Pods with an address of the cluster network: neither on the host network nor ended.
const PODS_ON_THE_NETWORK: &str = "spec.hostNetwork=false,status.phase!=Succeeded,status.phase!=Failed";
/// Page size of lists of large objects: a page is in memory as a whole.
const PAGE_SIZE: u32 = 500;
/// The maximum number of concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// Options of the controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kubeconfig; defaults to the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the lease.
    pub namespace: String,
    /// The identity in the leader election: the pod's name.
    pub name: String,
    /// The image of sample Deployments, which sleeps when run with `pause`.
    pub sample_image: String,
    /// With a cluster network of Knit: whether the agents isolate namespaces and apps.
    pub cluster_network: Option<bool>,
    /// Whether the agents translate Services: only then Services of type LoadBalancer get addresses of pools.
    pub service_addresses: bool,
    /// The address of the health endpoint; `:9477` is every address of the pod, empty disables it.
    pub health_addr: String,
}

/// Why the controller ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No API server is configured.
    #[error(transparent)]
    Api(#[from] knit_kube::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// Another controller holds the lease, or it could not be renewed.
    #[error("lost the lease: another controller is the leader, or the API server is unavailable")]
    LeaseLost,
}

/// Runs until SIGTERM or SIGINT, or until the lease is lost.
pub fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| Error::System { what: "cannot create the async runtime", source })?;
    runtime.block_on(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let failed = |source| Error::System { what: "cannot handle signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let client = knit_kube::connect(options.kubeconfig.as_deref()).await?;
    let health = Health::default();
    if !options.health_addr.is_empty() {
        let served = health::serve(&options.health_addr, health.clone()).await;
        served.map_err(|source| Error::System { what: "cannot bind the health address", source })?;
    }
    let mut election = Election::new(client.clone(), &options.namespace, &options.name, health.clone());
    let lead = async {
        tracing::info!(identity = options.name, "waiting for the lease");
        election.acquire().await;
        tracing::info!("acquired the lease");
        tokio::select! {
            () = reconcile_loop(client, &options, &health) => {}
            () = election.renew_until_lost() => {}
        }
    };
    let ended = tokio::select! {
        () = lead => Err(Error::LeaseLost),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if ended.is_ok() {
        election.release().await;
    }
    ended
}

/// Watches, reconciles and writes.
async fn reconcile_loop(client: Client, options: &Options, health: &Health) {
    let (events, mut incoming) = unbounded_channel();
    watch_all(&client, &events);
    if options.cluster_network == Some(true) {
        watch_isolation(&client, &events);
    }
    if options.service_addresses {
        watch_services(&client, &events);
    }
    let recorder = EventRecorder::new(client.clone(), "knit-controller", &options.name);
    let executor = Executor { client, recorder, image: options.sample_image.clone() };
    let mut state = initial_state(options);
    health.set_unsynced(state.unsynced());
    while next_updates(&mut state, &mut incoming).await {
        health.set_unsynced(state.unsynced());
        let effects = step(&mut state, Event::Reconcile, now());
        let requests = effects.into_iter().map(|effect| {
            let object =
                key_of(&effect).and_then(|key| state.objects.get(key)).map(|tracked| tracked.object.clone());
            executor.execute(effect, object)
        });
        let failed: Vec<Event> = futures_util::stream::iter(requests)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .filter_map(|one| async { one })
            .collect()
            .await;
        for event in failed {
            step(&mut state, event, now());
        }
    }
}

fn initial_state(options: &Options) -> State {
    let segments = options.cluster_network.map(|isolation| {
        State::with_segments(SegmentOptions { namespace: options.namespace.clone(), isolation })
    });
    let state = segments.unwrap_or_default();
    if options.service_addresses { state.with_service_addresses() } else { state }
}

fn key_of(effect: &Effect) -> Option<&ObjectKey> {
    match effect {
        Effect::CreateSample { key, .. } => Some(key),
        _ => None,
    }
}

/// Handles at least one update, or returns after the interval of pending work. Returns whether to continue.
async fn next_updates(state: &mut State, incoming: &mut UnboundedReceiver<Event>) -> bool {
    let first = if state.needs_reconcile() {
        timeout(RETRY_INTERVAL, incoming.recv()).await.ok()
    } else if state.has_missing_nodes() || state.has_failed_segments() || state.has_failed_services() {
        timeout(EXPIRY_INTERVAL, incoming.recv()).await.ok()
    } else {
        Some(incoming.recv().await)
    };
    match first {
        Some(Some(event)) => {
            step(state, event, now());
            sleep(BATCH_DELAY).await;
        }
        Some(None) => return false,
        None => {}
    }
    while let Ok(event) = incoming.try_recv() {
        step(state, event, now());
    }
    true
}

fn watch_all(client: &Client, events: &UnboundedSender<Event>) {
    for kind in Object::kinds() {
        tokio::spawn(watch_kind(client.clone(), kind, events.clone()));
    }
    let pods = Api::<PodNetworkState>::all(client.clone());
    spawn_watch(
        pods,
        "podnetworkstates",
        watcher::Config::default(),
        events,
        |state| {
            let name = (state.namespace().unwrap_or_default(), state.name_any());
            (name, state.status.unwrap_or_default())
        },
        Event::PodStates,
    );
    let nodes = Api::<NodeNetwork>::all(client.clone());
    spawn_watch(
        nodes,
        "nodenetworks",
        watcher::Config::default(),
        events,
        |state| (state.name_any(), state.status.unwrap_or_default()),
        Event::NodeNetworks,
    );
    let blocks = Api::<PodAddressBlock>::all(client.clone());
    spawn_watch(
        blocks,
        "podaddressblocks",
        watcher::Config::default(),
        events,
        |block| (block.name_any(), HeldBlock { uid: block.uid().unwrap_or_default(), node: block.spec.node }),
        Event::Blocks,
    );
    let cluster_nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
    let read = |node: PartialObjectMeta<Node>| (node.name_any(), labels::owned(node.labels()));
    spawn_watch(cluster_nodes, "nodes", watcher::Config::default(), events, read, Event::ClusterNodes);
    let samples = Api::<Deployment>::all(client.clone());
    let labelled = watcher::Config::default().labels(sample::OWNER_LABEL);
    spawn_watch(
        samples,
        "sample deployments",
        labelled,
        events,
        |deployment| {
            let of = deployment.labels().get(sample::OWNER_LABEL).cloned().unwrap_or_default();
            ((deployment.namespace().unwrap_or_default(), deployment.name_any()), of)
        },
        Event::Samples,
    );
}

/// Watches what isolates pods of the cluster network: annotations and labels of Namespaces, and labels of pods.
fn watch_isolation(client: &Client, events: &UnboundedSender<Event>) {
    let namespaces = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
    let read = |namespace: PartialObjectMeta<Namespace>| {
        let info = NamespaceInfo {
            isolated: is_isolated(namespace.labels(), namespace.annotations()),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
        };
        (namespace.name_any(), info)
    };
    spawn_watch(namespaces, "namespaces", watcher::Config::default(), events, read, Event::Namespaces);
    let pods = Api::<PartialObjectMeta<Pod>>::all(client.clone());
    let of_apps = watcher::Config::default().labels(APP_LABEL).fields(PODS_ON_THE_NETWORK);
    let read = |pod: PartialObjectMeta<Pod>| {
        let app = pod.labels().get(APP_LABEL).cloned().unwrap_or_default();
        ((pod.namespace().unwrap_or_default(), pod.name_any()), app)
    };
    spawn_watch(pods, "pods of apps", of_apps, events, read, Event::AppPods);
}

/// Watches what load balancer addresses depend on: Services, and the addresses of nodes and their pods.
fn watch_services(client: &Client, events: &UnboundedSender<Event>) {
    let services = Api::<Service>::all(client.clone());
    let config = || watcher::Config::default().page_size(PAGE_SIZE);
    spawn_watch(services, "services", config(), events, service_info::of_service, Event::Services);
    let nodes = Api::<Node>::all(client.clone());
    let read = service_info::of_node;
    spawn_watch(nodes, "addresses of nodes", config(), events, read, Event::NodeAddresses);
}

/// Watches a resource in the background, and sends its updates as events.
fn spawn_watch<K, T>(
    api: Api<K>,
    what: &'static str,
    config: watcher::Config,
    events: &UnboundedSender<Event>,
    read: fn(K) -> T,
    event: fn(WatchUpdate<T>) -> Event,
) where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
    T: 'static,
{
    let events = events.clone();
    tokio::spawn(async move {
        knit_kube::watch(what, api, config, |update| {
            // The receiver may be dropped during shutdown.
            let _ = events.send(event(update.map(read)));
        })
        .await;
    });
}

async fn watch_kind(client: Client, kind: &'static KindInfo, events: UnboundedSender<Event>) {
    let api: Api<DynamicObject> = Api::all_with(client, &api_resource(kind));
    knit_kube::watch(&kind.plural, api, watcher::Config::default(), |update| {
        if let Some(update) = update.filter_map(|found| parse_object(kind, &found)) {
            let _ = events.send(Event::Objects(&kind.kind, Box::new(update)));
        }
    })
    .await;
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
