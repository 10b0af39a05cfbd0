//! Pods of a cluster: the API server provides their labels, the runtime their sandboxes. A sandbox needs both.
//!
//! A missing answer never removes anything: only a successful list of the runtime shows that a sandbox is gone.
//!
//! The runtime may also announce a sandbox before it lists it (NRI), with its view of the pod. The API server's view
//! takes precedence, and so does a list that the runtime created long enough after the announcement.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::intent::BandwidthLimits;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{AppliedReport, PodState};
use knit_model::sandbox::{Isolation, SandboxInstance};
use knit_model::{Sandbox, SandboxId};

use crate::event::Event;
use crate::state::State;

/// A pod as seen by the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
}

/// A running sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    /// Its pod, as seen by the runtime.
    pub pod: Pod,
    /// The sandbox.
    pub running: RunningSandbox,
    /// A list requested before this time may not contain it yet.
    pub until: Time,
}

/// The latest pods and sandboxes from API server and runtime.
#[derive(Clone, Debug, Default)]
pub struct PodIndex {
    pods: BTreeMap<String, Pod>,
    /// Whether the pod watch has synced.
    has_synced: bool,
    /// Announced sandboxes that no runtime list has contained yet.
    announced: BTreeMap<SandboxId, RuntimePod>,
    /// `None` until the runtime has been listed once.
    running: Option<BTreeMap<SandboxId, RunningSandbox>>,
}

impl PodIndex {
    /// Replaces all pods of the node.
    pub fn list(&mut self, pods: Vec<Pod>) {
        self.pods = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        self.has_synced = true;
    }

    /// A pod was added or changed.
    pub fn apply(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// A pod was deleted from the API. Its sandbox may live on for a moment and keeps its interfaces; an announced
    /// sandbox is dropped.
    pub fn delete(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.announced.retain(|_, announced| announced.pod.uid != uid);
    }

    /// Replaces all running sandboxes, as of a moment after `listed_at`.
    pub fn set_running(&mut self, running: BTreeMap<SandboxId, RunningSandbox>, listed_at: Time) {
        self.announced.retain(|id, announced| !running.contains_key(id) && listed_at < announced.until);
        self.running = Some(running);
    }

    /// The runtime announced a sandbox before its containers start.
    pub fn add_runtime_pod(&mut self, id: SandboxId, announced: RuntimePod) {
        if !self.running.as_ref().is_some_and(|running| running.contains_key(&id)) {
            self.announced.insert(id, announced);
        }
    }

    /// The runtime reported that an announced sandbox is gone or failed to start.
    pub fn remove_runtime_pod(&mut self, id: &SandboxId) {
        self.announced.remove(id);
    }

    /// The pod with this uid.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// All pods of the node, including announced ones; `None` until the pod watch has synced.
    pub fn all(&self) -> Option<impl Iterator<Item = &Pod>> {
        let announced = self
            .announced
            .values()
            .map(|announced| &announced.pod)
            .filter(|pod| !self.pods.contains_key(&pod.uid));
        self.has_synced.then(|| self.pods.values().chain(announced))
    }

    /// Whether the runtime may run a sandbox of this pod: it does, or it was never listed.
    pub fn may_run(&self, uid: &str) -> bool {
        let is_announced = self.announced.values().any(|announced| announced.pod.uid == uid);
        let running = self.running.as_ref();
        is_announced || running.is_none_or(|running| running.values().any(|one| one.uid == uid))
    }

    /// The events that bring the sandboxes of the state up to date.
    pub fn events(&self, state: &State) -> Vec<Event> {
        let is_attached =
            |id: &SandboxId| state.attachments.all().any(|attachment| attachment.sandbox == *id);
        let is_gone = |id: &&SandboxId| match &self.running {
            Some(running) => {
                !running.contains_key(*id) && !self.announced.contains_key(*id) && !is_attached(id)
            }
            None => false,
        };
        let gone = state.sandboxes.keys().filter(is_gone);
        let mut events: Vec<Event> = gone.map(|id| Event::SandboxRemoved(id.clone())).collect();
        let listed = self.running.iter().flatten().map(|(id, running)| (id, running, None));
        let announced =
            self.announced.iter().map(|(id, announced)| (id, &announced.running, Some(&announced.pod)));
        for (id, running, pod) in listed.chain(announced) {
            // The pod is not known yet: its interfaces stay.
            let Some(pod) = self.pods.get(&running.uid).or(pod).filter(|pod| !pod.host_network) else {
                continue;
            };
            let known = state.sandboxes.get(id);
            let same_life = known.filter(|known| known.instance == running.instance);
            if known.is_some() && same_life.is_none() {
                events.push(Event::SandboxRemoved(id.clone()));
            }
            let sandbox = match same_life {
                // Names contain the number: keep that of the first process.
                Some(known) => Sandbox {
                    uid: pod.uid.clone(),
                    labels: pod.labels.clone(),
                    annotated_limits: annotated(pod, known.annotated_limits),
                    ..known.clone()
                },
                None => sandbox(id.clone(), running, pod),
            };
            if same_life != Some(&sandbox) {
                events.push(Event::SandboxUpdated(sandbox));
            }
        }
        events
    }

    /// Pods on the host network that objects select: they are rejected.
    pub fn host_network_states(&self, state: &State) -> Vec<PodState> {
        let states = self.pods.values().filter(|pod| pod.host_network && !pod.ended).map(|pod| {
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
            let objects = state.objects_selecting(&sandbox).map(|object| AppliedReport {
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

#[cfg(test)]
mod tests {
    use knit_model::intent::RateIntent;

    use super::*;
    use crate::event::Record;

    fn pod(uid: &str, label: &str) -> Pod {
        Pod {
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            name: format!("pod-{uid}"),
            labels: BTreeMap::from([("podconfig".to_owned(), label.to_owned())]),
            ..Pod::default()
        }
    }

    fn running(uid: &str, cookie: u64, number: u32) -> RunningSandbox {
        let instance = SandboxInstance { boot: "boot".to_owned(), cookie };
        RunningSandbox { uid: uid.to_owned(), instance, netns: format!("/proc/{number}/ns/net"), number }
    }

    fn all(sandboxes: &[(&str, RunningSandbox)]) -> BTreeMap<SandboxId, RunningSandbox> {
        sandboxes.iter().map(|(id, running)| (SandboxId((*id).to_owned()), running.clone())).collect()
    }

    /// Applies the events to the state and returns a summary of them.
    fn sync(pods: &PodIndex, state: &mut State) -> Vec<String> {
        let mut changes = Vec::new();
        for event in pods.events(state) {
            match event {
                Event::SandboxUpdated(sandbox) => {
                    changes
                        .push(format!("+{} {}{}", sandbox.id, sandbox.labels["podconfig"], sandbox.number));
                    state.record(&Record::SandboxUpdated(sandbox));
                }
                Event::SandboxRemoved(id) => {
                    changes.push(format!("-{id}"));
                    state.record(&Record::SandboxRemoved { id, at: knit_ipam::Time(0) });
                }
                other => panic!("{other:?}"),
            }
        }
        changes
    }

    #[test]
    fn a_sandbox_needs_both_its_pod_and_its_process_in_any_order() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.set_running(all(&[("s1", running("u1", 1, 100))]), Time(0));
        assert_eq!(sync(&pods, &mut state), [""; 0]);
        pods.apply(pod("u1", "a"));
        assert_eq!(sync(&pods, &mut state), ["+s1 a100"]);
        assert_eq!(sync(&pods, &mut state), [""; 0]);
        pods.apply(pod("u1", "b"));
        assert_eq!(sync(&pods, &mut state), ["+s1 b100"]);
    }

    #[test]
    fn a_limit_that_is_taken_out_of_the_annotations_goes_and_none_is_made_up() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        let limits = BandwidthLimits {
            egress: Some(RateIntent { bits: 8_000_000, burst: None }),
            ..BandwidthLimits::default()
        };
        let mut annotated = |limits: BandwidthLimits| {
            pods.apply(Pod { limits, ..pod("u1", "a") });
            pods.set_running(all(&[("s1", running("u1", 1, 100))]), Time(0));
            sync(&pods, &mut state);
            state.sandboxes[&SandboxId("s1".to_owned())].annotated_limits
        };
        assert_eq!(annotated(BandwidthLimits::default()), None, "what the call said counts");
        assert_eq!(annotated(limits), Some(limits));
        assert_eq!(annotated(BandwidthLimits::default()), Some(BandwidthLimits::default()));
    }

    #[test]
    fn nothing_goes_because_someone_is_silent() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.apply(pod("u1", "a"));
        pods.set_running(all(&[("s1", running("u1", 1, 100))]), Time(0));
        sync(&pods, &mut state);
        // A restarted program before the first list and watch.
        assert_eq!(sync(&PodIndex::default(), &mut state), [""; 0]);
        pods.list(Vec::new());
        assert_eq!(sync(&pods, &mut state), [""; 0], "the sandbox outlives the pod's object for a moment");
        pods.set_running(BTreeMap::new(), Time(0));
        assert_eq!(sync(&pods, &mut state), ["-s1"]);
    }

    #[test]
    fn a_recreated_sandbox_is_another_and_a_new_process_is_not() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.apply(pod("u1", "a"));
        pods.set_running(all(&[("s1", running("u1", 1, 100))]), Time(0));
        sync(&pods, &mut state);
        pods.set_running(all(&[("s1", running("u1", 1, 101))]), Time(0));
        assert_eq!(sync(&pods, &mut state), [""; 0], "names keep the number of the first process");
        pods.set_running(all(&[("s2", running("u1", 2, 102))]), Time(0));
        assert_eq!(sync(&pods, &mut state), ["-s1", "+s2 a102"]);
        pods.set_running(all(&[("s2", running("u1", 3, 103))]), Time(0));
        assert_eq!(sync(&pods, &mut state), ["-s2", "+s2 a103"]);
    }

    fn announced(uid: &str, label: &str, cookie: u64, until: u64) -> RuntimePod {
        RuntimePod { pod: pod(uid, label), running: running(uid, cookie, 100), until: Time(until) }
    }

    fn id(name: &str) -> SandboxId {
        SandboxId(name.to_owned())
    }

    #[test]
    fn a_sandbox_that_the_runtime_tells_of_needs_nobody_else() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.add_runtime_pod(id("s1"), announced("u1", "a", 1, 100));
        assert_eq!(sync(&pods, &mut state), ["+s1 a100"]);
        // Lists that were requested before the announcement.
        pods.list(Vec::new());
        pods.set_running(BTreeMap::new(), Time(99));
        assert_eq!(sync(&pods, &mut state), [""; 0]);
        pods.set_running(BTreeMap::new(), Time(100));
        assert_eq!(sync(&pods, &mut state), ["-s1"], "it never came to be");
    }

    #[test]
    fn what_the_api_server_says_of_a_pod_counts_more_than_the_runtimes_word() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.add_runtime_pod(id("s1"), announced("u1", "a", 1, 100));
        sync(&pods, &mut state);
        pods.apply(pod("u1", "b"));
        assert_eq!(sync(&pods, &mut state), ["+s1 b100"]);
        pods.set_running(all(&[("s1", running("u1", 1, 100))]), Time(50));
        // A repeated or late announcement of a sandbox that is listed already.
        pods.add_runtime_pod(id("s1"), announced("u1", "a", 1, 200));
        assert_eq!(sync(&pods, &mut state), [""; 0]);
        pods.set_running(BTreeMap::new(), Time(60));
        assert_eq!(sync(&pods, &mut state), ["-s1"], "from its first list on, lists count");
        pods.add_runtime_pod(id("s2"), announced("u2", "a", 2, 100));
        sync(&pods, &mut state);
        pods.delete("u2");
        assert_eq!(sync(&pods, &mut state), ["-s2"]);
    }

    #[test]
    fn a_sandbox_that_failed_to_start_goes_at_once_and_one_on_the_node_is_left_alone() {
        let (mut pods, mut state) = (PodIndex::default(), State::default());
        pods.set_running(BTreeMap::new(), Time(0));
        pods.add_runtime_pod(id("s1"), announced("u1", "a", 1, 100));
        assert_eq!(sync(&pods, &mut state), ["+s1 a100"]);
        pods.remove_runtime_pod(&id("s1"));
        assert_eq!(sync(&pods, &mut state), ["-s1"]);
        pods.apply(Pod { host_network: true, ..pod("u2", "a") });
        pods.add_runtime_pod(id("s2"), announced("u2", "a", 1, 100));
        assert_eq!(sync(&pods, &mut state), [""; 0]);
    }
}
