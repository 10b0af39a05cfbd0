//! The node as a daemon: one thread decides, executor threads apply.
//!
//! The event loop's thread owns the state and the journal and runs the engine. Effects of the engine go to a small pool of executors,
//! each on its own thread. When nothing else is in flight, the loop executes an effect itself, which saves two thread switches for each
//! attach. Callers on any thread or async task send a message and wait for the reply.
//!
//! The loop is crash-only: if the journal cannot be written, it drops the node, rejects calls with an error, and opens the node again,
//! as a restart would.

mod change_feed;
mod event_loop;
mod executor_pool;
mod extension_calls;
mod local_api;
mod manifest_dir;
mod readiness;
mod socket_server;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ipnet::IpNet;
use knit_crds::attachments::AllowedPlugins;
use knit_engine::extension::InvocationResult;
use knit_engine::plugin_chain::PluginChain;
use knit_engine::sockets::ListenerResult;
use knit_engine::{CallId, CallResult, Event, StoredObject};
use knit_kernel::fault::FaultInjector;
use knit_kernel::notifications::LinkNotification;
use knit_kernel::redirect::Redirect;
use knit_model::problem::{Problem, Reason};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

pub use change_feed::{PodChange, RepairNotice, sandbox_of};
pub(crate) use extension_calls::{ExtensionRequest, OutgoingCall};
pub use readiness::ReadinessBlocker;

use crate::config::RecentRecordingConfig;
use crate::error::{Error, Result};
use crate::executor::{Completion, ExecutorSource, Work};
use crate::keys::ApiSecrets;
use crate::metrics::Metrics;
use crate::node::{ApiRequest, Node, now};

/// The options of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state directory.
    pub state_dir: PathBuf,
    /// A file for a recording of the engine's inputs.
    pub record: Option<PathBuf>,
    /// The recording of the last minutes in the state directory.
    pub recent_recording: RecentRecordingConfig,
    /// A watched directory with objects.
    pub objects: Option<PathBuf>,
    /// Number of executor threads besides the loop.
    pub executors: usize,
    /// Interval of the check for sandboxes that are gone.
    pub sandbox_check_interval: Duration,
    /// Interval of a full comparison with the kernel.
    pub resync_interval: Duration,
    /// The default network of calls that name none.
    pub cluster: Option<ClusterNetworkObject>,
    /// Whether the cluster network is determined later from the API server. Until then the recorded one stays.
    pub cluster_network_from_api: bool,
    /// Ranges in which networks of tenants may have an address on the node.
    pub tenant_ranges: Vec<IpNet>,
    /// Networks implemented by chains of CNI plugins, by name.
    pub chains: BTreeMap<String, PluginChain>,
    /// CNI plugins that annotations of pods may run.
    pub allowed_plugins: AllowedPlugins,
    /// Whether policies about additional networks are enforced.
    pub policies_on_interfaces: bool,
    /// Secrets from an API server; `None`: Secrets are files.
    pub secrets: Option<Arc<ApiSecrets>>,
    /// Whether all inputs have synced. Until then nothing counts as stray: an agent that lost its state would otherwise delete
    /// interfaces of pods that it has not read yet.
    pub has_synced: Arc<AtomicBool>,
    /// The eBPF redirect between pods of this node.
    pub redirect: Arc<Redirect>,
    /// Creates executors, for a node without a kernel; `None`: this machine's kernel.
    pub executor: Option<ExecutorSource>,
}

/// The cluster network, as an object that Knit creates itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNetworkObject(pub(crate) StoredObject);

/// Input of the event loop.
enum Message {
    /// A call of a service.
    Call { call: CallId, event: Event, reply: Reply },
    /// The caller of a call has gone away.
    Cancel(CallId, u64),
    /// An event of a watch, the container runtime or a timer.
    Event(Box<Event>),
    /// All events submitted so far complete the first lists of all informers.
    Synced,
    /// A change of objects or sandboxes through the local API.
    Change(local_api::ChangeRequest),
    /// A query or change of the node that needs no decision.
    Query(Box<dyn FnOnce(&mut Node) + Send>),
    /// A notification from the kernel.
    Kernel(LinkNotification),
    /// Another program changed Knit's tables of the packet filter.
    FilterChanged,
    /// An executor has completed work.
    Completed { incarnation: u64, work: Box<Work>, result: Result<Completion>, took: Duration },
    /// An extension has answered, for this incarnation of the node.
    ExtensionReplied { incarnation: u64, id: String, result: InvocationResult },
    /// Sockets are offered as requested, for this incarnation of the node.
    SocketsOffered { incarnation: u64, offered: Vec<ListenerResult> },
    /// The cluster network has changed.
    SetClusterNetwork(Option<ClusterNetworkObject>, oneshot::Sender<Result<(), String>>),
    /// The configured ranges of tenants have changed.
    SetTenantRanges(Vec<IpNet>, oneshot::Sender<Result<(), String>>),
    /// Stop once all callers are answered.
    Stop,
}

/// Called on the loop's thread with the result.
type Reply = Box<dyn FnOnce(&Node, CallResult) + Send>;

/// A running daemon.
pub struct Daemon {
    handle: Handle,
    thread: JoinHandle<()>,
}

/// A handle to a running daemon.
#[derive(Clone)]
pub struct Handle {
    sender: Sender<Message>,
    changes: broadcast::Sender<Arc<PodChange>>,
    repairs: broadcast::Sender<RepairNotice>,
    version: watch::Receiver<u64>,
    reopened: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
    /// The next ticket of a call. Tickets are unique, also across restarts of the agent.
    next_ticket: Arc<AtomicU64>,
    /// Identifies the history that watch positions belong to.
    epoch: Arc<str>,
    has_synced: Arc<AtomicBool>,
    /// What prevents new pods besides the engine and the kernel.
    blockers: readiness::Shared,
    /// Whether objects come from a watched directory.
    watches_dir: bool,
    secrets: Option<Arc<ApiSecrets>>,
    /// The engine's requests to the API server, until its client takes the receiver.
    api_requests: Arc<Mutex<Option<mpsc::UnboundedReceiver<ApiRequest>>>>,
}

impl Daemon {
    /// Opens the node and starts the loop. Problems of the state directory are logged.
    pub fn start(options: Options, faults: Option<Box<dyn FaultInjector + Send>>) -> Result<Self> {
        let (sender, incoming) = channel();
        let (changes, _) = broadcast::channel(change_feed::FEED_CAPACITY);
        let (repairs, _) = broadcast::channel(change_feed::FEED_CAPACITY);
        let metrics = Arc::new(Metrics::default());
        let (ready, started) = channel();
        let (version_sender, version) = watch::channel(0);
        let (reopened_sender, reopened) = watch::channel(0);
        let (request_sender, api_requests) = mpsc::unbounded_channel();
        let channels = event_loop::Channels {
            incoming,
            sender: sender.clone(),
            changes: changes.clone(),
            repairs: repairs.clone(),
            metrics: Arc::clone(&metrics),
            extensions: extension_calls::ExtensionCaller::start(sender.clone(), Arc::clone(&metrics))?,
            sockets: socket_server::start(&sender)?,
            version: version_sender,
            reopened: reopened_sender,
            api_requests: request_sender,
        };
        let (folder, watches_dir) = (options.state_dir.clone(), options.objects.is_some());
        let secrets = options.secrets.clone();
        let has_synced = Arc::clone(&options.has_synced);
        let thread = std::thread::Builder::new()
            .name("knit-loop".to_owned())
            .spawn(move || event_loop::run(options, faults, channels, &ready))
            .map_err(|source| Error::File { path: "thread knit-loop".to_owned(), source })?;
        // Problems of the state directory are reported before the agent starts to serve.
        started.recv().unwrap_or(Err(Error::ChangeEnded))?;
        let epoch = change_feed::epoch(&folder)?.into();
        // No agent makes more than 65536 calls per millisecond.
        let next_ticket = Arc::new(AtomicU64::new(now().0 << 16));
        let blockers = readiness::Shared::default();
        let handle = Handle {
            sender,
            changes,
            repairs,
            version,
            reopened,
            metrics,
            next_ticket,
            epoch,
            has_synced,
            blockers,
            watches_dir,
            secrets,
            api_requests: Arc::new(Mutex::new(Some(api_requests))),
        };
        Ok(Self { handle, thread })
    }

    /// A handle to the daemon.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops the daemon after all callers are answered and the journal is synced.
    pub fn stop(self) {
        let _ = self.handle.sender.send(Message::Stop);
        // The loop ends by itself; a panic was already reported by the panic hook.
        let _ = self.thread.join();
    }
}

impl Handle {
    /// Makes a call and waits for its result, which `render` converts on the loop's thread. Dropping the future cancels the call.
    pub async fn call<T: Send + 'static>(
        &self,
        call: CallId,
        event: Event,
        render: impl FnOnce(&Node, CallResult) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, answered) = oneshot::channel();
        let reply: Reply = Box::new(move |node, outcome| {
            // The caller may be gone; its cancellation follows.
            let _ = answer.send(render(node, outcome));
        });
        let mut event = event;
        let mut ticket = 0;
        if let Event::AttachRequested(attach) = &mut event {
            ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
            attach.ticket = ticket;
        }
        let mut guard = CancelOnDrop { handle: self, call: Some((call.clone(), ticket)) };
        self.sender.send(Message::Call { call, event, reply }).map_err(|_| stopped())?;
        let outcome = answered.await.map_err(|_| stopped());
        guard.call = None;
        outcome
    }

    /// Runs a query on the loop's thread. It may change the node where no decision is needed.
    pub async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.send_query(query)?.await.map_err(|_| stopped())
    }

    /// [`Self::query`] that blocks the thread until it is done.
    pub fn query_blocking<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        self.send_query(query)?.blocking_recv().map_err(|_| stopped())
    }

    fn send_query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Problem> {
        let (answer, answered) = oneshot::channel();
        let run = move |node: &mut Node| {
            // A caller that is gone needs no result.
            let _ = answer.send(query(node));
        };
        self.sender.send(Message::Query(Box::new(run))).map_err(|_| stopped())?;
        Ok(answered)
    }

    /// Submits an event. Events are handled in the order of these calls.
    pub fn submit(&self, event: Event) {
        // A loop that has ended handles no more events.
        let _ = self.sender.send(Message::Event(Box::new(event)));
    }

    /// Marks all inputs as synced, once the events submitted so far are handled.
    pub fn mark_synced(&self) {
        let _ = self.sender.send(Message::Synced);
    }

    /// Whether all inputs have synced.
    pub(crate) fn has_synced(&self) -> bool {
        self.has_synced.load(Ordering::Relaxed)
    }

    /// A number that grows with every change of the state.
    pub fn state_version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// A number that grows when the loop has opened its state again: what was watched has to be listed again.
    pub(crate) fn reopened(&self) -> watch::Receiver<u64> {
        self.reopened.clone()
    }

    /// Secrets from an API server, if that is their source.
    pub(crate) fn secrets(&self) -> Option<&Arc<ApiSecrets>> {
        self.secrets.as_ref()
    }

    /// The engine's requests to the API server. Only the first caller gets the receiver.
    pub(crate) fn take_api_requests(&self) -> Option<mpsc::UnboundedReceiver<ApiRequest>> {
        self.api_requests.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Changes the cluster network.
    pub async fn set_cluster_network(&self, cluster: Option<ClusterNetworkObject>) -> Result<(), String> {
        self.configure(|answer| Message::SetClusterNetwork(cluster, answer)).await
    }

    /// Changes the ranges in which networks of tenants may have an address on the node.
    pub async fn set_tenant_ranges(&self, ranges: Vec<IpNet>) -> Result<(), String> {
        self.configure(|answer| Message::SetTenantRanges(ranges, answer)).await
    }

    async fn configure(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Message,
    ) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let sent = self.sender.send(message(answer));
        sent.map_err(|_| "the agent is stopping".to_owned())?;
        answered.await.unwrap_or_else(|_| Err("the agent is stopping".to_owned()))
    }

    /// All pod changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Arc<PodChange>> {
        self.changes.subscribe()
    }

    /// All repairs from now on.
    pub fn repairs(&self) -> broadcast::Receiver<RepairNotice> {
        self.repairs.subscribe()
    }

    /// The agent's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Identifies the history that watch positions belong to. It changes when the state is lost.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }
}

/// Cancels the call when its future is dropped.
struct CancelOnDrop<'a> {
    handle: &'a Handle,
    call: Option<(CallId, u64)>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some((call, ticket)) = self.call.take() {
            let _ = self.handle.sender.send(Message::Cancel(call, ticket));
        }
    }
}

fn stopped() -> Problem {
    let message = "the agent is stopping or cannot write its state".to_owned();
    Problem::new("", Reason::Busy, message)
}

type Incoming = Receiver<Message>;
