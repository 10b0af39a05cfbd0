//! In a cluster, beside its CNI plugin or as its network: objects come from the API server, pods from there and from the
//! container runtime.
//!
//! Watchers feed the same loop with the same events that a folder and `knit sandbox add` give it. None of them
//! decides: what news mean is read in [`knit_engine::objects`] and [`knit_engine::pods`], what is written back in
//! [`knit_crds::states`]. An API server or a runtime that is away leaves everything as it is.

/// Has a part of an object be watched as what it is a part of: it is one of those in everything but its fields. Its metadata is in
/// the field `metadata`.
macro_rules! watched_as {
    ($part:ty, $whole:ty) => {
        impl knit_kube::kube::Resource for $part {
            type DynamicType = ();
            type Scope = <$whole as knit_kube::kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as knit_kube::kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as knit_kube::kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as knit_kube::kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$whole as knit_kube::kube::Resource>::plural(&())
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

mod attachments;
mod blocks;
mod elsewhere;
mod gates;
mod namespaces;
mod network_status;
mod nodes;
mod objects;
mod pods;
mod quotas;
mod repairs;
mod room;
mod runtime;
mod secrets;
mod spans;
mod starting;
mod states;
mod tellers;
mod told_key;
mod words;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use knit_crds::Object;
use knit_engine::pods::Pods;
use knit_ipam::Time;
use knit_kube::kube::Client;
use tokio::sync::{Notify, oneshot};

use crate::config::{Config, Profile};
use crate::daemon::Handle;
use crate::error::Result;

/// What the watchers share.
#[derive(Clone)]
struct Shared {
    client: Client,
    handle: Handle,
    node: Arc<str>,
    pods: Arc<Mutex<Pods>>,
    /// From here on moments are counted, whatever the clock does.
    began: Instant,
    /// Pods may have a sandbox by now.
    look: Arc<Notify>,
    /// Pods changed in a way that the loop does not hear of.
    tell: Arc<Notify>,
    /// What the ranges of the cluster's network follow from.
    ranges: Arc<nodes::News>,
    /// All nodes, where they are watched.
    nodes: nodes::All,
    /// What tunnels of networks follow from may be another: networks, blocks, nodes.
    spans: Arc<Notify>,
    /// Gateways are others.
    gateways: Arc<Notify>,
    /// Pods that say they are not ready before their networks are.
    gates: Arc<gates::Gates>,
    /// Quotas, and what was claimed of them.
    quotas: Arc<quotas::Quotas>,
    /// Definitions of networks that pods name; `None` if they are not read.
    attachments: Option<Arc<attachments::Definitions>>,
    /// How many of those who tell ([`tellers`]) have not told everything they know yet.
    silent: Arc<AtomicUsize>,
}

impl Shared {
    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Now.
    fn moment(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Has the loop hear what pods and sandboxes mean for what it knows.
    fn feed_pods(&self) {
        let shared = self.clone();
        self.handle.feed(move |state| {
            let pods = shared.pods();
            // What a pod asks for comes first, so that a new sandbox has all of it at once.
            let mut events = attachments::events(shared.attachments.as_deref(), &pods, state);
            events.extend(pods.events(state));
            events
        });
        self.tell.notify_one();
        if let Some(definitions) = &self.attachments {
            definitions.news.notify_one();
        }
    }
}

/// Starts to watch. It goes on for as long as the runtime of the calling task does.
pub async fn start(config: &Config, handle: &Handle) -> Result<()> {
    let client = knit_kube::connect(named(&config.kubeconfig)).await?;
    let read = &config.network_attachments;
    let shared = Shared {
        client,
        handle: handle.clone(),
        node: config.node_name.as_str().into(),
        pods: Arc::default(),
        began: Instant::now(),
        look: Arc::default(),
        tell: Arc::default(),
        ranges: Arc::default(),
        nodes: Arc::default(),
        spans: Arc::default(),
        gateways: Arc::default(),
        gates: Arc::default(),
        quotas: Arc::default(),
        attachments: read.read.then(|| Arc::new(attachments::Definitions::new(read.plugins()))),
        // Each kind, the pods, the runtime, and definitions of networks.
        silent: Arc::new(AtomicUsize::new(Object::kinds().len() + 2 + usize::from(read.read))),
    };
    tracing::info!(node = config.node_name, "watches the API server and the container runtime");
    let (known, blocks_are_known) = oneshot::channel();
    if let Some(orders) = handle.take_orders() {
        tokio::spawn(blocks::follow(shared.clone(), orders, known));
    }
    if config.profile == Profile::Primary {
        tokio::spawn(nodes::follow(shared.clone(), config.cluster_network.clone()));
        tokio::spawn(namespaces::follow(shared.clone()));
        tokio::spawn(elsewhere::follow(shared.clone()));
    }
    tokio::spawn(spans::follow(shared.clone(), config.profile, config.cluster_network.clone()));
    let runtime = named(&config.cri_socket).map(PathBuf::from);
    let nri = config.nri_socket();
    tokio::spawn(async move {
        // An agent that lost its state would take a pod for one without an address before it knows its blocks.
        let _ = blocks_are_known.await;
        follow_all(&shared, runtime);
        if let Some(socket) = nri {
            tokio::spawn(starting::follow(shared, socket));
        }
    });
    Ok(())
}

fn follow_all(shared: &Shared, runtime: Option<PathBuf>) {
    for kind in Object::kinds() {
        tokio::spawn(objects::follow(shared.clone(), kind));
    }
    tokio::spawn(pods::follow(shared.clone()));
    tokio::spawn(runtime::follow(shared.clone(), runtime));
    if let Some(definitions) = &shared.attachments {
        tokio::spawn(attachments::follow(shared.clone(), Arc::clone(definitions)));
        tokio::spawn(network_status::follow(shared.clone(), Arc::clone(definitions)));
    }
    if let Some(fetched) = shared.handle.secrets() {
        tokio::spawn(secrets::follow(shared.clone(), Arc::clone(fetched)));
    }
    tokio::spawn(quotas::follow(shared.clone()));
    tokio::spawn(repairs::follow(shared.clone()));
    tokio::spawn(states::follow(shared.clone()));
    tokio::spawn(gates::follow(shared.clone()));
}

fn named(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}
