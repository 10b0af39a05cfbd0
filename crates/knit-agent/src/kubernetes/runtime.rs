//! The node's sandboxes, from the container runtime: sandbox, process, network namespace.
//!
//! The runtime is looked at as a whole, whenever it, the API server or the clock says that something may be new. What was
//! found stays known by the sandbox's id; only new sandboxes are asked about.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knit_cri::{Process, Runtime, SOCKETS};
use knit_engine::pods::Running;
use knit_model::SandboxId;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::Shared;
use super::tellers::Teller;
use crate::sandboxes::netns_of;
use crate::visit::{Visited, visit};

/// Changes often come in groups: so long after the first the runtime is looked at.
const GROUP: Duration = Duration::from_millis(3);
/// Without any hint the runtime is looked at this often.
const ANYWAY: Duration = Duration::from_secs(10);
/// While a sandbox has no process yet, it is asked about this often.
const SOON: Duration = Duration::from_millis(100);
/// After the runtime was away it is tried again after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the sandboxes that run.
type Known = BTreeMap<SandboxId, Running>;

/// Looks at the runtime for as long as it is polled. While it is away, all that is known stays.
pub(super) async fn follow(shared: Shared, socket: Option<PathBuf>) {
    let (mut is_away, mut teller) = (false, shared.teller());
    loop {
        let socket = socket.clone().unwrap_or_else(find);
        let Err(why) = session(&shared, &socket, &mut teller).await;
        if !is_away {
            tracing::warn!(%why, "what is known of running pods stays, and it is tried again");
        }
        is_away = true;
        sleep(AGAIN).await;
    }
}

/// The first socket that is there; containerd's if none is.
fn find() -> PathBuf {
    let mut sockets = SOCKETS.iter().map(Path::new);
    sockets.find(|path| path.exists()).unwrap_or(Path::new(SOCKETS[0])).to_owned()
}

/// One connection, until it fails.
async fn session(
    shared: &Shared,
    socket: &Path,
    teller: &mut Teller,
) -> Result<std::convert::Infallible, knit_cri::Error> {
    let (mut runtime, version) = Runtime::connect(socket).await?;
    tracing::info!(runtime = version, socket = %socket.display(), "running pods are known from");
    let _listening = Listening(tokio::spawn(listen(runtime.clone(), Arc::clone(&shared.look))));
    let mut known = Known::new();
    loop {
        let asked = shared.moment();
        let is_whole = look(shared, &mut runtime, &mut known).await?;
        shared.pods().run(known.clone(), asked);
        shared.feed_pods();
        if is_whole {
            teller.told_all();
        }
        let wait = if is_whole { ANYWAY } else { SOON };
        let _ = timeout_at(Instant::now() + wait, shared.look.notified()).await;
        sleep(GROUP).await;
    }
}

/// Ends with the connection that it listens on.
struct Listening(tokio::task::JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Has the runtime looked at whenever it says that something changed. Some runtimes do not say: then pods' events do.
async fn listen(mut runtime: Runtime, look: Arc<Notify>) {
    // The answer begins with the first change, so it is waited for here and not on the way.
    let mut events = match runtime.events().await {
        Ok(events) => events,
        Err(why) => {
            tracing::info!(%why, "the runtime tells no changes: pods are looked at when the API server tells some");
            return;
        }
    };
    loop {
        look.notify_one();
        match events.next().await {
            Ok(Some(())) => {}
            // The next look notices that the runtime is away, if it is.
            Ok(None) | Err(_) => return,
        }
    }
}

/// Looks at all sandboxes. Says whether everything there is to know is known.
async fn look(shared: &Shared, runtime: &mut Runtime, known: &mut Known) -> Result<bool, knit_cri::Error> {
    let listed = runtime.running().await?;
    let is_listed = |id: &SandboxId| listed.iter().any(|one| one.id == id.0);
    known.retain(|id, running| is_listed(id) && Path::new(&running.netns).exists());
    let mut is_whole = true;
    for one in listed {
        let id = SandboxId(one.id.clone());
        if known.contains_key(&id) || is_on_host(shared, &one.uid) {
            continue;
        }
        match find_process(runtime, &one.id, &one.uid).await? {
            Found::Running(running) => {
                tracing::debug!(
                    pod = one.name,
                    namespace = one.namespace,
                    sandbox = one.id,
                    ?running,
                    "runs"
                );
                known.insert(id, running);
            }
            Found::Host => {}
            Found::NotYet => is_whole = false,
        }
    }
    Ok(is_whole)
}

/// Whether the API server says that a pod uses the node's own network: then the runtime need not be asked.
fn is_on_host(shared: &Shared, uid: &str) -> bool {
    shared.pods().get(uid).is_some_and(|pod| pod.host_network)
}

enum Found {
    Running(Running),
    Host,
    NotYet,
}

/// From a sandbox to its namespace. A pid is used again sooner or later: so the runtime is asked before and after, and the
/// namespace's cookie has to be the same both times.
async fn find_process(runtime: &mut Runtime, sandbox: &str, uid: &str) -> Result<Found, knit_cri::Error> {
    let number = match runtime.process(sandbox).await? {
        Process::Pid(pid) => pid,
        Process::Host => return Ok(Found::Host),
        Process::None => return Ok(Found::NotYet),
    };
    let before = visit(number).await;
    if runtime.process(sandbox).await? != Process::Pid(number) {
        return Ok(Found::NotYet);
    }
    match (before, visit(number).await) {
        (Some(Visited::Sandbox(before)), Some(Visited::Sandbox(after))) if before == after => {
            Ok(Found::Running(Running {
                uid: uid.to_owned(),
                instance: after,
                netns: netns_of(number),
                number,
            }))
        }
        (Some(Visited::Host), _) => Ok(Found::Host),
        _ => Ok(Found::NotYet),
    }
}
