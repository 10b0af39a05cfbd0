//! NRI: the container runtime reports a pod's sandbox before its containers start, and waits until its networks are ready.
//!
//! The pod takes the same path as one from an API server or `knit sandbox add`; only the reply waits. [`knit_engine::pod_start`] decides
//! whether a pod is complete. The runtime is always answered in time: a runtime that times out closes the connection, and later pods would
//! not be held.

mod standalone;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knit_engine::pod_start::StartProgress;
use knit_engine::pods::{Pod, RunningSandbox, sandbox};
use knit_engine::{Event, State};
use knit_model::SandboxId;
use knit_model::sandbox::SandboxInstance;
use knit_nri::{Error, Plugin, RuntimeInfo, serve};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) use standalone::StandaloneRegistry;

use crate::daemon::Handle;
use crate::pod::of_runtime;
use crate::process_netns::{self, ProcessNetns};
use crate::sandboxes::netns_of;

/// The longest delay of a reply to the runtime.
const REPLY_TIMEOUT: Duration = Duration::from_millis(900);
/// Delay after the connection failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a starting agent waits for its informers to sync before it connects anyway.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it checks whether they have synced.
const SYNC_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The registry of pods behind NRI: supplies what is known of pods and receives their sandboxes.
pub(crate) trait PodRegistry: Send + Sync + 'static {
    /// The pod as known from the API server.
    fn pod(&self, uid: &str) -> Option<Pod>;

    /// A sandbox is running.
    fn sandbox_started(&self, id: SandboxId, pod: Pod, running: RunningSandbox);

    /// A sandbox was removed, or never started.
    fn sandbox_removed(&self, id: SandboxId);

    /// Sandboxes may have started or stopped unnoticed. Returns whether the running ones are to be passed to `sandbox_started`.
    fn connection_reset(&self) -> bool;

    /// Sandboxes that wait for something other than the kernel.
    fn waiting(&self, state: &State) -> BTreeSet<SandboxId>;

    /// A pod's containers started before these objects were configured.
    fn started_early(&self, pod: Pod, objects: Vec<String>);
}

/// Serves the runtime. Does nothing where there is no runtime with NRI.
pub(crate) async fn run(socket: PathBuf, handle: Handle, registry: Arc<dyn PodRegistry>) {
    let until = Instant::now() + SYNC_TIMEOUT;
    while !handle.has_synced() && Instant::now() < until {
        sleep(SYNC_POLL_INTERVAL).await;
    }
    let hold = Arc::new(StartHold { handle, registry, timeout: Mutex::new(REPLY_TIMEOUT) });
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
        let registry = Arc::clone(&self.registry);
        // Their containers already run: not awaited.
        tokio::spawn(async move {
            for reported in pods {
                let id = SandboxId(reported.id.clone());
                if let Some(running) = find(&reported).await {
                    registry.sandbox_started(id, of_runtime(reported), running);
                }
            }
        });
    }

    async fn run_pod_sandbox(&self, reported: knit_nri::PodSandbox) {
        let started = Instant::now();
        let until = started + *self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, reported_pod) = (SandboxId(reported.id.clone()), of_runtime(reported.clone()));
        let pod = self.registry.pod(&reported_pod.uid).unwrap_or_else(|| reported_pod.clone());
        if pod.host_network || !self.is_selected(&pod).await {
            return;
        }
        let Some(running) = find(&reported).await else { return };
        let mut guard = EarlyStartGuard { registry: &*self.registry, pod: Some(pod.clone()) };
        self.registry.sandbox_started(id.clone(), reported_pod, running);
        let progress = self.wait(&id, until).await;
        guard.pod = None;
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
                self.handle.submit(Event::ContainersStarting(id))
            }
            StartProgress::NothingRequested => {}
        }
    }

    fn remove_pod_sandbox(&self, pod: knit_nri::PodSandbox) {
        self.registry.sandbox_removed(SandboxId(pod.id));
    }
}

impl StartHold {
    /// Whether any object selects the pod. Most pods are not selected and start at once.
    async fn is_selected(&self, pod: &Pod) -> bool {
        let unknown_netns = RunningSandbox {
            uid: pod.uid.clone(),
            instance: SandboxInstance { boot: String::new(), cookie: 0 },
            netns: String::new(),
            number: 0,
        };
        let probe = sandbox(SandboxId(String::new()), &unknown_netns, pod);
        let query = self.handle.query(move |node| node.state().objects_selecting(&probe).next().is_some());
        query.await.unwrap_or(false)
    }

    /// Waits until a pod is complete or blocked, or until the timeout.
    async fn wait(&self, id: &SandboxId, until: Instant) -> StartProgress {
        let mut version = self.handle.state_version();
        loop {
            version.mark_unchanged();
            let (id, registry) = (id.clone(), Arc::clone(&self.registry));
            let query = self.handle.query(move |node| {
                let state = node.state();
                state.start_progress(&id, &registry.waiting(state))
            });
            // A loop that is busy for this long counts as late.
            let progress = match timeout_at(until, query).await {
                Ok(Ok(progress)) => progress,
                Ok(Err(_)) => return StartProgress::NothingRequested,
                Err(_) => return StartProgress::InProgress(Vec::new()),
            };
            if !matches!(progress, StartProgress::InProgress(_)) {
                return progress;
            }
            match timeout_at(until, version.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return progress,
            }
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
