//! A node under test: an agent's event loop with its executors in this process, on a network namespace that is its host, and pods
//! on the bridge of its cluster network.
//!
//! What an API server and a container runtime would submit, the benchmark submits.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_agent::cluster_network::BRIDGE;
use knit_agent::config::{Config, Profile};
use knit_agent::daemon::{ClusterNetworkObject, Daemon, Handle};
use knit_agent::standalone::{Decision, NodeAccess};
use knit_engine::call::{AttachmentMetadata, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::{AttachRequest, CallId, CallResult, DetachRequest, Event, tenant_ranges};
use knit_kernel::netlink::Protocol;
use knit_kernel::netns::bring_up_loopback;
use knit_kernel::{Netns, Socket};
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use knit_model::{IfName, SandboxId};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::objects::ClusterPod;
use crate::attach::{Pod, scratch_host};
use crate::cleanup::Cleanup;
use crate::kni::path_of;

/// The ranges of the node's pods.
const RANGES: [&str; 2] = ["10.75.0.0/16", "fd75:6b6e:6974::/64"];
const MTU: u32 = 1_500;
const INTERFACE: &str = "eth0";
/// How long the node may take until nothing is in flight.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// An agent and its host.
pub struct PolicyNode {
    runtime: Runtime,
    handle: Handle,
    /// Ends before its files are removed. Its threads hold the host.
    daemon: Option<Daemon>,
    _folder: TempDir,
    /// The number of calls so far.
    calls: Cell<u64>,
}

/// A running pod of the node.
pub struct RunningPod {
    /// Its network namespace.
    pub pod: Pod,
    /// The pod in the cluster, with its addresses.
    pub object: ClusterPod,
}

impl RunningPod {
    /// Its network namespace.
    pub fn netns(&self) -> &Netns {
        self.pod.netns()
    }

    /// Its IPv4 address.
    pub fn address(&self) -> Result<IpAddr> {
        let found = self.object.pod.addresses.iter().find(|address| address.is_ipv4());
        found.copied().with_context(|| format!("pod {} has no IPv4 address", self.object.key.name))
    }
}

impl PolicyNode {
    /// Starts an agent with the profile `primary`, without an API server. `program` is the eBPF program of the fast path; without one all
    /// packets take the bridge.
    pub fn start(program: Option<&'static [u8]>, cleanup: &Cleanup) -> Result<Self> {
        let host = scratch_host()?;
        bring_up_loopback(&mut Socket::open_in(&host, Protocol::Route)?)?;
        for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let path = format!("/proc/sys/net/{name}");
            host.enter(|| std::fs::write(&path, "1"))?.with_context(|| format!("cannot write {path}"))?;
        }
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        let path = folder.path().to_owned();
        // It is gone already unless a signal ends the process.
        cleanup.defer(move || drop(std::fs::remove_dir_all(path)));
        let options = config(&folder).options(program)?;
        let daemon = host.enter(|| Daemon::start(options, None))??;
        let handle = daemon.handle();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let daemon = Some(daemon);
        let node = Self { runtime, handle, daemon, _folder: folder, calls: Cell::new(0) };
        node.runtime
            .block_on(node.handle.set_cluster_network(Some(cluster_network()?)))
            .map_err(|why| anyhow::anyhow!("the agent rejects the cluster network: {why}"))?;
        node.handle.mark_synced();
        node.settle()?;
        Ok(node)
    }

    /// Starts pods that the API server has already.
    pub fn start_pods(&self, objects: Vec<ClusterPod>) -> Result<Vec<RunningPod>> {
        let start = |object: ClusterPod| {
            let pod = Pod::new()?;
            let addresses = self.attach(&object, &pod)?;
            Ok(RunningPod { pod, object: object.at(&addresses) })
        };
        objects.into_iter().map(start).collect()
    }

    /// Attaches a pod to the cluster network, as by a CNI ADD. Returns its addresses.
    pub fn attach(&self, object: &ClusterPod, pod: &Pod) -> Result<Vec<IpAddr>> {
        let call = self.next_call("attach");
        let interface = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let request = AttachRequest {
            call: call.clone(),
            dialect: Dialect::Cni,
            sandbox: SandboxRequest {
                id: object.pod.uid.clone(),
                netns: path_of(pod.netns()),
                pod: object.key.name.clone(),
                namespace: object.key.namespace.clone(),
                uid: object.pod.uid.clone(),
                ..SandboxRequest::default()
            },
            interfaces: vec![(IfName::new(INTERFACE)?, String::new(), interface)],
            metadata: AttachmentMetadata { group: "knit".to_owned(), ..AttachmentMetadata::default() },
            fail_if_present: true,
            ticket: 0,
            started_at: 0,
        };
        let event = Event::AttachRequested(Box::new(request));
        match self.runtime.block_on(self.handle.call(call, event, |_, result| result)) {
            Ok(CallResult::Attached { interfaces, .. }) => {
                let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
                Ok(addresses.map(|address| address.addr()).collect())
            }
            Ok(CallResult::Failed(problem)) | Err(problem) => {
                bail!("cannot attach pod {}: {problem}", object.key.name)
            }
            Ok(other) => bail!("cannot attach pod {}: {other:?}", object.key.name),
        }
    }

    /// Detaches a pod, as by a CNI DEL, and deletes its links.
    pub fn detach(&self, object: &ClusterPod, pod: &Pod) -> Result<()> {
        let call = self.next_call("detach");
        let request = DetachRequest {
            call: call.clone(),
            sandbox: SandboxId(object.pod.uid.clone()),
            netns: path_of(pod.netns()),
            scope: DetachScope::Interfaces([IfName::new(INTERFACE)?].into()),
            forget_sandbox: true,
            started_at: 0,
        };
        let event = Event::DetachRequested(request);
        match self.runtime.block_on(self.handle.call(call, event, |_, result| result)) {
            Ok(CallResult::Detached) => {}
            Ok(CallResult::Failed(problem)) | Err(problem) => {
                bail!("cannot detach pod {}: {problem}", object.key.name)
            }
            Ok(other) => bail!("cannot detach pod {}: {other:?}", object.key.name),
        }
        // The end of a change includes deferred deletions.
        self.change(Vec::new())
    }

    /// Submits watch events, and waits until everything that follows from them is in the kernel and verified.
    pub fn change(&self, events: Vec<Event>) -> Result<()> {
        change(&self.handle, events)
    }

    /// A handle, for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until nothing is in flight. Fails if something could not be applied.
    pub fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !self.query(|node| node.state().is_idle())? {
            if Instant::now() > deadline {
                bail!("the node is not idle after {} s", TIMEOUT.as_secs());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let problems = self.query(|node| {
            let all = node.state().problems.iter();
            let all = all.flat_map(|(unit, of_unit)| of_unit.iter().map(move |(_, one)| (unit, one)));
            all.map(|(unit, problem)| format!("{unit}: {problem}")).collect::<Vec<_>>()
        })?;
        if let Some(first) = problems.first() {
            bail!("{} problems, the first: {first}", problems.len());
        }
        Ok(())
    }

    fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&knit_agent::Node) -> T + Send + 'static,
    ) -> Result<T> {
        let answer = self.handle.query_blocking(move |node| query(node));
        answer.map_err(|problem| anyhow::anyhow!("the agent does not answer: {problem}"))
    }

    fn next_call(&self, what: &str) -> CallId {
        self.calls.set(self.calls.get() + 1);
        CallId(format!("{what}-{}", self.calls.get()))
    }
}

impl Drop for PolicyNode {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }
}

/// [`PolicyNode::change`] from any thread.
pub fn change(handle: &Handle, events: Vec<Event>) -> Result<()> {
    let mut handle = handle.clone();
    Ok(handle.change(move |_| Ok(((), Decision { record: None, events })))?)
}

/// The configuration of an agent, as in `deploy/primary`. Nothing on this machine is served or installed.
fn config(folder: &TempDir) -> Config {
    let folder = folder.path();
    Config {
        node_name: "node".to_owned(),
        profile: Profile::Primary,
        nri_socket: "off".into(),
        state_dir: folder.join("state"),
        kni_socket: folder.join("kni.sock"),
        netns_dir: folder.join("netns"),
        metrics_addr: String::new(),
        health_addr: String::new(),
        tenant_ranges: Some(tenant_ranges::all_addresses().to_vec()),
        ..Config::default()
    }
}

/// The cluster network, as an agent derives it from its Node.
fn cluster_network() -> Result<ClusterNetworkObject> {
    let ranges = RANGES.iter().map(|range| range.parse()).collect::<Result<Vec<_>, _>>()?;
    let routes = NodeRoutesIntent {
        masquerade: true,
        anti_spoofing: true,
        network_policy: true,
        ..NodeRoutesIntent::default()
    };
    Ok(ClusterNetworkObject::new(&ranges, &IfName::new(BRIDGE)?, Some(MTU), Some(&routes)))
}
