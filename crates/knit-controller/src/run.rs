//! The controller as a program: watches in, effects out, for as long as it holds the lease.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use knit_crds::states::{NodeNetwork, PodAddressBlock, PodNetworkState};
use knit_crds::{KindInfo, Object};
use knit_engine::ObjectKey;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::core::PartialObjectMeta;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, Client, Resource, ResourceExt};
use knit_kube::{Recorder, Seen, follow, object_of, resource};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::effects::Hands;
use crate::health::{self, Health};
use crate::known::HeldBlock;
use crate::labels;
use crate::lease::Election;
use crate::sample;
use crate::{Effect, Event, State, step};

/// News often come in groups: so long after the first everything is looked at.
const GROUP: Duration = Duration::from_millis(20);
/// While something waits, it is looked at this often.
const WAITING: Duration = Duration::from_millis(250);
/// While a node is gone that holds blocks of addresses, it is looked this often whether it has been gone for long.
const GONE: Duration = Duration::from_secs(10);
/// So many requests are under way at once.
const AT_ONCE: usize = 16;

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kubeconfig; none: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the lease.
    pub namespace: String,
    /// Who this is among several: the pod's name.
    pub name: String,
    /// What the pods of sample Deployments run: an image that sleeps when told `pause`.
    pub sample_image: String,
    /// Where health is served; `:9477` is every address of the pod, empty is nowhere.
    pub health_addr: String,
}

/// Why the controller ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to an API server.
    #[error(transparent)]
    Api(#[from] knit_kube::Error),
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Another controller works now, or this one could not say that it is there.
    #[error("the lease is lost: another controller works, or the API server is away")]
    LeaseLost,
}

/// Runs until SIGTERM or SIGINT, or until the lease is lost.
pub fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::System { what: "threads", source })?;
    runtime.block_on(serve(options))
}

async fn serve(options: Options) -> Result<(), Error> {
    let failed = |source| Error::System { what: "signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let client = knit_kube::connect(options.kubeconfig.as_deref()).await?;
    let health = Health::default();
    if !options.health_addr.is_empty() {
        let served = health::serve(&options.health_addr, health.clone()).await;
        served.map_err(|source| Error::System { what: "the address of health", source })?;
    }
    let mut election = Election::new(client.clone(), &options.namespace, &options.name, health.clone());
    let work = async {
        tracing::info!(me = options.name, "waits for the lease");
        election.win().await;
        tracing::info!("holds the lease");
        tokio::select! {
            () = work(client, &options, &health) => {}
            () = election.keep() => {}
        }
    };
    let ended = tokio::select! {
        () = work => Err(Error::LeaseLost),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    if ended.is_ok() {
        election.release().await;
    }
    ended
}

/// Watches, decides and writes.
async fn work(client: Client, options: &Options, health: &Health) {
    let (events, mut incoming) = unbounded_channel();
    watch_all(&client, &events);
    let recorder = Recorder::new(client.clone(), "knit-controller", &options.name);
    let hands = Hands { client, recorder, image: options.sample_image.clone() };
    let mut state = State::default();
    health.misses(state.missing());
    while hear(&mut state, &mut incoming).await {
        health.misses(state.missing());
        let effects = step(&mut state, Event::Look, now());
        let jobs = effects.into_iter().map(|effect| {
            let object =
                key_of(&effect).and_then(|key| state.objects.get(key)).map(|known| known.object.clone());
            hands.carry_out(effect, object)
        });
        let failed: Vec<Event> = futures_util::stream::iter(jobs)
            .buffer_unordered(AT_ONCE)
            .filter_map(|one| async { one })
            .collect()
            .await;
        for event in failed {
            step(&mut state, event, now());
        }
    }
}

fn key_of(effect: &Effect) -> Option<&ObjectKey> {
    match effect {
        Effect::MakeSample { key, .. } => Some(key),
        _ => None,
    }
}

/// Hears what has come, at least one thing, or waits as long as something that waits may take. Says whether to go on.
async fn hear(state: &mut State, incoming: &mut UnboundedReceiver<Event>) -> bool {
    let first = if state.is_waiting() {
        timeout(WAITING, incoming.recv()).await.ok()
    } else if state.waits_for_nodes() {
        timeout(GONE, incoming.recv()).await.ok()
    } else {
        Some(incoming.recv().await)
    };
    match first {
        Some(Some(event)) => {
            step(state, event, now());
            sleep(GROUP).await;
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
    watch(
        pods,
        "pods' states",
        watcher::Config::default(),
        events,
        |state| {
            let name = (state.namespace().unwrap_or_default(), state.name_any());
            (name, state.status.unwrap_or_default())
        },
        Event::Pods,
    );
    let nodes = Api::<NodeNetwork>::all(client.clone());
    watch(
        nodes,
        "nodes' states",
        watcher::Config::default(),
        events,
        |state| (state.name_any(), state.status.unwrap_or_default()),
        Event::Nodes,
    );
    let blocks = Api::<PodAddressBlock>::all(client.clone());
    watch(
        blocks,
        "blocks",
        watcher::Config::default(),
        events,
        |block| (block.name_any(), HeldBlock { uid: block.uid().unwrap_or_default(), node: block.spec.node }),
        Event::Blocks,
    );
    let alive = Api::<PartialObjectMeta<Node>>::all(client.clone());
    let read = |node: PartialObjectMeta<Node>| (node.name_any(), labels::own(node.labels()));
    watch(alive, "nodes", watcher::Config::default(), events, read, Event::Alive);
    let samples = Api::<Deployment>::all(client.clone());
    let labelled = watcher::Config::default().labels(sample::LABEL);
    watch(
        samples,
        "sample Deployments",
        labelled,
        events,
        |deployment| {
            let of = deployment.labels().get(sample::LABEL).cloned().unwrap_or_default();
            ((deployment.namespace().unwrap_or_default(), deployment.name_any()), of)
        },
        Event::Samples,
    );
}

/// Watches one thing in the background, and tells it in the step's words.
fn watch<K, T>(
    api: Api<K>,
    what: &'static str,
    config: watcher::Config,
    events: &UnboundedSender<Event>,
    read: fn(K) -> T,
    event: fn(Seen<T>) -> Event,
) where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
    T: 'static,
{
    let events = events.clone();
    tokio::spawn(async move {
        follow(what, api, config, |seen| {
            // Whoever hears may have ended; then this ends, too.
            let _ = events.send(event(seen.map(read)));
        })
        .await;
    });
}

async fn watch_kind(client: Client, kind: &'static KindInfo, events: UnboundedSender<Event>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    follow(&kind.plural, api, watcher::Config::default(), |seen| {
        if let Some(seen) = seen.filter_map(|found| object_of(kind, &found)) {
            let _ = events.send(Event::Objects(&kind.kind, Box::new(seen)));
        }
    })
    .await;
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
