//! Pods of a cluster: the API server knows their labels, the runtime their sandboxes. Both together make a sandbox.
//!
//! Nothing is taken away because someone is silent: only a runtime that answers can say that a sandbox is gone.
//!
//! A runtime may also tell of a sandbox before it lists it, with all that it knows of the pod (NRI). What the API server says of
//! the pod counts more, and a list that the runtime made long enough after it told counts more, too.

use std::collections::BTreeMap;

use knit_ipam::Time;
use knit_model::intent::Limits;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{AppliedReport, PodState};
use knit_model::sandbox::{Instance, Isolation};
use knit_model::{Sandbox, SandboxId};

use crate::event::Event;
use crate::state::State;

/// A pod as the API server has it.
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
    /// What its annotations say about bandwidth.
    pub limits: Limits,
    /// The networks that it names in an annotation.
    pub networks: Option<String>,
    /// What an annotation says that it has of them.
    pub network_status: Option<String>,
    /// Its addresses, as its status says them.
    pub addresses: Vec<String>,
    /// Whether it uses the node's own network.
    pub host_network: bool,
    /// Whether all of its containers have ended for good.
    pub ended: bool,
}

/// A sandbox that the runtime runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The pod's uid.
    pub uid: String,
    /// Which life of it.
    pub instance: Instance,
    /// Where its network namespace is found.
    pub netns: String,
    /// The process that holds it.
    pub number: u32,
}

/// A sandbox that the runtime told of before its containers start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its pod, as the runtime knows it.
    pub pod: Pod,
    /// The sandbox.
    pub running: Running,
    /// A list that was asked for before this may not have it yet.
    pub until: Time,
}

/// What API server and runtime said last.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    pods: BTreeMap<String, Pod>,
    /// Whether all of them were told once.
    listed: bool,
    /// Sandboxes that no list of the runtime has had yet.
    told: BTreeMap<SandboxId, Told>,
    /// `None` until the runtime has answered once.
    running: Option<BTreeMap<SandboxId, Running>>,
}

impl Pods {
    /// All pods of the node, as of one moment.
    pub fn list(&mut self, pods: Vec<Pod>) {
        self.pods = pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
        self.listed = true;
    }

    /// A pod is new, or has changed.
    pub fn apply(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// A pod is no longer in the API. Its sandbox may live on for a moment, and keeps what it has; one that no list has had
    /// yet does not count any more.
    pub fn delete(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.told.retain(|_, told| told.pod.uid != uid);
    }

    /// All sandboxes that run, as of a moment after `asked`.
    pub fn run(&mut self, running: BTreeMap<SandboxId, Running>, asked: Time) {
        self.told.retain(|id, told| !running.contains_key(id) && asked < told.until);
        self.running = Some(running);
    }

    /// The runtime tells of a sandbox before its containers start.
    pub fn tell(&mut self, id: SandboxId, told: Told) {
        if !self.running.as_ref().is_some_and(|running| running.contains_key(&id)) {
            self.told.insert(id, told);
        }
    }

    /// The runtime says that a sandbox that it told of is gone, or never came to be.
    pub fn untell(&mut self, id: &SandboxId) {
        self.told.remove(id);
    }

    /// The pod with this uid.
    pub fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid)
    }

    /// All pods of the node, also those that only the runtime has told of so far; `None` until the others were told once.
    pub fn all(&self) -> Option<impl Iterator<Item = &Pod>> {
        let told = self.told.values().map(|told| &told.pod).filter(|pod| !self.pods.contains_key(&pod.uid));
        self.listed.then(|| self.pods.values().chain(told))
    }

    /// Whether the runtime may run a sandbox of this pod: it does, or it has not answered yet.
    pub fn may_run(&self, uid: &str) -> bool {
        let is_told = self.told.values().any(|told| told.pod.uid == uid);
        let running = self.running.as_ref();
        is_told || running.is_none_or(|running| running.values().any(|one| one.uid == uid))
    }

    /// What has to be heard so that the state has exactly the sandboxes that run, with their pods' labels.
    pub fn events(&self, state: &State) -> Vec<Event> {
        let is_called = |id: &SandboxId| state.called.all().any(|attachment| attachment.sandbox == *id);
        let is_gone = |id: &&SandboxId| match &self.running {
            Some(running) => !running.contains_key(*id) && !self.told.contains_key(*id) && !is_called(id),
            None => false,
        };
        let gone = state.sandboxes.keys().filter(is_gone);
        let mut events: Vec<Event> = gone.map(|id| Event::SandboxGone(id.clone())).collect();
        let listed = self.running.iter().flatten().map(|(id, running)| (id, running, None));
        let told = self.told.iter().map(|(id, told)| (id, &told.running, Some(&told.pod)));
        for (id, running, pod) in listed.chain(told) {
            // Who it is for is not known yet: what it has stays.
            let Some(pod) = self.pods.get(&running.uid).or(pod).filter(|pod| !pod.host_network) else {
                continue;
            };
            let known = state.sandboxes.get(id);
            let same_life = known.filter(|known| known.instance == running.instance);
            if known.is_some() && same_life.is_none() {
                events.push(Event::SandboxGone(id.clone()));
            }
            let sandbox = match same_life {
                // The number is part of names: the process that holds the namespace may be another by now.
                Some(known) => Sandbox {
                    uid: pod.uid.clone(),
                    labels: pod.labels.clone(),
                    annotated: annotated(pod, known.annotated),
                    ..known.clone()
                },
                None => sandbox(id.clone(), running, pod),
            };
            if same_life != Some(&sandbox) {
                events.push(Event::SandboxSeen(sandbox));
            }
        }
        events
    }

    /// Pods that objects mean and that cannot have anything: they use the node's own network.
    pub fn refused(&self, state: &State) -> Vec<PodState> {
        let refused = self.pods.values().filter(|pod| pod.host_network && !pod.ended).map(|pod| {
            let running = Running {
                uid: pod.uid.clone(),
                instance: Instance { boot: String::new(), cookie: 0 },
                netns: String::new(),
                number: 0,
            };
            let sandbox = sandbox(SandboxId(String::new()), &running, pod);
            let message =
                format!("pod {} uses the node's own network (hostNetwork): nothing is added there", pod.name);
            let problem = Problem { field: String::new(), reason: Reason::NotAllowed, message };
            let objects = state.asking(&sandbox).map(|object| AppliedReport {
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
        refused.filter(|pod| !pod.objects.is_empty()).collect()
    }
}

/// A pod's sandbox.
pub fn sandbox(id: SandboxId, running: &Running, pod: &Pod) -> Sandbox {
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
        annotated: annotated(pod, None),
    }
}

/// Annotations that say nothing say so only once they said something: a limit that was taken out of them goes.
fn annotated(pod: &Pod, before: Option<Limits>) -> Option<Limits> {
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

    fn running(uid: &str, cookie: u64, number: u32) -> Running {
        let instance = Instance { boot: "boot".to_owned(), cookie };
        Running { uid: uid.to_owned(), instance, netns: format!("/proc/{number}/ns/net"), number }
    }

    fn all(sandboxes: &[(&str, Running)]) -> BTreeMap<SandboxId, Running> {
        sandboxes.iter().map(|(id, running)| (SandboxId((*id).to_owned()), running.clone())).collect()
    }

    /// Has the state follow, and says what it heard.
    fn hear(pods: &Pods, state: &mut State) -> Vec<String> {
        let mut words = Vec::new();
        for event in pods.events(state) {
            match event {
                Event::SandboxSeen(sandbox) => {
                    words.push(format!("+{} {}{}", sandbox.id, sandbox.labels["podconfig"], sandbox.number));
                    state.record(&Record::SandboxSeen(sandbox));
                }
                Event::SandboxGone(id) => {
                    words.push(format!("-{id}"));
                    state.record(&Record::SandboxGone { id, at: knit_ipam::Time(0) });
                }
                other => panic!("{other:?}"),
            }
        }
        words
    }

    #[test]
    fn a_sandbox_needs_both_its_pod_and_its_process_in_any_order() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.run(all(&[("s1", running("u1", 1, 100))]), Time(0));
        assert_eq!(hear(&pods, &mut state), [""; 0]);
        pods.apply(pod("u1", "a"));
        assert_eq!(hear(&pods, &mut state), ["+s1 a100"]);
        assert_eq!(hear(&pods, &mut state), [""; 0]);
        pods.apply(pod("u1", "b"));
        assert_eq!(hear(&pods, &mut state), ["+s1 b100"]);
    }

    #[test]
    fn a_limit_that_is_taken_out_of_the_annotations_goes_and_none_is_made_up() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        let limits =
            Limits { egress: Some(RateIntent { bits: 8_000_000, burst: None }), ..Limits::default() };
        let mut annotated = |limits: Limits| {
            pods.apply(Pod { limits, ..pod("u1", "a") });
            pods.run(all(&[("s1", running("u1", 1, 100))]), Time(0));
            hear(&pods, &mut state);
            state.sandboxes[&SandboxId("s1".to_owned())].annotated
        };
        assert_eq!(annotated(Limits::default()), None, "what the call said counts");
        assert_eq!(annotated(limits), Some(limits));
        assert_eq!(annotated(Limits::default()), Some(Limits::default()));
    }

    #[test]
    fn nothing_goes_because_someone_is_silent() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.apply(pod("u1", "a"));
        pods.run(all(&[("s1", running("u1", 1, 100))]), Time(0));
        hear(&pods, &mut state);
        // A program that began anew and heard neither of the two.
        assert_eq!(hear(&Pods::default(), &mut state), [""; 0]);
        pods.list(Vec::new());
        assert_eq!(hear(&pods, &mut state), [""; 0], "the sandbox outlives the pod's object for a moment");
        pods.run(BTreeMap::new(), Time(0));
        assert_eq!(hear(&pods, &mut state), ["-s1"]);
    }

    #[test]
    fn a_recreated_sandbox_is_another_and_a_new_process_is_not() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.apply(pod("u1", "a"));
        pods.run(all(&[("s1", running("u1", 1, 100))]), Time(0));
        hear(&pods, &mut state);
        pods.run(all(&[("s1", running("u1", 1, 101))]), Time(0));
        assert_eq!(hear(&pods, &mut state), [""; 0], "names keep the number of the first process");
        pods.run(all(&[("s2", running("u1", 2, 102))]), Time(0));
        assert_eq!(hear(&pods, &mut state), ["-s1", "+s2 a102"]);
        pods.run(all(&[("s2", running("u1", 3, 103))]), Time(0));
        assert_eq!(hear(&pods, &mut state), ["-s2", "+s2 a103"]);
    }

    fn told(uid: &str, label: &str, cookie: u64, until: u64) -> Told {
        Told { pod: pod(uid, label), running: running(uid, cookie, 100), until: Time(until) }
    }

    fn id(name: &str) -> SandboxId {
        SandboxId(name.to_owned())
    }

    #[test]
    fn a_sandbox_that_the_runtime_tells_of_needs_nobody_else() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.tell(id("s1"), told("u1", "a", 1, 100));
        assert_eq!(hear(&pods, &mut state), ["+s1 a100"]);
        // Lists that were made before.
        pods.list(Vec::new());
        pods.run(BTreeMap::new(), Time(99));
        assert_eq!(hear(&pods, &mut state), [""; 0]);
        pods.run(BTreeMap::new(), Time(100));
        assert_eq!(hear(&pods, &mut state), ["-s1"], "it never came to be");
    }

    #[test]
    fn what_the_api_server_says_of_a_pod_counts_more_than_the_runtimes_word() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.tell(id("s1"), told("u1", "a", 1, 100));
        hear(&pods, &mut state);
        pods.apply(pod("u1", "b"));
        assert_eq!(hear(&pods, &mut state), ["+s1 b100"]);
        pods.run(all(&[("s1", running("u1", 1, 100))]), Time(50));
        // The runtime tells once more, or late: its list has it already.
        pods.tell(id("s1"), told("u1", "a", 1, 200));
        assert_eq!(hear(&pods, &mut state), [""; 0]);
        pods.run(BTreeMap::new(), Time(60));
        assert_eq!(hear(&pods, &mut state), ["-s1"], "from its first list on, lists count");
        pods.tell(id("s2"), told("u2", "a", 2, 100));
        hear(&pods, &mut state);
        pods.delete("u2");
        assert_eq!(hear(&pods, &mut state), ["-s2"]);
    }

    #[test]
    fn a_sandbox_that_failed_to_start_goes_at_once_and_one_on_the_node_is_left_alone() {
        let (mut pods, mut state) = (Pods::default(), State::default());
        pods.run(BTreeMap::new(), Time(0));
        pods.tell(id("s1"), told("u1", "a", 1, 100));
        assert_eq!(hear(&pods, &mut state), ["+s1 a100"]);
        pods.untell(&id("s1"));
        assert_eq!(hear(&pods, &mut state), ["-s1"]);
        pods.apply(Pod { host_network: true, ..pod("u2", "a") });
        pods.tell(id("s2"), told("u2", "a", 1, 100));
        assert_eq!(hear(&pods, &mut state), [""; 0]);
    }
}
