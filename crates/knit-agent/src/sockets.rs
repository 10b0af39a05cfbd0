//! Sockets for unprivileged pods: a listener in the pod's network namespace for each object that offers some.
//!
//! The listener is a unix socket with an abstract name. Abstract names belong to a network namespace, so only the pod's processes see it and
//! no volume is needed. A client sends the name of a socket in one line, and receives one line and the descriptor. The engine decides what
//! is offered ([`knit_engine::sockets`]); one thread serves, and the loop never waits for it.

mod client;

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use knit_engine::sockets::{ListenerResult, SocketListener};
use knit_engine::{Event, ObjectKey};
use knit_kernel::Netns;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::error::{Error, Result};
use crate::sandboxes;

/// Prefix of the abstract names; the object's name follows.
const NAME_PREFIX: &str = "knit/sockets/";
/// Concurrent clients of one listener; more of them wait.
const MAX_CLIENTS: usize = 8;

/// Queues offers for the thread.
pub(crate) struct SocketServer {
    queue: mpsc::UnboundedSender<(u64, Vec<SocketListener>)>,
}

/// A running listener; aborted on drop.
struct RunningListener {
    listener: SocketListener,
    task: JoinHandle<()>,
}

impl Drop for RunningListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An object in a pod.
type Key = (SandboxId, ObjectKey);

/// The running listeners and the failed ones.
#[derive(Default)]
struct Listeners {
    serving: BTreeMap<Key, RunningListener>,
    /// Problems logged last: failed listeners are retried, and each problem is logged once.
    rejected: BTreeMap<Key, Problem>,
}

/// The result for a node without an agent: there is no process to serve the sockets.
pub(crate) fn without_agent(offers: &[SocketListener]) -> Event {
    let message = "sockets require a running agent: start `knit agent`";
    let refuse = |listener: &SocketListener| listener.rejected(Reason::NotReady, message.to_owned());
    Event::SocketsOffered(offers.iter().map(refuse).collect())
}

impl SocketServer {
    /// Starts the thread. Results are passed to `tell` with the incarnation of the node.
    pub(crate) fn start(report: impl Fn(u64, Vec<ListenerResult>) + Send + 'static) -> Result<Self> {
        let failed = |what: &str| {
            let path = what.to_owned();
            move |source| Error::File { path, source }
        };
        let (queue, mut offers) = mpsc::unbounded_channel::<(u64, Vec<SocketListener>)>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("a runtime for sockets"))?;
        let host = Netns::current()?;
        let boot = sandboxes::boot_id()?;
        let serve = async move {
            let mut all = Listeners::default();
            while let Some((incarnation, offer)) = offers.recv().await {
                let offered = replace(&mut all, offer, &host, &boot).await;
                report(incarnation, offered);
            }
        };
        std::thread::Builder::new()
            .name("knit-sockets".to_owned())
            .spawn(move || runtime.block_on(serve))
            .map_err(failed("thread knit-sockets"))?;
        Ok(Self { queue })
    }

    /// Offers exactly these listeners, for this incarnation of the node.
    pub(crate) fn offer(&self, incarnation: u64, offers: Vec<SocketListener>) {
        // The thread runs as long as this sender exists.
        let _ = self.queue.send((incarnation, offers));
    }
}

/// Stops listeners that are no longer offered and starts new ones. Unchanged ones keep running.
async fn replace(
    all: &mut Listeners,
    offers: Vec<SocketListener>,
    host: &Netns,
    boot: &str,
) -> Vec<ListenerResult> {
    let key = |listener: &SocketListener| (listener.sandbox.id.clone(), listener.object.clone());
    let desired: BTreeMap<Key, SocketListener> =
        offers.into_iter().map(|listener| (key(&listener), listener)).collect();
    let is_over = |key: &Key, serving: &mut RunningListener| {
        desired.get(key) != Some(&serving.listener) || serving.task.is_finished()
    };
    for (_, mut serving) in all.serving.extract_if(.., is_over) {
        serving.task.abort();
        // Its name is free once the task has ended.
        let _ = (&mut serving.task).await;
        let SocketListener { sandbox, object, .. } = &serving.listener;
        tracing::info!(pod = sandbox.title(), %object, "sockets are no longer offered");
    }
    all.rejected.retain(|key, _| desired.contains_key(key));
    let mut offered = Vec::new();
    for (key, listener) in desired {
        if all.serving.contains_key(&key) {
            offered.push(listener.result(Ok(())));
            continue;
        }
        let (pod, object) = (listener.sandbox.title(), &listener.object);
        let result = match start_listener(&listener, host, boot).await {
            Ok(task) => {
                tracing::info!(pod, %object, "sockets are offered");
                all.rejected.remove(&key);
                all.serving.insert(key, RunningListener { listener: listener.clone(), task });
                Ok(())
            }
            Err(problem) => {
                if all.rejected.insert(key, problem.clone()).as_ref() != Some(&problem) {
                    tracing::warn!(pod, %object, reason = ?problem.reason, "{problem}");
                }
                Err(problem)
            }
        };
        offered.push(listener.result(result));
    }
    offered
}

/// Starts a listener.
async fn start_listener(
    listener: &SocketListener,
    host: &Netns,
    boot: &str,
) -> std::result::Result<JoinHandle<()>, Problem> {
    let (to_open, host, boot) = (listener.clone(), host.clone(), boot.to_owned());
    // Entering the namespace blocks.
    let opened = tokio::task::spawn_blocking(move || open(&to_open, &host, &boot)).await;
    let rejected = |message: String| {
        Problem::new(
            "spec.sockets",
            Reason::KernelError,
            format!("pod {}: {message}", listener.sandbox.title()),
        )
    };
    let (netns, bare) = opened.map_err(|why| rejected(why.to_string()))?.map_err(rejected)?;
    let listening = UnixListener::from_std(bare).map_err(|why| rejected(why.to_string()))?;
    Ok(tokio::spawn(serve(listening, Arc::new(listener.clone()), netns)))
}

fn open(
    listener: &SocketListener,
    host: &Netns,
    boot: &str,
) -> std::result::Result<(Netns, StdListener), String> {
    let sandbox = &listener.sandbox;
    let netns = Netns::open_sandbox(Path::new(&sandbox.netns), host).map_err(|why| why.to_string())?;
    let cookie = netns.cookie().map_err(|why| why.to_string())?;
    if (cookie, boot) != (sandbox.instance.cookie, sandbox.instance.boot.as_str()) {
        return Err("its network namespace was replaced".to_owned());
    }
    let name = format!("{NAME_PREFIX}{}", listener.object.name);
    let listening =
        knit_kernel::sockets::listen_abstract(&netns, &name).map_err(|why| match why.errno() {
            Some(nix::errno::Errno::EADDRINUSE) => {
                format!("a process of the pod already listens on @{name}")
            }
            _ => why.to_string(),
        })?;
    Ok((netns, listening))
}

/// Serves clients concurrently until it is dropped.
async fn serve(listening: UnixListener, listener: Arc<SocketListener>, netns: Netns) {
    let permits = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut clients = JoinSet::new();
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        while clients.try_join_next().is_some() {}
        let stream = match listening.accept().await {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!(pod = listener.sandbox.title(), error = %why, "cannot accept a client");
                tokio::time::sleep(client::CLIENT_TIMEOUT).await;
                continue;
            }
        };
        let (listener, netns) = (Arc::clone(&listener), netns.clone());
        clients.spawn(async move {
            client::serve(stream, &listener, netns).await;
            drop(permit);
        });
    }
}
