//! Before the containers start: the container runtime tells of a pod's sandbox (NRI) and waits until its networks are there.
//!
//! What is known of the pod goes the same way as when an API server or `knit sandbox add` tells of it; only the answer waits.
//! Whether a pod is complete is decided in [`knit_engine::starting`]. However long the kernel takes, the runtime is answered
//! in time: one that waits too long ends the connection, and no later pod would be waited for.

mod machine;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knit_engine::pods::{Pod, Running, sandbox};
use knit_engine::starting::Progress;
use knit_engine::{Event, State};
use knit_model::SandboxId;
use knit_model::sandbox::Instance;
use knit_nri::{Error, Plugin, Runtime, serve};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use machine::Machine;

use crate::daemon::Handle;
use crate::pod::of_runtime;
use crate::sandboxes::netns_of;
use crate::visit::{Visited, visit};

/// The runtime is answered after this long at the latest.
const BOUND: Duration = Duration::from_millis(900);
/// After the runtime was away it is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);
/// An agent that has just begun does not know all objects yet. It is waited for that this long, then what is known counts.
const HEARD: Duration = Duration::from_secs(5);
/// While it is waited for, it is asked this often.
const ASKED: Duration = Duration::from_millis(20);

/// Who knows of pods, and is told of them.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// What the API server says of a pod, if it has told of it.
    fn known(&self, uid: &str) -> Option<Pod>;

    /// A sandbox runs.
    fn seen(&self, id: SandboxId, pod: Pod, running: Running);

    /// A sandbox is gone, or never came to be.
    fn gone(&self, id: SandboxId);

    /// Sandboxes may have come or gone while nobody was told. Says whether those that run are to be told, one by one.
    fn lost_sight(&self) -> bool;

    /// Sandboxes that wait for someone else than the kernel.
    fn waiting(&self, state: &State) -> BTreeSet<SandboxId>;

    /// The containers of a pod were started before these objects had what they ask for.
    fn missed(&self, pod: Pod, objects: Vec<String>);
}

/// Answers the runtime for as long as it is polled. Where there is no runtime with NRI nothing happens.
pub(crate) async fn follow(socket: PathBuf, handle: Handle, keeper: Arc<dyn Keeper>) {
    let until = Instant::now() + HEARD;
    while !handle.has_heard_all() && Instant::now() < until {
        sleep(ASKED).await;
    }
    let waits = Arc::new(Waits { handle, keeper, bound: Mutex::new(BOUND) });
    let mut is_away = false;
    loop {
        let Err(why) = serve(&socket, Arc::clone(&waits)).await;
        match why {
            Error::Connect { .. } if is_away => {}
            Error::Connect { .. } => {
                tracing::info!(%why, "pods get their networks while they run; it is tried again");
            }
            _ => tracing::warn!(%why, "until it is there again pods get their networks while they run"),
        }
        is_away = matches!(why, Error::Connect { .. });
        if !is_away {
            waits.keeper.lost_sight();
        }
        sleep(AGAIN).await;
    }
}

/// Has the runtime wait.
struct Waits {
    handle: Handle,
    keeper: Arc<dyn Keeper>,
    bound: Mutex<Duration>,
}

impl Plugin for Waits {
    fn configured(&self, runtime: Runtime) {
        tracing::info!(runtime = runtime.title, "pods' containers wait for their networks (NRI)");
        // A runtime may be told to wait for less than it usually does.
        let bound = runtime.waits.map_or(BOUND, |waits| BOUND.min(waits / 2));
        *self.bound.lock().unwrap_or_else(PoisonError::into_inner) = bound;
    }

    fn synchronized(&self, pods: Vec<knit_nri::Pod>) {
        if !self.keeper.lost_sight() {
            return;
        }
        let keeper = Arc::clone(&self.keeper);
        // They run already: nobody waits.
        tokio::spawn(async move {
            for told in pods {
                let id = SandboxId(told.id.clone());
                if let Some(running) = find(&told).await {
                    keeper.seen(id, of_runtime(told), running);
                }
            }
        });
    }

    async fn starts(&self, told: knit_nri::Pod) {
        let began = Instant::now();
        let until = began + *self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, said) = (SandboxId(told.id.clone()), of_runtime(told.clone()));
        let pod = self.keeper.known(&said.uid).unwrap_or_else(|| said.clone());
        if pod.host_network || !self.is_meant(&pod).await {
            return;
        }
        let Some(running) = find(&told).await else { return };
        let mut cut = Cut { keeper: &*self.keeper, pod: Some(pod.clone()) };
        self.keeper.seen(id.clone(), said, running);
        let progress = self.wait(&id, until).await;
        cut.pod = None;
        tracing::debug!(pod = pod.name, namespace = pod.namespace, ?progress, "its containers are started");
        let result = match progress {
            Progress::Stands => Some("complete"),
            Progress::Hindered(_) => Some("hindered"),
            Progress::UnderWay(_) => Some("late"),
            Progress::Nothing => None,
        };
        if let Some(result) = result {
            self.handle.metrics().started(result, began.elapsed());
        }
        match progress {
            // What comes to stand in this moment was not waited for.
            Progress::UnderWay(objects) => self.keeper.missed(pod, objects),
            Progress::Stands | Progress::Hindered(_) => self.handle.feed(move |_| vec![Event::Starting(id)]),
            Progress::Nothing => {}
        }
    }

    fn removed(&self, pod: knit_nri::Pod) {
        self.keeper.gone(SandboxId(pod.id));
    }
}

impl Waits {
    /// Whether any object asks for something in such a pod. Most pods are nobody's, and go on at once.
    async fn is_meant(&self, pod: &Pod) -> bool {
        let nowhere = Running {
            uid: pod.uid.clone(),
            instance: Instance { boot: String::new(), cookie: 0 },
            netns: String::new(),
            number: 0,
        };
        let bare = sandbox(SandboxId(String::new()), &nowhere, pod);
        let asked = self.handle.ask(move |node| node.state().asking(&bare).next().is_some());
        asked.await.unwrap_or(false)
    }

    /// Waits until a pod is complete, or cannot be, or the time is over.
    async fn wait(&self, id: &SandboxId, until: Instant) -> Progress {
        let mut version = self.handle.version();
        loop {
            version.mark_unchanged();
            let (id, keeper) = (id.clone(), Arc::clone(&self.keeper));
            let asked = self.handle.ask(move |node| {
                let state = node.state();
                state.progress(&id, &keeper.waiting(state))
            });
            // An agent whose loop is busy for so long has missed the time, too.
            let progress = match timeout_at(until, asked).await {
                Ok(Ok(progress)) => progress,
                Ok(Err(_)) => return Progress::Nothing,
                Err(_) => return Progress::UnderWay(Vec::new()),
            };
            if !matches!(progress, Progress::UnderWay(_)) {
                return progress;
            }
            match timeout_at(until, version.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return progress,
            }
        }
    }
}

/// The namespace of a sandbox, by the process that holds it: the runtime waits, so that it is no other's. `None` for a sandbox
/// that uses the node's network, or that no process holds.
async fn find(told: &knit_nri::Pod) -> Option<Running> {
    let number = told.pid;
    match visit(number).await.filter(|_| number != 0)? {
        Visited::Sandbox(instance) => {
            Some(Running { uid: told.uid.clone(), instance, netns: netns_of(number), number })
        }
        Visited::Host => None,
    }
}

/// Tells that the runtime did not wait, unless it did.
struct Cut<'a> {
    keeper: &'a dyn Keeper,
    pod: Option<Pod>,
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        if let Some(pod) = self.pod.take() {
            self.keeper.missed(pod, Vec::new());
        }
    }
}
