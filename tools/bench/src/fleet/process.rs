//! The fleet process: many agents with their own Kubernetes adapters, each with a simulated kernel and container runtime.
//!
//! It is a process of its own, so that its memory, CPU time and connections are those of the agents. The agents share one async runtime;
//! each has its own client, event loop and state directory, as on a node.

use std::collections::BTreeMap;
use std::io::{self, Stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use knit_agent::config::{Config, Profile};
use knit_agent::daemon::{Daemon, Handle};
use knit_agent::executor::{Executor, ExecutorSource};
use knit_agent::kubernetes::{self, SandboxSource};
use knit_engine::call::{AttachmentMetadata, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::pods::RunningSandbox;
use knit_engine::{AttachRequest, CallId, CallResult, DetachRequest, Event, tenant_ranges};
use knit_kernel::memory;
use knit_model::provenance::Dialect;
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, SandboxId};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::protocol::{self, Command, FleetPod, Reply};
use super::simulated_kernel::{BOOT, SimulatedExecutor, SimulatedKernel, netns_path};
use crate::attach::raise_descriptor_limit;

/// How long all agents may take to sync, and a pod until the cluster network accepts it.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Delay before a pod is attached again, and between two checks of the agents.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Executor threads of an agent. The simulated kernel never waits.
const WORKERS: usize = 1;

/// Arguments of the fleet process.
#[derive(Args)]
pub struct Options {
    /// The kubeconfig of the agents
    #[arg(long)]
    kubeconfig: PathBuf,
}

/// Standard output, which all tasks share.
#[derive(Clone)]
struct Replies(Arc<Mutex<Stdout>>);

impl Replies {
    fn send(&self, reply: &Reply) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The benchmark has ended: so does this process, when it reads the next command.
        let _ = protocol::write(&mut *out, reply);
    }
}

/// An agent and its node.
struct Agent {
    /// Keeps the event loop running.
    _daemon: Daemon,
    handle: Handle,
    kernel: Arc<SimulatedKernel>,
    sandboxes: watch::Sender<BTreeMap<SandboxId, RunningSandbox>>,
    has_synced: Arc<AtomicBool>,
}

/// A running pod.
struct RunningPod {
    agent: Arc<Agent>,
    id: SandboxId,
}

struct Fleet {
    runtime: Runtime,
    folder: TempDir,
    kubeconfig: PathBuf,
    replies: Replies,
    agents: Vec<Arc<Agent>>,
    pods: BTreeMap<String, RunningPod>,
    /// The last cookie of a network namespace.
    cookie: u64,
    kernel_time: Arc<AtomicU64>,
}

/// Executes commands from standard input until it ends.
pub fn serve(options: &Options) -> Result<()> {
    memory::limit_arenas();
    raise_descriptor_limit()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut fleet = Fleet {
        runtime,
        folder: tempfile::tempdir().context("cannot create a temporary directory")?,
        kubeconfig: options.kubeconfig.clone(),
        replies: Replies(Arc::new(Mutex::new(io::stdout()))),
        agents: Vec::new(),
        pods: BTreeMap::new(),
        cookie: 0,
        kernel_time: Arc::default(),
    };
    for command in protocol::read(io::stdin().lock()) {
        if let Err(why) = fleet.execute(command?) {
            fleet.replies.send(&Reply::Failed(format!("{why:#}")));
        }
    }
    Ok(())
}

impl Fleet {
    fn execute(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Start(nodes) => self.start(&nodes),
            Command::StartPods(pods) => pods.into_iter().try_for_each(|pod| self.start_pod(pod)),
            Command::StopPods(uids) => uids.into_iter().try_for_each(|uid| self.stop_pod(uid)),
            Command::ReportKernelTime => {
                self.replies.send(&Reply::KernelTime(self.kernel_time.load(Ordering::Relaxed)));
                Ok(())
            }
        }
    }

    fn start(&mut self, nodes: &[String]) -> Result<()> {
        for node in nodes {
            let agent =
                self.start_agent(node).with_context(|| format!("cannot start the agent of {node}"))?;
            self.agents.push(Arc::new(agent));
        }
        let deadline = Instant::now() + TIMEOUT;
        while !self.agents.iter().all(|agent| agent.has_synced.load(Ordering::Relaxed)) {
            if Instant::now() > deadline {
                bail!("not all agents have synced after {} s", TIMEOUT.as_secs());
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        self.replies.send(&Reply::Synced);
        Ok(())
    }

    fn start_agent(&self, node: &str) -> Result<Agent> {
        let replies = self.replies.clone();
        // The id of a sandbox is the uid of its pod.
        let on_applied = Box::new(move |id: &SandboxId| {
            replies.send(&Reply::Applied { uid: id.0.clone(), at: protocol::now() });
        });
        let kernel = Arc::new(SimulatedKernel::new(Arc::clone(&self.kernel_time), on_applied));
        let folder = self.folder.path().join(node);
        std::fs::create_dir(&folder).context("cannot create a directory")?;
        let config = config(node, &folder, &self.kubeconfig);
        let (daemon, has_synced) = start_daemon(&config, &kernel)?;
        let handle = daemon.handle();
        let (sandboxes, lists) = watch::channel(BTreeMap::new());
        self.runtime.block_on(kubernetes::start_with(&config, &handle, SandboxSource::Lists(lists)))?;
        Ok(Agent { _daemon: daemon, handle, kernel, sandboxes, has_synced })
    }

    /// What a container runtime does: a namespace, an ADD, and then the sandbox is listed.
    fn start_pod(&mut self, pod: FleetPod) -> Result<()> {
        let agent = Arc::clone(self.agents.get(pod.agent).context("there is no such agent")?);
        self.cookie += 1;
        let (id, cookie) = (SandboxId(pod.uid.clone()), self.cookie);
        agent.kernel.create_namespace(&id, cookie);
        self.pods.insert(pod.uid.clone(), RunningPod { agent: Arc::clone(&agent), id: id.clone() });
        let replies = self.replies.clone();
        self.runtime.spawn(async move {
            match attach(&agent.handle, &id, &pod).await {
                Ok(addresses) => {
                    let instance = SandboxInstance { boot: BOOT.to_owned(), cookie };
                    let number = u32::try_from(cookie).unwrap_or(u32::MAX);
                    let uid = pod.uid.clone();
                    let running = RunningSandbox { uid, instance, netns: netns_path(&id), number };
                    agent.sandboxes.send_modify(|sandboxes| drop(sandboxes.insert(id, running)));
                    replies.send(&Reply::PodStarted { uid: pod.uid, addresses });
                }
                Err(why) => replies.send(&Reply::Failed(format!("pod {}: {why:#}", pod.name))),
            }
        });
        Ok(())
    }

    fn stop_pod(&mut self, uid: String) -> Result<()> {
        let RunningPod { agent, id } = self.pods.remove(&uid).context("there is no such pod")?;
        let replies = self.replies.clone();
        self.runtime.spawn(async move {
            let result = detach(&agent.handle, &id).await;
            agent.kernel.delete_namespace(&id);
            agent.sandboxes.send_modify(|sandboxes| drop(sandboxes.remove(&id)));
            replies.send(&match result {
                Ok(()) => Reply::PodStopped { uid },
                Err(why) => Reply::Failed(format!("sandbox {id}: {why:#}")),
            });
        });
        Ok(())
    }
}

/// Starts the event loop of an agent with a simulated kernel. Also returns whether its inputs have synced.
fn start_daemon(config: &Config, kernel: &Arc<SimulatedKernel>) -> Result<(Daemon, Arc<AtomicBool>)> {
    let mut options = config.options(None)?;
    let kernel = Arc::clone(kernel);
    let create = move || -> Box<dyn Executor> { Box::new(SimulatedExecutor(Arc::clone(&kernel))) };
    options.executor = Some(ExecutorSource(Arc::new(create)));
    let has_synced = Arc::clone(&options.has_synced);
    Ok((Daemon::start(options, None)?, has_synced))
}

/// The configuration of an agent, as in `deploy/primary`. Nothing on this machine is served or installed.
fn config(node: &str, folder: &Path, kubeconfig: &Path) -> Config {
    let mut config = Config {
        node_name: node.to_owned(),
        profile: Profile::Primary,
        kubeconfig: kubeconfig.to_owned(),
        nri_socket: "off".into(),
        state_dir: folder.join("state"),
        kni_socket: folder.join("kni.sock"),
        netns_dir: folder.join("netns"),
        metrics_addr: String::new(),
        health_addr: String::new(),
        workers: WORKERS,
        tenant_ranges: Some(tenant_ranges::all_addresses().to_vec()),
        ..Config::default()
    };
    config.cluster_network.masquerade = true;
    config
}

/// A CNI ADD. The runtime repeats it until the node has its cluster network.
async fn attach(handle: &Handle, id: &SandboxId, pod: &FleetPod) -> Result<Vec<String>> {
    let deadline = Instant::now() + TIMEOUT;
    for attempt in 0.. {
        let call = CallId(format!("add-{id}-{attempt}"));
        let interface = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let request = AttachRequest {
            call: call.clone(),
            dialect: Dialect::Cni,
            sandbox: SandboxRequest {
                id: id.0.clone(),
                netns: netns_path(id),
                pod: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
                ..SandboxRequest::default()
            },
            interfaces: vec![(IfName::new("eth0")?, String::new(), interface)],
            metadata: AttachmentMetadata { group: "knit".to_owned(), ..AttachmentMetadata::default() },
            fail_if_present: true,
            ticket: 0,
            started_at: 0,
        };
        let result = handle.call(call, Event::AttachRequested(Box::new(request)), |_, result| result).await;
        let why = match result {
            Ok(CallResult::Attached { interfaces, .. }) => {
                let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
                return Ok(addresses.map(|address| address.addr().to_string()).collect());
            }
            Ok(CallResult::Failed(problem)) | Err(problem) => problem.message,
            Ok(other) => format!("{other:?}"),
        };
        if Instant::now() > deadline {
            bail!("cannot attach: {why}");
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    unreachable!("the loop ends by a return")
}

/// A CNI DEL.
async fn detach(handle: &Handle, id: &SandboxId) -> Result<()> {
    let call = CallId(format!("del-{id}"));
    let request = DetachRequest {
        call: call.clone(),
        sandbox: id.clone(),
        netns: netns_path(id),
        scope: DetachScope::Interfaces([IfName::new("eth0")?].into()),
        forget_sandbox: true,
        started_at: 0,
    };
    match handle.call(call, Event::DetachRequested(request), |_, result| result).await {
        Ok(CallResult::Detached) => Ok(()),
        Ok(CallResult::Failed(problem)) | Err(problem) => bail!("cannot detach: {}", problem.message),
        Ok(other) => bail!("cannot detach: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_pod_is_attached_and_detached_without_a_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let (applied, sandboxes) = channel();
        let applied = Mutex::new(applied);
        let on_applied = Box::new(move |id: &SandboxId| {
            applied.lock().unwrap().send(id.clone()).unwrap();
        });
        let kernel = Arc::new(SimulatedKernel::new(Arc::default(), on_applied));
        let mut config = Config { state_dir: folder.path().join("state"), ..Config::default() };
        config.cluster_network.enabled = true;
        config.cluster_network.ranges = vec!["10.9.0.0/24".parse().unwrap()];
        let (daemon, _) = start_daemon(&config, &kernel).unwrap();
        let id = SandboxId("uid-1".to_owned());
        let pod = FleetPod {
            agent: 0,
            name: "web".to_owned(),
            namespace: "fleet".to_owned(),
            uid: id.0.clone(),
            labels: BTreeMap::new(),
        };
        kernel.create_namespace(&id, 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let addresses = runtime.block_on(attach(&daemon.handle(), &id, &pod)).unwrap();
        assert!(addresses.iter().any(|address| address.starts_with("10.9.0.")), "{addresses:?}");
        assert_eq!(kernel.links(&id), ["eth0", "lo"]);
        assert_eq!(sandboxes.recv().unwrap(), id);
        runtime.block_on(detach(&daemon.handle(), &id)).unwrap();
        assert_eq!(kernel.links(&id), ["lo"]);
        daemon.stop();
    }
}
