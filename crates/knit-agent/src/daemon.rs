//! The node as a daemon: one thread decides, others carry out.
//!
//! The loop thread owns the state and the journal and runs the engine. What the engine wants done goes to a small pool
//! of hands, each a plain thread of its own; when nothing else is under way the loop's own hands do it, which saves two
//! hand-overs for each attach. Whoever asks, from any thread or async task, sends a message and waits for the answer.
//!
//! The loop is crash-only: if the journal cannot be written it lets go of everything, refuses calls in words, and opens
//! the node anew, as a restart would.

mod desk;
mod feed;
mod folder;
mod offers;
mod outgoing;
mod outside;
mod pool;
mod turn;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use knit_engine::blocks::Order;
use knit_engine::chain::Chain;
use knit_engine::extension::Told;
use knit_engine::sockets::Offered;
use knit_engine::{Answer, CallId, Event, State, StoredObject};
use knit_kernel::fault::Observer;
use knit_kernel::notices::Notice;
use knit_kernel::redirect::Redirect;
use knit_model::problem::{Problem, Reason};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

pub use feed::{Change, Repaired, about};
pub(crate) use outgoing::{Outgoing, Words};
pub use outside::Outside;
pub(crate) use pool::Errand;

use crate::error::{Error, Result};
use crate::keys::Fetched;
use crate::metrics::Metrics;
use crate::node::{Node, now};

/// How a daemon works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that holds what Knit knows.
    pub state_dir: PathBuf,
    /// A folder with objects that is watched.
    pub objects: Option<PathBuf>,
    /// How many hands work beside the loop's own.
    pub hands: usize,
    /// How often sandboxes are looked for that are gone.
    pub census: Duration,
    /// How often everything is compared with the kernel.
    pub resync: Duration,
    /// The network that calls mean when they name none.
    pub cluster: Option<Cluster>,
    /// Whether that network is told later: until then what is known of it stays.
    pub is_cluster_told: bool,
    /// Networks that chains of CNI plugins make, by name.
    pub chains: BTreeMap<String, Chain>,
    /// Secrets of an API server; none: they are files.
    pub secrets: Option<Arc<Fetched>>,
    /// All that may be asked for has been heard of. Until then nothing is taken for a stray: an agent that lost its state
    /// would cut off pods that it is about to hear of.
    pub heard_all: Arc<AtomicBool>,
    /// How packets between pods of this node go past the bridge.
    pub redirect: Arc<Redirect>,
}

/// The cluster's network, as an object that Knit writes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster(pub(crate) StoredObject);

/// What the loop is told.
enum Message {
    /// Someone calls.
    Call { call: CallId, event: Event, done: Reply },
    /// Someone does not wait any more.
    Cancel(CallId, u64),
    /// Someone who watches elsewhere has news.
    Fed(News),
    /// Someone gives objects or sandboxes by hand, and waits.
    Work(desk::Work),
    /// Someone wants to see or change the node.
    Ask(Box<dyn FnOnce(&mut Node) + Send>),
    /// The kernel told something by itself.
    Noticed(Notice),
    /// A job was done.
    Done(pool::Finished),
    /// An extension was called, for this life of the node.
    Invoked { life: u64, id: String, told: Told },
    /// Sockets are offered as asked, for this life of the node.
    Offered { life: u64, offered: Vec<Offered> },
    /// The cluster's network is another.
    Cluster(Option<Cluster>, oneshot::Sender<Result<(), String>>),
    /// End, once nobody waits.
    Stop,
}

/// What news from elsewhere mean depends on what is known when they are heard.
type News = Box<dyn FnOnce(&State) -> Vec<Event> + Send>;

/// Called on the loop's thread with the answer.
type Reply = Box<dyn FnOnce(&Node, Answer) + Send>;

/// A running daemon.
pub struct Daemon {
    handle: Handle,
    thread: JoinHandle<()>,
}

/// The way to a running daemon.
#[derive(Clone)]
pub struct Handle {
    sender: Sender<Message>,
    changes: broadcast::Sender<Arc<Change>>,
    repairs: broadcast::Sender<Repaired>,
    version: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
    /// Numbers of calls, no two alike, also not those of an earlier agent.
    tickets: Arc<AtomicU64>,
    /// Which history positions belong to.
    epoch: Arc<str>,
    heard_all: Arc<AtomicBool>,
    /// What is in the way of new pods and is neither the engine's nor the kernel's.
    outside: outside::Shared,
    /// Whether objects come from a folder.
    watches: bool,
    secrets: Option<Arc<Fetched>>,
    /// What is to be done with blocks of addresses, for the one who does it.
    orders: Arc<Mutex<Option<mpsc::UnboundedReceiver<Order>>>>,
}

impl Daemon {
    /// Opens the node and starts the loop. What was found wrong in the state folder is logged.
    pub fn start(options: Options, faults: Option<Box<dyn Observer + Send>>) -> Result<Self> {
        let (sender, incoming) = channel();
        let (changes, _) = broadcast::channel(feed::KEPT);
        let (repairs, _) = broadcast::channel(feed::KEPT);
        let metrics = Arc::new(Metrics::default());
        let (ready, started) = channel();
        let (counted, version) = watch::channel(0);
        let (ordered, orders) = mpsc::unbounded_channel();
        let loop_ends = turn::Ends {
            incoming,
            sender: sender.clone(),
            changes: changes.clone(),
            repairs: repairs.clone(),
            metrics: Arc::clone(&metrics),
            callers: outgoing::Callers::start(sender.clone(), Arc::clone(&metrics))?,
            sockets: offers::start(&sender)?,
            version: counted,
            orders: ordered,
        };
        let (folder, watches) = (options.state_dir.clone(), options.objects.is_some());
        let secrets = options.secrets.clone();
        let heard_all = Arc::clone(&options.heard_all);
        let thread = std::thread::Builder::new()
            .name("knit-loop".to_owned())
            .spawn(move || turn::run(options, faults, loop_ends, &ready))
            .map_err(|source| Error::File { path: "thread knit-loop".to_owned(), source })?;
        // Whatever is wrong with the state folder shows before anyone is told that the agent is there.
        started.recv().unwrap_or(Err(Error::Ended))?;
        let epoch = feed::epoch(&folder)?.into();
        // More calls in a millisecond than this leaves room for are not made.
        let tickets = Arc::new(AtomicU64::new(now().0 << 16));
        let outside = outside::Shared::default();
        let handle = Handle {
            sender,
            changes,
            repairs,
            version,
            metrics,
            tickets,
            epoch,
            heard_all,
            outside,
            watches,
            secrets,
            orders: Arc::new(Mutex::new(Some(orders))),
        };
        Ok(Self { handle, thread })
    }

    /// The way to it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends it: whoever waits is answered first, and everything is on disk.
    pub fn stop(self) {
        let _ = self.handle.sender.send(Message::Stop);
        // The loop ends by itself; a panic there was logged by the panic itself.
        let _ = self.thread.join();
    }
}

impl Handle {
    /// Makes a call and waits for its answer, as `render` puts it on the loop's thread. Whoever drops the future before
    /// it is answered cancels the call.
    pub async fn call<T: Send + 'static>(
        &self,
        call: CallId,
        event: Event,
        render: impl FnOnce(&Node, Answer) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, answered) = oneshot::channel();
        let done: Reply = Box::new(move |node, outcome| {
            // Whoever asked may be gone by now; its cancellation follows.
            let _ = answer.send(render(node, outcome));
        });
        let mut event = event;
        let mut ticket = 0;
        if let Event::AttachRequested(attach) = &mut event {
            ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
            attach.ticket = ticket;
        }
        let mut waiting = Waiting { handle: self, call: Some((call.clone(), ticket)) };
        self.sender.send(Message::Call { call, event, done }).map_err(|_| ended())?;
        let outcome = answered.await.map_err(|_| ended());
        waiting.call = None;
        outcome
    }

    /// Looks at the node, or changes it where no decision is needed.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (answer, answered) = oneshot::channel();
        let ask = move |node: &mut Node| {
            let _ = answer.send(question(node));
        };
        self.sender.send(Message::Ask(Box::new(ask))).map_err(|_| ended())?;
        answered.await.map_err(|_| ended())
    }

    /// Tells news from elsewhere. They are heard one after the other, in this order.
    pub fn feed(&self, news: impl FnOnce(&State) -> Vec<Event> + Send + 'static) {
        // A loop that has ended hears nothing any more.
        let _ = self.sender.send(Message::Fed(Box::new(news)));
    }

    /// All that may be asked for was fed by now.
    pub fn fed_all(&self) {
        let heard_all = Arc::clone(&self.heard_all);
        // It is so once the loop has come this far.
        self.feed(move |_| {
            heard_all.store(true, Ordering::Relaxed);
            Vec::new()
        });
    }

    /// Whether all that may be asked for has been heard.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.heard_all.load(Ordering::Relaxed)
    }

    /// A number that grows whenever anything may be another than before: objects, pods, or what became of them.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// Secrets of an API server, if that is where they are.
    pub(crate) fn secrets(&self) -> Option<&Arc<Fetched>> {
        self.secrets.as_ref()
    }

    /// What is to be done with blocks of addresses; whoever asks first does it.
    pub(crate) fn take_orders(&self) -> Option<mpsc::UnboundedReceiver<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Changes the cluster's network, or says why not.
    pub async fn set_cluster(&self, cluster: Option<Cluster>) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let sent = self.sender.send(Message::Cluster(cluster, answer));
        sent.map_err(|_| "the agent is ending".to_owned())?;
        answered.await.unwrap_or_else(|_| Err("the agent is ending".to_owned()))
    }

    /// Every change from now on.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Change>> {
        self.changes.subscribe()
    }

    /// Every repair from now on.
    pub fn repairs(&self) -> broadcast::Receiver<Repaired> {
        self.repairs.subscribe()
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Which history positions belong to: another one after the state was lost.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }
}

/// Cancels the call when nobody waits for it any more.
struct Waiting<'a> {
    handle: &'a Handle,
    call: Option<(CallId, u64)>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some((call, ticket)) = self.call.take() {
            let _ = self.handle.sender.send(Message::Cancel(call, ticket));
        }
    }
}

fn ended() -> Problem {
    let message = "the agent is ending, or cannot write its state".to_owned();
    Problem { field: String::new(), reason: Reason::Busy, message }
}

type Incoming = Receiver<Message>;
