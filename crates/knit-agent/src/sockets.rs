//! Sockets for pods without privileges: a listener in the pod's network namespace for each object that offers some.
//!
//! The listener is a unix socket at an abstract name. Such names belong to a network namespace, so that only the pod's own
//! processes see it, and it needs no volume. Whoever connects says the name of a socket in one line, and gets one line and
//! the descriptor. What is offered is decided by the engine ([`knit_engine::sockets`]); this is one thread that serves,
//! which the loop never waits for.

mod client;

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use knit_engine::sockets::{Listener, Offered};
use knit_engine::{Event, ObjectKey};
use knit_kernel::Netns;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::error::{Error, Result};
use crate::sandboxes;

/// What abstract names begin with; the object's name follows.
const PREFIX: &str = "knit/sockets/";
/// So many clients of one listener are served at once; more of them wait for their turn.
const AT_ONCE: usize = 8;

/// The way to the thread.
pub(crate) struct Desk {
    queue: mpsc::UnboundedSender<(u64, Vec<Listener>)>,
}

/// A listener that runs. It ends with this.
struct Serving {
    listener: Listener,
    task: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One object in one pod.
type Key = (SandboxId, ObjectKey);

/// What is served, and what could not be.
#[derive(Default)]
struct All {
    serving: BTreeMap<Key, Serving>,
    /// What was said last: it is tried again and again, and told once.
    refused: BTreeMap<Key, Problem>,
}

/// What a node says that works for one command only: nobody would be there to ask.
pub(crate) fn without_agent(offers: &[Listener]) -> Event {
    let words = "sockets are handed out by a running agent, and here is none: start `knit agent`";
    let refuse = |listener: &Listener| listener.refused(Reason::NotReady, words.to_owned());
    Event::Offered(offers.iter().map(refuse).collect())
}

impl Desk {
    /// Starts the thread. What becomes of an offer is told by `tell`, with the life of the node that it is for.
    pub(crate) fn start(tell: impl Fn(u64, Vec<Offered>) + Send + 'static) -> Result<Self> {
        let failed = |what: &str| {
            let path = what.to_owned();
            move |source| Error::File { path, source }
        };
        let (queue, mut offers) = mpsc::unbounded_channel::<(u64, Vec<Listener>)>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("a runtime for sockets"))?;
        let host = Netns::current()?;
        let boot = sandboxes::boot_id()?;
        let serve = async move {
            let mut all = All::default();
            while let Some((life, offer)) = offers.recv().await {
                let offered = replace(&mut all, offer, &host, &boot).await;
                tell(life, offered);
            }
        };
        std::thread::Builder::new()
            .name("knit-sockets".to_owned())
            .spawn(move || runtime.block_on(serve))
            .map_err(failed("thread knit-sockets"))?;
        Ok(Self { queue })
    }

    /// Offers these and no others, for this life of the node.
    pub(crate) fn offer(&self, life: u64, offers: Vec<Listener>) {
        // The thread lives as long as this end of the queue.
        let _ = self.queue.send((life, offers));
    }
}

/// Ends what is not offered any more, and begins what is new. What was offered before goes on.
async fn replace(all: &mut All, offers: Vec<Listener>, host: &Netns, boot: &str) -> Vec<Offered> {
    let key = |listener: &Listener| (listener.sandbox.id.clone(), listener.object.clone());
    let wanted: BTreeMap<Key, Listener> =
        offers.into_iter().map(|listener| (key(&listener), listener)).collect();
    let is_over = |key: &Key, serving: &mut Serving| {
        wanted.get(key) != Some(&serving.listener) || serving.task.is_finished()
    };
    for (_, mut serving) in all.serving.extract_if(.., is_over) {
        serving.task.abort();
        // Its name is free once it has ended.
        let _ = (&mut serving.task).await;
        let Listener { sandbox, object, .. } = &serving.listener;
        tracing::info!(pod = sandbox.title(), %object, "sockets are not offered any more");
    }
    all.refused.retain(|key, _| wanted.contains_key(key));
    let mut offered = Vec::new();
    for (key, listener) in wanted {
        if all.serving.contains_key(&key) {
            offered.push(listener.answer(Ok(())));
            continue;
        }
        let (pod, object) = (listener.sandbox.title(), &listener.object);
        let result = match begin(&listener, host, boot).await {
            Ok(task) => {
                tracing::info!(pod, %object, "sockets are offered");
                all.refused.remove(&key);
                all.serving.insert(key, Serving { listener: listener.clone(), task });
                Ok(())
            }
            Err(problem) => {
                if all.refused.insert(key, problem.clone()).as_ref() != Some(&problem) {
                    tracing::warn!(pod, %object, reason = ?problem.reason, "{problem}");
                }
                Err(problem)
            }
        };
        offered.push(listener.answer(result));
    }
    offered
}

/// Listens, and serves whoever comes.
async fn begin(
    listener: &Listener,
    host: &Netns,
    boot: &str,
) -> std::result::Result<JoinHandle<()>, Problem> {
    let (to_open, host, boot) = (listener.clone(), host.clone(), boot.to_owned());
    // It visits the namespace, which a thread of the runtime must not wait for.
    let opened = tokio::task::spawn_blocking(move || open(&to_open, &host, &boot)).await;
    let refused = |message: String| Problem {
        field: "spec.sockets".to_owned(),
        reason: Reason::KernelRefused,
        message: format!("pod {}: {message}", listener.sandbox.title()),
    };
    let (netns, bare) = opened.map_err(|why| refused(why.to_string()))?.map_err(refused)?;
    let listening = UnixListener::from_std(bare).map_err(|why| refused(why.to_string()))?;
    Ok(tokio::spawn(serve(listening, Arc::new(listener.clone()), netns)))
}

fn open(listener: &Listener, host: &Netns, boot: &str) -> std::result::Result<(Netns, StdListener), String> {
    let sandbox = &listener.sandbox;
    let netns = Netns::open_sandbox(Path::new(&sandbox.netns), host).map_err(|why| why.to_string())?;
    let cookie = netns.cookie().map_err(|why| why.to_string())?;
    if (cookie, boot) != (sandbox.instance.cookie, sandbox.instance.boot.as_str()) {
        return Err("its network namespace is another by now".to_owned());
    }
    let name = format!("{PREFIX}{}", listener.object.name);
    let listening = knit_kernel::sockets::listen_at(&netns, &name).map_err(|why| match why.errno() {
        Some(nix::errno::Errno::EADDRINUSE) => {
            format!("a process of the pod listens at @{name} itself, so that Knit cannot")
        }
        _ => why.to_string(),
    })?;
    Ok((netns, listening))
}

/// Serves clients, a few at once, until it is dropped; they are dropped with it.
async fn serve(listening: UnixListener, listener: Arc<Listener>, netns: Netns) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut clients = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        while clients.try_join_next().is_some() {}
        let stream = match listening.accept().await {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!(pod = listener.sandbox.title(), %why, "a client could not be let in");
                tokio::time::sleep(client::PATIENCE).await;
                continue;
            }
        };
        let (listener, netns) = (Arc::clone(&listener), netns.clone());
        clients.spawn(async move {
            client::serve(stream, &listener, netns).await;
            drop(place);
        });
    }
}
