//! NRI: the container runtime reports a pod's sandbox before its containers start, and waits until its networks are ready.
//!
//! The pod takes the same path as one from an API server or `knit sandbox add`; only the reply waits. [`knit_engine::pod_start`] decides
//! whether a pod is complete. The runtime is always answered in time: a runtime that times out closes the connection, and later pods would
//! not be held.

mod standalone;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knit_engine::pod_start::{PodStart, StartProgress, StartingSandbox};
use knit_engine::pods::{Pod, RunningSandbox, sandbox};
use knit_engine::{CallId, CallResult, Event};
use knit_model::SandboxId;
use knit_nri::{Error, Plugin, RuntimeInfo, serve};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use standalone::StandaloneRegistry;

use crate::daemon::Handle;
use crate::pod::of_runtime;
use crate::process_netns::{self, ProcessNetns};
use crate::sandboxes::netns_of;

/// The longest delay of a reply to the runtime.
const REPLY_TIMEOUT: Duration = Duration::from_millis(900);
/// How much longer a reply may take to name the objects that are not ready.
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(20);
/// Delay after the connection failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a starting agent waits for its informers to sync before it connects anyway.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it checks whether they have synced.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The registry of pods behind NRI: the cluster's, or that of a machine without one.
pub(crate) trait PodRegistry: Send + Sync + 'static {
    /// A starting sandbox, as the engine handles it.
    fn starting(&self, id: SandboxId, pod: Pod, running: RunningSandbox) -> StartingSandbox;

    /// A sandbox was removed, or never started.
    fn sandbox_removed(&self, id: SandboxId);

    /// Sandboxes may have started or stopped unnoticed. Returns whether the running ones are to be reported to the engine.
    fn connection_reset(&self) -> bool;

    /// The engine has handled a starting sandbox.
    fn started(&self);

    /// A pod's containers started before these objects were configured.
    fn started_early(&self, pod: Pod, objects: Vec<String>);
}

/// Serves the runtime. Does nothing where there is no runtime with NRI.
pub(crate) async fn run(socket: PathBuf, handle: Handle, registry: Arc<dyn PodRegistry>) {
    let until = Instant::now() + SYNC_TIMEOUT;
    while !handle.has_synced() && Instant::now() < until {
        sleep(SYNC_POLL_INTERVAL).await;
    }
    let hold = Arc::new(StartHold {
        handle,
        registry,
        timeout: Mutex::new(REPLY_TIMEOUT),
        next_call: AtomicU64::new(0),
    });
    let mut is_away = false;
    loop {
        let Err(why) = serve(&socket, Arc::clone(&hold)).await;
        match why {
            Error::Connect { .. } if is_away => {}
            Error::Connect { .. } => {
                tracing::info!(error = %why, "NRI unavailable: networks are attached to running pods; retrying");
            }
            _ => {
                tracing::warn!(error = %why, "NRI connection lost: networks are attached to running pods until it is back")
            }
        }
        is_away = matches!(why, Error::Connect { .. });
        if !is_away {
            hold.registry.connection_reset();
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// The NRI plugin.
struct StartHold {
    handle: Handle,
    registry: Arc<dyn PodRegistry>,
    timeout: Mutex<Duration>,
    /// Numbers the calls of the runtime.
    next_call: AtomicU64,
}

impl Plugin for StartHold {
    fn configure(&self, runtime: RuntimeInfo) {
        tracing::info!(
            runtime = runtime.version,
            "connected to NRI: containers wait for their pod's networks"
        );
        // The runtime's configured timeout may be shorter.
        let timeout = runtime.request_timeout.map_or(REPLY_TIMEOUT, |waits| REPLY_TIMEOUT.min(waits / 2));
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    fn synchronize(&self, pods: Vec<knit_nri::PodSandbox>) {
        if !self.registry.connection_reset() {
            return;
        }
        let handle = self.handle.clone();
        // Their containers already run: not awaited.
        tokio::spawn(async move {
            for reported in pods {
                let id = SandboxId(reported.id.clone());
                if let Some(running) = find(&reported).await {
                    handle.submit(Event::SandboxStarted(sandbox(id, &running, &of_runtime(reported))));
                }
            }
        });
    }

    async fn run_pod_sandbox(&self, reported: knit_nri::PodSandbox) {
        let started = Instant::now();
        let until = started + *self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, pod) = (SandboxId(reported.id.clone()), of_runtime(reported.clone()));
        let Some(running) = find(&reported).await else { return };
        let sandbox = self.registry.starting(id.clone(), pod.clone(), running);
        let mut guard = EarlyStartGuard { registry: &*self.registry, pod: Some(pod.clone()) };
        let progress = self.wait(&id, sandbox, until).await;
        guard.pod = None;
        self.registry.started();
        tracing::debug!(
            pod = pod.name,
            namespace = pod.namespace,
            ?progress,
            "releasing the pod's containers"
        );
        let result = match progress {
            StartProgress::Ready => Some("complete"),
            StartProgress::Blocked(_) => Some("blocked"),
            StartProgress::InProgress(_) => Some("late"),
            StartProgress::NothingRequested => None,
        };
        if let Some(result) = result {
            self.handle.metrics().started(result, started.elapsed());
        }
        match progress {
            // What completes from now on is late.
            StartProgress::InProgress(objects) => self.registry.started_early(pod, objects),
            StartProgress::Ready | StartProgress::Blocked(_) => {
                self.handle.submit(Event::ContainersStarting(id));
            }
            StartProgress::NothingRequested => {}
        }
    }

    fn remove_pod_sandbox(&self, pod: knit_nri::PodSandbox) {
        self.registry.sandbox_removed(SandboxId(pod.id));
    }
}

impl StartHold {
    /// Waits until a pod is complete or blocked, or until the timeout. Most pods request nothing and start at once.
    async fn wait(&self, id: &SandboxId, sandbox: StartingSandbox, until: Instant) -> StartProgress {
        let call = CallId(format!("nri-{}-{}", id.0, self.next_call.fetch_add(1, Ordering::Relaxed)));
        let start = PodStart { call: call.clone(), id: id.clone(), sandbox };
        let result = self.handle.call(call, Event::PodStarting(Box::new(start)), |_, result| result);
        match timeout_at(until, result).await {
            Ok(Ok(CallResult::PodStarted(progress))) => return progress,
            Ok(Ok(_) | Err(_)) => return StartProgress::NothingRequested,
            Err(_) => {}
        }
        let id = id.clone();
        let progress = self.handle.query(move |node| node.state().start_progress(&id));
        // A loop that is busy for this long counts as late.
        match timeout_at(until + PROGRESS_TIMEOUT, progress).await {
            Ok(Ok(StartProgress::InProgress(objects))) => StartProgress::InProgress(objects),
            _ => StartProgress::InProgress(Vec::new()),
        }
    }
}

/// The namespace of a sandbox, by its process: the runtime waits, so its pid is not reused. `None` for a sandbox on the host network or
/// without a process.
async fn find(reported: &knit_nri::PodSandbox) -> Option<RunningSandbox> {
    let number = reported.pid;
    match process_netns::find(number).await.filter(|_| number != 0)? {
        ProcessNetns::Sandbox(instance) => {
            Some(RunningSandbox { uid: reported.uid.clone(), instance, netns: netns_of(number), number })
        }
        ProcessNetns::Host => None,
    }
}

/// Reports an early start, unless it is disarmed.
struct EarlyStartGuard<'a> {
    registry: &'a dyn PodRegistry,
    pod: Option<Pod>,
}

impl Drop for EarlyStartGuard<'_> {
    fn drop(&mut self) {
        if let Some(pod) = self.pod.take() {
            self.registry.started_early(pod, Vec::new());
        }
    }
}
