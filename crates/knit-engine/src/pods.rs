//! Pods of a cluster: the API server provides their labels, the runtime their sandboxes. A sandbox needs both.
//!
//! A missing answer never removes anything: only a successful list of the runtime shows that a sandbox is gone.
//!
//! The runtime may also announce a sandbox before it lists it (NRI), with its view of the pod. The API server's view
//! takes precedence, and so does a list that the runtime created long enough after the announcement.

mod reconcile;

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::intent::BandwidthLimits;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{AppliedReport, PodState};
use knit_model::sandbox::{Isolation, SandboxInstance};
use knit_model::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::pod_start::ReadinessGate;
use crate::state::State;

pub(crate) use reconcile::{announce, handle, reconcile_pod};

/// A pod as seen by the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Bandwidth limits from its annotations.
    pub limits: BandwidthLimits,
    /// The networks annotation.
    pub networks: Option<String>,
    /// The network status annotation.
    pub network_status: Option<String>,
    /// The addresses in its status.
    pub addresses: Vec<String>,
    /// Whether it uses the host network.
    pub host_network: bool,
    /// Whether all of its containers have terminated.
    pub ended: bool,
    /// Whether it has Knit's readiness gate.
    pub has_readiness_gate: bool,
    /// The published condition of that gate.
    pub published_gate: Option<ReadinessGate>,
}

/// A running sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningSandbox {
    /// The pod's uid.
    pub uid: String,
    /// The sandbox instance.
    pub instance: SandboxInstance,
    /// The path of its network namespace.
    pub netns: String,
    /// The process that holds it.
    pub number: u32,
}

/// A sandbox that the runtime announced before its containers start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimePod {
    /// Its pod, as seen by the runtime.
    pub pod: Pod,
    /// The sandbox.
    pub running: RunningSandbox,
    /// A list requested before this time may not contain it yet.
    pub until: Time,
}

/// A change of this node's pods or sandboxes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodEvent {
    /// The API server's complete list of the node's pods.
    Listed(Vec<Pod>),
    /// A pod was created or changed.
    Applied(Box<Pod>),
    /// The pod with this uid was deleted from the API. Its sandbox may live on for a moment and keeps its interfaces; an
    /// announced sandbox is dropped.
    Deleted(String),
    /// The runtime's complete list of running sandboxes.
    Running {
        /// The sandboxes.
        sandboxes: BTreeMap<SandboxId, RunningSandbox>,
        /// When the list was requested, by the monotonic clock of the agent.
        requested_at: Time,
    },
    /// The runtime removed an announced sandbox, or failed to start it.
    Withdrawn(SandboxId),
}

/// The latest pods and sandboxes from API server and runtime. Not persistent: both are listed again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIndex {
    pods: BTreeMap<String, Pod>,
    /// Whether the pod watch has synced.
    has_synced: bool,
    /// Announced sandboxes that no runtime list has contained yet.
    announced: BTreeMap<SandboxId, RuntimePod>,
    /// `None` until the runtime has been listed once.
    running: Option<BTreeMap<SandboxId, RunningSandbox>>,
    /// The sandboxes of each pod, running or announced.
    by_uid: BTreeMap<String, BTreeSet<SandboxId>>,
}

impl PodIndex {
    /// The pod with this uid.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// The pod with this uid, from the API server or else from the runtime.
    pub(crate) fn get_or_announced(&self, uid: &str) -> Option<&Pod> {
        let announced = || self.sandboxes_of(uid).find_map(|id| Some(&self.announced.get(id)?.pod));
        self.pods.get(uid).or_else(announced)
    }

    /// All pods that the API server has for this node.
    pub fn all(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// Whether the API server has a pod of the namespace on this node.
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.pods.values().any(|pod| pod.namespace == namespace)
    }

    /// The uids of all pods, including announced ones.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        let announced = self.announced.values().map(|announced| &announced.pod.uid);
        self.pods.keys().chain(announced).cloned().collect()
    }

    /// Whether the pod watch has synced.
    pub(crate) fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// Whether the runtime may run a sandbox of this pod: it does, or it was never listed.
    pub(crate) fn may_run(&self, uid: &str) -> bool {
        self.running.is_none() || self.by_uid.contains_key(uid)
    }

    fn sandboxes_of(&self, uid: &str) -> impl Iterator<Item = &SandboxId> + use<'_> {
        self.by_uid.get(uid).into_iter().flatten()
    }

    /// Replaces all pods of the node.
    fn list(&mut self, pods: Vec<Pod>) {
        self.pods = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        self.has_synced = true;
    }

    /// Replaces all running sandboxes.
    fn set_running(&mut self, running: BTreeMap<SandboxId, RunningSandbox>, requested_at: Time) {
        self.announced.retain(|id, announced| !running.contains_key(id) && requested_at < announced.until);
        self.running = Some(running);
        self.by_uid.clear();
        let listed = self.running.iter().flatten().map(|(id, running)| (&running.uid, id));
        let announced = self.announced.iter().map(|(id, announced)| (&announced.running.uid, id));
        for (uid, id) in listed.chain(announced) {
            self.by_uid.entry(uid.clone()).or_default().insert(id.clone());
        }
    }

    /// Adds a sandbox that the runtime announced, unless it is listed already.
    fn announce(&mut self, id: SandboxId, announced: RuntimePod) {
        if !self.is_listed(&id) {
            self.by_uid.entry(announced.running.uid.clone()).or_default().insert(id.clone());
            self.announced.insert(id, announced);
        }
    }

    /// Removes an announced sandbox. Returns whether it was announced.
    pub(crate) fn withdraw(&mut self, id: &SandboxId) -> bool {
        let Some(announced) = self.announced.remove(id) else { return false };
        if let Some(ids) = self.by_uid.get_mut(&announced.running.uid) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_uid.remove(&announced.running.uid);
            }
        }
        true
    }

    /// The uid of the pod of a sandbox that runs or is announced.
    pub(crate) fn uid_of(&self, id: &SandboxId) -> Option<&str> {
        let listed = self.running.as_ref().and_then(|running| running.get(id));
        let announced = || self.announced.get(id).map(|announced| &announced.running);
        Some(&listed.or_else(announced)?.uid)
    }

    fn is_listed(&self, id: &SandboxId) -> bool {
        self.running.as_ref().is_some_and(|running| running.contains_key(id))
    }

    /// A sandbox that runs or is announced, with its pod; `None` while the pod is not known.
    fn sandbox(&self, id: &SandboxId) -> Option<(&RunningSandbox, &Pod)> {
        let listed = self.running.as_ref().and_then(|running| running.get(id)).map(|running| (running, None));
        let announced = || self.announced.get(id).map(|announced| (&announced.running, Some(&announced.pod)));
        let (running, pod) = listed.or_else(announced)?;
        Some((running, self.pods.get(&running.uid).or(pod)?))
    }
}

impl State {
    /// Pods on the host network that objects select: they are rejected.
    pub fn host_network_states(&self) -> Vec<PodState> {
        let on_host = self.pods.all().filter(|pod| pod.host_network && !pod.ended);
        let states = on_host.map(|pod| {
            let running = RunningSandbox {
                uid: pod.uid.clone(),
                instance: SandboxInstance { boot: String::new(), cookie: 0 },
                netns: String::new(),
                number: 0,
            };
            let sandbox = sandbox(SandboxId(String::new()), &running, pod);
            let message =
                format!("pod {} uses the host network (hostNetwork): interfaces cannot be added", pod.name);
            let problem = Problem::new("", Reason::NotAllowed, message);
            let objects = self.objects_selecting(&sandbox).map(|object| AppliedReport {
                object: object.object.clone(),
                ready: false,
                attached: None,
                interfaces: Vec::new(),
                items: Vec::new(),
                bridges: Vec::new(),
                problems: vec![problem.clone()],
                warnings: Vec::new(),
            });
            PodState { objects: objects.collect(), sandbox }
        });
        states.filter(|pod| !pod.objects.is_empty()).collect()
    }
}

/// A pod's sandbox.
pub fn sandbox(id: SandboxId, running: &RunningSandbox, pod: &Pod) -> Sandbox {
    Sandbox {
        id,
        instance: running.instance.clone(),
        isolation: Isolation::default(),
        netns: running.netns.clone(),
        number: running.number,
        pod: pod.name.clone(),
        namespace: pod.namespace.clone(),
        uid: pod.uid.clone(),
        labels: pod.labels.clone(),
        annotated_limits: annotated(pod, None),
    }
}

/// Empty limits override earlier ones, but do not exist otherwise: a limit removed from the annotations is lifted.
fn annotated(pod: &Pod, before: Option<BandwidthLimits>) -> Option<BandwidthLimits> {
    (before.is_some() || !pod.limits.is_empty()).then_some(pod.limits)
}
