//! The node's sandboxes from the container runtime (CRI): sandbox, process, network namespace.
//!
//! All sandboxes are listed whenever the runtime, the API server or a timer indicates a change. Known sandboxes are cached by id; details
//! are requested only for new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knit_cri::{DEFAULT_SOCKETS, RuntimeClient, SandboxProcess};
use knit_engine::pods::{PodEvent, RunningSandbox};
use knit_model::SandboxId;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout_at};

use super::Context;
use super::informers::Informer;
use crate::process_netns::{self, ProcessNetns};
use crate::sandboxes::netns_of;

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(3);
/// Interval of lists without an indication of a change.
const RELIST_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of lists while a sandbox has no process yet.
const STARTING_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Delay after the connection failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Where the node's sandboxes come from.
#[derive(Debug)]
pub enum SandboxSource {
    /// The container runtime with this socket; without one, containerd's or CRI-O's.
    Runtime(Option<PathBuf>),
    /// Complete lists by the caller, for a node without a container runtime.
    Lists(watch::Receiver<BTreeMap<SandboxId, RunningSandbox>>),
}

/// The running sandboxes.
#[derive(Default)]
struct KnownSandboxes {
    running: BTreeMap<SandboxId, RunningSandbox>,
    /// Those on the host network: they need no further lookup.
    on_host: BTreeSet<SandboxId>,
}

/// Lists sandboxes. While the runtime is unavailable, the last known ones stay.
pub(super) async fn run(context: Context, socket: Option<PathBuf>) {
    let (mut is_away, mut informer) = (false, context.informer());
    loop {
        let socket = socket.clone().unwrap_or_else(find);
        let Err(why) = session(&context, &socket, &mut informer).await;
        if !is_away {
            tracing::warn!(error = %why, "container runtime unavailable; keeping the known sandboxes and retrying");
        }
        is_away = true;
        sleep(RETRY_INTERVAL).await;
    }
}

/// Submits each list of the caller, as [`run`] does with those of the runtime. Ends with the caller.
pub(super) async fn run_lists(
    context: Context,
    mut lists: watch::Receiver<BTreeMap<SandboxId, RunningSandbox>>,
) {
    let mut informer = context.informer();
    loop {
        let requested_at = context.monotonic_now();
        let sandboxes = lists.borrow_and_update().clone();
        context.submit_pods(PodEvent::Running { sandboxes, requested_at });
        informer.mark_synced();
        if lists.changed().await.is_err() {
            return;
        }
        sleep(SETTLE_TIME).await;
    }
}

/// The first socket that exists; containerd's if none does.
fn find() -> PathBuf {
    let mut sockets = DEFAULT_SOCKETS.iter().map(Path::new);
    sockets.find(|path| path.exists()).unwrap_or(Path::new(DEFAULT_SOCKETS[0])).to_owned()
}

/// Runs one connection until it fails.
async fn session(
    context: &Context,
    socket: &Path,
    informer: &mut Informer,
) -> Result<std::convert::Infallible, knit_cri::Error> {
    let (mut runtime, version) = RuntimeClient::connect(socket).await?;
    tracing::info!(runtime = version, socket = %socket.display(), "connected to the container runtime");
    let _listener =
        EventListener(tokio::spawn(listen(runtime.clone(), Arc::clone(&context.sandboxes_changed))));
    let mut known = KnownSandboxes::default();
    loop {
        let requested = context.monotonic_now();
        let is_complete = list(&mut runtime, &mut known).await?;
        let sandboxes = known.running.clone();
        context.submit_pods(PodEvent::Running { sandboxes, requested_at: requested });
        if is_complete {
            informer.mark_synced();
        }
        let wait = if is_complete { RELIST_INTERVAL } else { STARTING_POLL_INTERVAL };
        let _ = timeout_at(Instant::now() + wait, context.sandboxes_changed.notified()).await;
        sleep(SETTLE_TIME).await;
    }
}

/// The event listener of a connection; aborted on drop.
struct EventListener(tokio::task::JoinHandle<()>);

impl Drop for EventListener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Requests a list for every event of the runtime. Some runtimes have no events: then watch events of pods trigger lists.
async fn listen(mut runtime: RuntimeClient, sandboxes_changed: Arc<Notify>) {
    // The response starts with the first event, so this task waits for it.
    let mut events = match runtime.events().await {
        Ok(events) => events,
        Err(why) => {
            tracing::info!(error = %why, "the container runtime has no events; sandboxes are listed on changes of pods");
            return;
        }
    };
    loop {
        sandboxes_changed.notify_one();
        match events.next().await {
            Ok(Some(())) => {}
            // The next list detects a failed connection.
            Ok(None) | Err(_) => return,
        }
    }
}

/// Lists all sandboxes. Returns whether every running one is known.
async fn list(runtime: &mut RuntimeClient, known: &mut KnownSandboxes) -> Result<bool, knit_cri::Error> {
    let listed = runtime.running_sandboxes().await?;
    let ids: BTreeSet<&str> = listed.iter().map(|one| one.id.as_str()).collect();
    let is_listed = |id: &SandboxId| ids.contains(id.0.as_str());
    known.running.retain(|id, running| is_listed(id) && Path::new(&running.netns).exists());
    known.on_host.retain(is_listed);
    let mut is_complete = true;
    for one in &listed {
        let id = SandboxId(one.id.clone());
        if known.running.contains_key(&id) || known.on_host.contains(&id) {
            continue;
        }
        match find_netns(runtime, &one.id, &one.uid).await? {
            Found::Running(running) => {
                tracing::debug!(
                    pod = one.name,
                    namespace = one.namespace,
                    sandbox = one.id,
                    ?running,
                    "sandbox is running"
                );
                known.running.insert(id, running);
            }
            Found::Host => drop(known.on_host.insert(id)),
            Found::NotYet => is_complete = false,
        }
    }
    Ok(is_complete)
}

enum Found {
    Running(RunningSandbox),
    Host,
    NotYet,
}

/// Finds the namespace of a sandbox. Because pids are reused, the runtime is asked before and after, and the namespace's cookie must be
/// the same both times.
async fn find_netns(runtime: &mut RuntimeClient, sandbox: &str, uid: &str) -> Result<Found, knit_cri::Error> {
    let number = match runtime.sandbox_process(sandbox).await? {
        SandboxProcess::Pid(pid) => pid,
        SandboxProcess::Host => return Ok(Found::Host),
        SandboxProcess::None => return Ok(Found::NotYet),
    };
    let before = process_netns::find(number).await;
    if runtime.sandbox_process(sandbox).await? != SandboxProcess::Pid(number) {
        return Ok(Found::NotYet);
    }
    match (before, process_netns::find(number).await) {
        (Some(ProcessNetns::Sandbox(before)), Some(ProcessNetns::Sandbox(after))) if before == after => {
            Ok(Found::Running(RunningSandbox {
                uid: uid.to_owned(),
                instance: after,
                netns: netns_of(number),
                number,
            }))
        }
        (Some(ProcessNetns::Host), _) => Ok(Found::Host),
        _ => Ok(Found::NotYet),
    }
}
