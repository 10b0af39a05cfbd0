//! Pods, and what a kubelet and its runtime do with them: create a sandbox, call ADD and DEL, and retry failures.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_engine::call::{AttachRequest, AttachmentMetadata, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::pods::{Pod as ApiPod, PodEvent, RunningSandbox};
use knit_engine::{CallId, CallResult, DetachRequest, Event};
use knit_model::provenance::Dialect;
use knit_model::{IfName, SandboxId, Scope};

use super::annotations::Annotation;
use super::executor::{cookie_of, instance};
use super::{Cluster, ScheduledEvent};
use crate::node::Call;
use crate::queue::{MILLIS, SECOND, SimTime};
use crate::trace::TraceSubject;

/// Percentage of tenant pods on a tenant's node.
const TENANT_POD_PERCENT: u64 = 33;
/// Maximum backoff of a kubelet.
const MAX_BACKOFF: SimTime = 60 * SECOND;

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPhase {
    /// Not on its node yet, or in backoff.
    Waiting,
    /// Its sandbox is being attached.
    Starting,
    Active,
    /// Its sandbox is being detached.
    Stopping,
    Deleted,
}

pub(crate) struct Pod {
    pub(crate) node: usize,
    pub(crate) tenant: Option<usize>,
    /// The networks in its annotation.
    pub(crate) annotation: Annotation,
    pub(crate) phase: PodPhase,
    /// Whether it should run.
    pub(crate) should_run: bool,
    pub(crate) sandbox: Option<SandboxId>,
    /// When the kubelet first saw it.
    pub(crate) since: Option<SimTime>,
    /// When its last call started.
    pub(crate) call_started: SimTime,
    /// When its primary interface was attached.
    pub(crate) attached_at: SimTime,
    attempts: u32,
    has_second: bool,
    /// Its index in `live`.
    live_index: usize,
}

impl Cluster {
    /// A new pod on some node.
    pub(crate) fn new_pod(&mut self) -> u32 {
        let number = self.pods.len() as u32;
        let nodes = self.nodes.len();
        let mut node = number as usize % nodes;
        if number as usize >= self.options.pods {
            node = self.rng.below(nodes as u64) as usize;
        }
        while self.nodes[node].is_removed {
            node = (node + 1) % nodes;
        }
        let here = self.tenants_on(node);
        let is_tenant = !here.is_empty() && self.rng.chance(TENANT_POD_PERCENT);
        let tenant = is_tenant.then(|| *self.rng.choose(&here));
        let annotation = if is_tenant { self.new_annotation() } else { Annotation::None };
        self.stats.pods += 1;
        self.stats.tenant_pods += u64::from(tenant.is_some());
        self.stats.annotated_pods += u64::from(annotation != Annotation::None);
        self.pods.push(Pod {
            node,
            tenant,
            annotation,
            phase: PodPhase::Waiting,
            should_run: true,
            sandbox: None,
            since: None,
            call_started: 0,
            attached_at: 0,
            attempts: 0,
            has_second: false,
            live_index: self.live.len(),
        });
        self.live.push(number);
        number
    }

    fn namespace_of(&self, pod: u32) -> String {
        self.pods[pod as usize]
            .tenant
            .map_or_else(|| "apps".to_owned(), |tenant| self.tenants[tenant].namespace.clone())
    }

    /// The pod as stored in the API server.
    pub(crate) fn api_pod(&self, number: u32) -> ApiPod {
        let pod = &self.pods[number as usize];
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut labels = BTreeMap::from([label("app", "web")]);
        labels.extend(pod.tenant.map(|_| label("net", "yes")));
        ApiPod {
            uid: format!("uid-{number}"),
            namespace: self.namespace_of(number),
            name: format!("pod-{number}"),
            labels,
            networks: pod.annotation.text(),
            ..ApiPod::default()
        }
    }

    /// Creates a sandbox and schedules its ADD.
    pub(crate) fn start_pod(&mut self, number: u32) {
        let node = self.pods[number as usize].node;
        let pod = &self.pods[number as usize];
        if pod.phase != PodPhase::Waiting {
            return;
        }
        if !pod.should_run || self.nodes[node].is_removed {
            return self.pod_deleted(number);
        }
        if pod.since.is_none() {
            let applied = PodEvent::Applied(Box::new(self.api_pod(number)));
            self.nodes[node].pending_pod_events.push(applied);
            self.pods[number as usize].since = Some(self.queue.now());
        }
        self.attempts += 1;
        let id = SandboxId(format!("s{}", self.attempts));
        self.nodes[node].netns_created(&id, number);
        let pod = &mut self.pods[number as usize];
        (pod.sandbox, pod.phase, pod.call_started) = (Some(id), PodPhase::Starting, self.queue.now());
        let delay = self.rng.between(MILLIS, 50 * MILLIS);
        self.queue.schedule(delay, ScheduledEvent::CniAdd(number, self.attempts));
    }

    /// The runtime calls ADD.
    pub(crate) fn cni_add(&mut self, number: u32, sandbox: u64) {
        let pod = &self.pods[number as usize];
        let Some(id) = pod.sandbox.clone().filter(|id| cookie_of(id) == sandbox) else { return };
        let (node, namespace) = (pod.node, self.namespace_of(number));
        if pod.phase != PodPhase::Starting {
            return;
        }
        if !self.nodes[node].is_up {
            return self.schedule_del(number);
        }
        let call = CallId(format!("add-{}", id.0));
        self.nodes[node].calls.insert(call.clone(), Call::Add(number));
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        let attach = AttachRequest {
            call,
            dialect: Dialect::Cni,
            sandbox: SandboxRequest {
                netns: format!("/run/netns/{}", id.0),
                id: id.0,
                pod: format!("pod-{number}"),
                namespace,
                uid: format!("uid-{number}"),
                ..SandboxRequest::default()
            },
            interfaces: vec![(primary_interface(), String::new(), options)],
            metadata: AttachmentMetadata { group: "knit".to_owned(), ..AttachmentMetadata::default() },
            fail_if_present: true,
            ticket: sandbox,
            started_at: self.queue.now(),
        };
        self.record_trace(node, "attaches", TraceSubject::Pod(number));
        self.handle(node, Event::AttachRequested(Box::new(attach)));
    }

    /// The runtime calls DEL.
    pub(crate) fn cni_del(&mut self, number: u32) {
        let pod = &self.pods[number as usize];
        let (node, id) = (pod.node, pod.sandbox.clone());
        if pod.phase != PodPhase::Stopping || self.nodes[node].is_removed {
            return;
        }
        let Some(id) = id else { return self.sandbox_deleted(number) };
        if !self.nodes[node].is_up {
            return self.queue.schedule(SECOND, ScheduledEvent::CniDel(number));
        }
        self.attempts += 1;
        let call = CallId(format!("del-{}-{}", id.0, self.attempts));
        self.nodes[node].calls.insert(call.clone(), Call::Del(number));
        let netns = format!("/run/netns/{}", id.0);
        let which = DetachScope::Interfaces([primary_interface()].into());
        let detach = DetachRequest {
            call,
            sandbox: id,
            netns,
            scope: which,
            forget_sandbox: true,
            started_at: self.queue.now(),
        };
        self.record_trace(node, "detaches", TraceSubject::Pod(number));
        self.handle(node, Event::DetachRequested(detach));
    }

    /// A call is answered. Registrations of extensions have no caller that waits.
    pub(crate) fn call_completed(&mut self, node: usize, call: &CallId, answer: CallResult) {
        let Some(called) = self.nodes[node].calls.remove(call) else { return };
        match (called, answer) {
            (Call::Add(number), CallResult::Attached { sandbox, interfaces }) => {
                let addresses: Vec<IpAddr> =
                    interfaces.iter().flat_map(|(_, report)| &report.addresses).map(IpNet::addr).collect();
                self.check_primary_addresses(number, &addresses);
                self.check_extensions(node, &sandbox, &interfaces);
                self.record_trace(node, "attached", TraceSubject::Pod(number));
                let now = self.queue.now();
                let pod = &mut self.pods[number as usize];
                (pod.phase, pod.attempts, pod.attached_at) = (PodPhase::Active, 0, now);
                self.stats.attach_latency.add(now - pod.since.unwrap_or(now));
                self.schedule_pod_sync(node);
                if !self.pods[number as usize].should_run {
                    self.schedule_del(number);
                }
            }
            (Call::Add(number), answer) => {
                self.stats.failed_attaches += 1;
                let why = match answer {
                    CallResult::Failed(problem) => problem.message,
                    other => format!("{other:?}"),
                };
                self.record_trace(
                    node,
                    "failed to attach",
                    TraceSubject::Name(format!("pod-{number}: {why}")),
                );
                self.schedule_del(number);
            }
            (Call::Del(number), CallResult::Detached) => self.sandbox_deleted(number),
            (Call::Del(number), _) => self.queue.schedule(SECOND, ScheduledEvent::CniDel(number)),
        }
    }

    /// The connection of a call broke: its result is unknown.
    pub(crate) fn call_lost(&mut self, call: Call) {
        match call {
            Call::Add(number) => self.schedule_del(number),
            Call::Del(number) => self.queue.schedule(SECOND, ScheduledEvent::CniDel(number)),
        }
    }

    /// Stops a pod.
    pub(crate) fn stop_pod(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        pod.should_run = false;
        match pod.phase {
            PodPhase::Active => self.schedule_del(number),
            PodPhase::Waiting => self.pod_deleted(number),
            // The kubelet always waits for an ADD.
            PodPhase::Starting | PodPhase::Stopping | PodPhase::Deleted => {}
        }
    }

    fn schedule_del(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        (pod.phase, pod.call_started) = (PodPhase::Stopping, self.queue.now());
        let delay = self.rng.between(MILLIS, 20 * MILLIS);
        self.queue.schedule(delay, ScheduledEvent::CniDel(number));
    }

    /// The sandbox is detached: its netns is deleted. The pod is retried or deleted.
    fn sandbox_deleted(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        let node = pod.node;
        if let Some(id) = pod.sandbox.take() {
            self.netns_deleted(node, &id);
        }
        self.schedule_pod_sync(node);
        let pod = &mut self.pods[number as usize];
        pod.phase = PodPhase::Waiting;
        if !pod.should_run {
            return self.pod_deleted(number);
        }
        pod.attempts += 1;
        let backoff = (SECOND << pod.attempts.min(6)).min(MAX_BACKOFF);
        self.queue.schedule(backoff, ScheduledEvent::StartPod(number));
    }

    pub(crate) fn netns_deleted(&mut self, node: usize, id: &SandboxId) {
        let here = &mut self.nodes[node];
        here.netns.remove(id);
        here.kernel.delete_namespace(&Scope::Sandbox(id.clone()));
        self.track_addresses(node, id);
    }

    /// The pod object and everything that belongs to it is deleted.
    pub(crate) fn pod_deleted(&mut self, number: u32) {
        let pod = &mut self.pods[number as usize];
        if std::mem::replace(&mut pod.phase, PodPhase::Deleted) == PodPhase::Deleted {
            return;
        }
        let (node, index) = (pod.node, pod.live_index);
        self.live.swap_remove(index);
        if let Some(moved) = self.live.get(index) {
            self.pods[*moved as usize].live_index = index;
        }
        if self.api.pod_states.remove(&number) {
            self.controller.pod_state_deleted((self.namespace_of(number), format!("pod-{number}")));
            self.schedule_controller();
        }
        if !self.nodes[node].is_removed {
            self.nodes[node].pending_pod_events.push(PodEvent::Deleted(format!("uid-{number}")));
            self.schedule_pod_sync(node);
        }
    }

    /// The pod's second interface is ready.
    pub(crate) fn second_interface_ready(&mut self, node: usize, id: &SandboxId) {
        let Some(number) = self.nodes[node].netns.get(id) else { return };
        let pod = &mut self.pods[*number as usize];
        if !std::mem::replace(&mut pod.has_second, true) {
            self.stats.second_interface_latency.add(self.queue.now() - pod.since.unwrap_or_default());
        }
    }

    pub(crate) fn schedule_pod_sync(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].scheduled.pod_sync, true) {
            let delay = self.rng.between(20 * MILLIS, 300 * MILLIS);
            let incarnation = self.nodes[node].incarnation;
            self.queue.schedule(delay, ScheduledEvent::SyncPods(node, incarnation));
        }
    }

    /// The agent syncs pods with the API server and the runtime.
    pub(crate) fn sync_pods(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.scheduled.pod_sync = false;
        let mut events = Vec::new();
        let mut lists_objects = false;
        if !node.is_partitioned {
            events.append(&mut node.pending_pod_events);
            for event in &events {
                match event {
                    PodEvent::Applied(pod) => drop(node.api_pods.insert(pod.uid.clone(), (**pod).clone())),
                    PodEvent::Deleted(uid) => drop(node.api_pods.remove(uid)),
                    PodEvent::Listed(_) | PodEvent::Running { .. } | PodEvent::Withdrawn(_) => {}
                }
            }
            if std::mem::take(&mut node.must_list_pods) {
                events = vec![PodEvent::Listed(node.api_pods.values().cloned().collect())];
                lists_objects = true;
            }
        }
        let running =
            node.netns.iter().filter(|(_, pod)| self.pods[**pod as usize].phase == PodPhase::Active);
        let running = running.map(|(id, pod)| {
            let cookie = cookie_of(id);
            let running = RunningSandbox {
                uid: format!("uid-{pod}"),
                instance: instance(cookie),
                netns: format!("/run/netns/{}", id.0),
                number: (cookie % 10_000_000) as u32,
            };
            (id.clone(), running)
        });
        let sandboxes = running.collect();
        events.push(PodEvent::Running { sandboxes, requested_at: knit_ipam::Time(0) });
        if lists_objects {
            self.list_objects(at);
        }
        for event in events {
            self.handle(at, Event::Pods(event));
        }
        // Deletes the published status of deleted pods.
        self.schedule_status_write(at);
    }
}

/// The pod's primary interface.
fn primary_interface() -> IfName {
    IfName::new("eth0").expect("eth0 is a valid name")
}
