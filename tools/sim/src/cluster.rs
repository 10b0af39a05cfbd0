//! The simulated cluster: dispatches scheduled events one at a time to the engines.

mod annotations;
mod convergence;
mod executor;
mod extensions;
mod faults;
mod kubelet;
mod network;
mod nodes;
mod objects;
mod requests;
mod status;
mod watches;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use knit_engine::extension::InvocationResult;
use knit_engine::{Effect, Event, Record, Unit, step};
use knit_model::SandboxId;

use self::executor::KernelEffect;
pub(crate) use self::extensions::NodeExtensions;
use self::kubelet::Pod;
pub(crate) use self::kubelet::PodPhase;
use self::objects::Objects;
use self::requests::ApiRequest;
use self::watches::is_pool_block;
use crate::api_server::{ApiServer, PlantedFault, Snapshot};
use crate::controller::Controller;
use crate::node::Node;
use crate::queue::{MILLIS, MINUTE, Queue, SECOND, SimTime};
use crate::rng::SeededRng;
use crate::scenario::{Tenant, has_full_view, stored};
use crate::stats::SimStats;
use crate::trace::{Trace, TraceSubject};
use crate::{InvariantViolation, SimOptions};

/// All pods start within this time.
const RAMP_UP: SimTime = 3 * MINUTE;
/// Interval of an agent's resync.
const RESYNC_INTERVAL: SimTime = MINUTE;
/// Number of trace lines in a report.
const MAX_TRACE_LINES: usize = 60;

/// A scheduled event. Events of an agent carry its incarnation.
pub(crate) enum ScheduledEvent {
    /// A kernel effect completes.
    Effect(usize, u32, Box<KernelEffect>),
    /// The watch delivers events.
    WatchDelivery(usize, u32),
    /// A list arrives.
    ListResponse(usize, u32, Arc<Snapshot>),
    /// The agent syncs pods and sandboxes.
    SyncPods(usize, u32),
    /// The agent writes changed status.
    WriteStatus(usize, u32),
    /// The agent looks for empty blocks.
    ReviewBlocks(usize, u32),
    /// The agent compares everything with the kernel.
    Resync(usize, u32),
    /// The agent computes the cluster network again.
    ReconcileNetwork(usize, u32),
    /// A request arrives at the API server; the last field is the attempt.
    RequestArrival(usize, u32, Box<ApiRequest>, u64),
    /// The response arrives at the agent.
    Response(usize, u32, Option<Box<Event>>, u64),
    /// The request times out.
    RequestTimeout(usize, u32, Box<ApiRequest>, u64),
    /// The request is retried.
    RetryRequest(usize, u32, Box<ApiRequest>),
    /// The reply of an extension arrives.
    ExtensionReply(usize, u32, Box<(String, InvocationResult)>),
    /// A notification of an extension may be due.
    NotificationTimer(usize, u32),
    /// The extensions of a node register.
    RegisterExtensions(usize),
    /// The kubelet starts a pod, calls ADD or DEL for it, or stops it.
    StartPod(u32),
    CniAdd(u32, u64),
    CniDel(u32),
    StopPod(u32),
    /// A killed agent restarts.
    RestartAgent(usize),
    /// The API server is reachable again.
    HealPartition(usize),
    /// A node joins, or some node leaves.
    JoinNode(usize),
    RemoveNode,
    /// A pod is replaced.
    ReplacePod,
    /// The annotation of a pod changes.
    ChangeAnnotation,
    /// A definition changes, or is created again.
    ChangeDefinition,
    RestoreDefinition(usize),
    /// A fault is injected.
    InjectFault,
    /// The controller reconciles.
    ReconcileController,
    /// Periodic checks.
    CheckPhase,
    CheckInvariants,
}

/// The phase of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Pods start and are replaced, and faults are injected.
    Busy,
    /// No faults and no churn.
    Settling {
        since: SimTime,
    },
    /// All pods are stopped.
    Draining {
        since: SimTime,
    },
    Done,
}

pub(crate) struct Cluster {
    pub(crate) options: SimOptions,
    pub(crate) rng: SeededRng,
    pub(crate) queue: Queue<ScheduledEvent>,
    pub(crate) api: ApiServer,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tenants: Vec<Tenant>,
    /// The nodes of each pool.
    pub(crate) pool_nodes: Vec<Vec<usize>>,
    /// Nodes with a full view.
    pub(crate) full_view: Vec<usize>,
    pub(crate) objects: Objects,
    pub(crate) pods: Vec<Pod>,
    /// Existing pods, unordered.
    pub(crate) live: Vec<u32>,
    pub(crate) controller: Controller,
    /// Which sandbox has an address in its kernel.
    pub(crate) holders: HashMap<IpAddr, (usize, SandboxId)>,
    pub(crate) stats: SimStats,
    pub(crate) trace: Trace,
    pub(crate) phase: Phase,
    pub(crate) attempts: u64,
    /// The version that was propagated to the watches.
    pub(crate) propagated_version: usize,
    failure: Option<InvariantViolation>,
}

impl Cluster {
    pub(crate) fn new(options: SimOptions) -> Self {
        let tenants = Tenant::all(options.tenants, options.nodes);
        let objects = Objects::new(&tenants, options.fault);
        let full_view = options.full_view.clamp(1, options.nodes);
        let full_view: Vec<usize> =
            (0..options.nodes).filter(|node| has_full_view(*node, options.nodes, full_view)).collect();
        let views = nodes::views(&tenants, options.nodes, &full_view);
        let nodes = views.into_iter().enumerate();
        let nodes = nodes.map(|(node, view)| Node::new(node, nodes::has_shadow(node, options.nodes), view));
        Self {
            rng: SeededRng::new(options.seed),
            queue: Queue::new(),
            api: ApiServer::new(options.fault),
            nodes: nodes.collect(),
            controller: Controller::new(objects.manifests()),
            pool_nodes: nodes::pool_nodes(&tenants, options.nodes),
            tenants,
            full_view,
            objects,
            pods: Vec::new(),
            live: Vec::new(),
            holders: HashMap::new(),
            stats: SimStats::default(),
            trace: Trace::default(),
            phase: Phase::Busy,
            attempts: 0,
            propagated_version: 0,
            failure: None,
            options,
        }
    }

    pub(crate) fn run(mut self, mut progress: impl FnMut(&str)) -> Result<SimStats, InvariantViolation> {
        self.set_up();
        let mut reported = 0;
        while self.phase != Phase::Done {
            let Some(event) = self.queue.next() else { break };
            self.stats.queue_events += 1;
            self.dispatch(event);
            if let Some(failure) = self.failure {
                return Err(failure);
            }
            if self.queue.now() / (30 * SECOND) != reported {
                reported = self.queue.now() / (30 * SECOND);
                progress(&self.summary());
            }
        }
        Ok(self.result())
    }

    fn set_up(&mut self) {
        self.create_definitions();
        for tenant in 0..self.tenants.len() {
            if self.tenants[tenant].quota.is_some() {
                self.api.create_quota(tenant);
            }
        }
        self.start_nodes();
        self.propagate_changes();
        for _ in 0..self.options.pods {
            let at = self.rng.below(RAMP_UP);
            let pod = self.new_pod();
            self.queue.schedule(at, ScheduledEvent::StartPod(pod));
        }
        self.queue.schedule(RAMP_UP, ScheduledEvent::ReplacePod);
        self.queue.schedule(RAMP_UP, ScheduledEvent::ChangeAnnotation);
        self.queue.schedule(RAMP_UP / 2, ScheduledEvent::ChangeDefinition);
        self.queue.schedule(RAMP_UP / 2, ScheduledEvent::InjectFault);
        self.queue.schedule(MINUTE, ScheduledEvent::CheckInvariants);
        self.queue.schedule(SECOND, ScheduledEvent::CheckPhase);
        self.queue.schedule(MILLIS, ScheduledEvent::ReconcileController);
    }

    fn dispatch(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::Effect(node, incarnation, effect) if self.is_current(node, incarnation) => {
                self.complete_effect(node, *effect)
            }
            ScheduledEvent::WatchDelivery(node, incarnation) if self.is_current(node, incarnation) => {
                self.deliver_watch_events(node)
            }
            ScheduledEvent::ListResponse(node, incarnation, listed) if self.is_current(node, incarnation) => {
                self.deliver_list(node, &listed)
            }
            ScheduledEvent::SyncPods(node, incarnation) if self.is_current(node, incarnation) => {
                self.sync_pods(node)
            }
            ScheduledEvent::WriteStatus(node, incarnation) if self.is_current(node, incarnation) => {
                self.write_status(node)
            }
            ScheduledEvent::ReviewBlocks(node, incarnation) if self.is_current(node, incarnation) => {
                self.review_blocks(node)
            }
            ScheduledEvent::Resync(node, incarnation) if self.is_current(node, incarnation) => {
                self.queue.schedule(RESYNC_INTERVAL, ScheduledEvent::Resync(node, incarnation));
                self.schedule_network(node);
                self.handle(node, Event::Resync);
            }
            ScheduledEvent::ReconcileNetwork(node, incarnation) if self.is_current(node, incarnation) => {
                self.reconcile_network(node)
            }
            // A request that was sent arrives, even if the agent died meanwhile.
            ScheduledEvent::RequestArrival(node, incarnation, order, attempt) => {
                self.process_request(node, incarnation, *order, attempt)
            }
            ScheduledEvent::Response(node, incarnation, news, attempt)
                if self.is_current(node, incarnation) =>
            {
                self.deliver_response(node, news.map(|event| *event), attempt);
            }
            ScheduledEvent::RequestTimeout(node, incarnation, order, attempt)
                if self.is_current(node, incarnation) =>
            {
                self.time_out_request(node, *order, attempt);
            }
            ScheduledEvent::RetryRequest(node, incarnation, order) if self.is_current(node, incarnation) => {
                self.retry_request(node, *order)
            }
            ScheduledEvent::ExtensionReply(node, incarnation, reply)
                if self.is_current(node, incarnation) =>
            {
                self.extension_replied(node, *reply)
            }
            ScheduledEvent::NotificationTimer(node, incarnation) if self.is_current(node, incarnation) => {
                self.nodes[node].scheduled.notification = false;
                self.handle(node, Event::NotificationTimer);
            }
            ScheduledEvent::RegisterExtensions(node) => self.register_extensions(node),
            ScheduledEvent::StartPod(pod) => self.start_pod(pod),
            ScheduledEvent::CniAdd(pod, sandbox) => self.cni_add(pod, sandbox),
            ScheduledEvent::CniDel(pod) => self.cni_del(pod),
            ScheduledEvent::StopPod(pod) => self.stop_pod(pod),
            ScheduledEvent::RestartAgent(node) => self.restart_agent(node),
            ScheduledEvent::HealPartition(node) => self.heal_partition(node),
            ScheduledEvent::JoinNode(node) => self.join_node(node),
            ScheduledEvent::RemoveNode => self.remove_node(),
            ScheduledEvent::ReplacePod => self.replace_pod(),
            ScheduledEvent::ChangeAnnotation => self.change_annotation(),
            ScheduledEvent::ChangeDefinition => self.change_definition(),
            ScheduledEvent::RestoreDefinition(tenant) => self.restore_definition(tenant),
            ScheduledEvent::InjectFault => self.inject_fault(),
            ScheduledEvent::ReconcileController => self.reconcile_controller(),
            ScheduledEvent::CheckPhase => self.check_phase(),
            ScheduledEvent::CheckInvariants => {
                self.check_invariants();
                self.queue.schedule(MINUTE, ScheduledEvent::CheckInvariants);
            }
            // Events of an earlier incarnation.
            _ => {}
        }
    }

    fn is_current(&self, node: usize, incarnation: u32) -> bool {
        let node = &self.nodes[node];
        node.incarnation == incarnation && node.is_up && !node.is_removed
    }

    /// Whether faults are injected.
    pub(crate) fn is_busy(&self) -> bool {
        self.phase == Phase::Busy
    }

    /// The node's engine handles an event, and its effects start.
    pub(crate) fn handle(&mut self, node: usize, event: Event) {
        self.stats.engine_events += 1;
        let now = self.nodes[node].clock(self.queue.now());
        let started = Instant::now();
        let effects = step(&mut self.nodes[node].state, event, now);
        self.stats.step_times.add(self.nodes[node].view.is_full, started.elapsed());
        let has_effects = !effects.is_empty();
        let (mut answers, mut translations) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Journal(record) => self.journal(node, &record),
                Effect::Observe { unit, request: look } => {
                    self.execute(node, KernelEffect::Observe(unit, Box::new(look)))
                }
                Effect::Apply { unit, plan } => {
                    self.nodes[node].applying.insert(unit.clone(), Arc::clone(&plan));
                    self.execute(node, KernelEffect::Apply(unit, plan));
                }
                Effect::InspectNetns { call, path } => self.execute(node, KernelEffect::Inspect(call, path)),
                // Nothing waits for these.
                Effect::ObjectsChanged(_)
                | Effect::UpdateFastPath(_)
                | Effect::RerouteConnections(_)
                | Effect::EndConnections(_) => {}
                Effect::TranslateObjects { namespace, manifests } => {
                    let read = |text: &String| serde_json::from_str(text).expect("manifests are JSON");
                    let objects = manifests.iter().map(|text| stored(&read(text))).collect();
                    translations.push(Event::ObjectsTranslated { namespace, objects });
                }
                Effect::TranslateNetworks(request) => {
                    translations.push(self.translate_networks(node, request))
                }
                Effect::Block(request) => self.send_request(node, ApiRequest::Block(request)),
                Effect::ClaimQuota(request) => self.send_request(node, ApiRequest::Claim(request)),
                Effect::InvokeExtension(invocation) => self.invoke_extension(node, &invocation),
                Effect::Respond { call, result: answer } => answers.push((call, answer)),
                other => self.fail(&[node], format!("unexpected effect {other:?}")),
            }
        }
        for translated in translations {
            self.handle(node, translated);
        }
        for (call, answer) in answers {
            self.call_completed(node, &call, answer);
        }
        if has_effects {
            self.schedule_status_write(node);
            self.schedule_notifications(node);
        }
    }

    /// Journals a record. On some nodes it is replayed at once; the engine's tests cover serialization.
    pub(crate) fn journal(&mut self, node: usize, record: &Record) {
        if let Record::ChangeEnded(ended) = record
            && let Unit::Sandbox(id) = &ended.unit
            && ended.unit_state.as_ref().is_some_and(|made| made.interfaces.len() > 1)
        {
            self.second_interface_ready(node, id);
        }
        if let Record::BlockClaimed(block) = record
            && is_pool_block(&block.name)
        {
            self.schedule_network(node);
        }
        if let Record::BlockReleased { name, .. } = record
            && is_pool_block(name)
        {
            self.schedule_network(node);
        }
        let loses_record = self.options.fault == Some(PlantedFault::LostJournalRecord);
        if loses_record && matches!(record, Record::BlockReleased { .. }) {
            return;
        }
        if let Some(shadow) = &mut self.nodes[node].shadow {
            shadow.record(record);
        }
    }

    pub(crate) fn record_trace(&mut self, node: usize, message: &'static str, subject: TraceSubject) {
        self.trace.add(self.queue.now(), node, message, subject);
    }

    /// Reports a violation that affects these nodes. The first one counts.
    pub(crate) fn fail(&mut self, nodes: &[usize], message: String) {
        if self.failure.is_none() {
            let trace = self.trace.last(nodes, MAX_TRACE_LINES);
            self.failure = Some(InvariantViolation { seed: self.options.seed, message, trace });
        }
    }

    fn summary(&self) -> String {
        let seconds = self.queue.now() / SECOND;
        format!(
            "{:>3}:{:02}  {} pods, {} blocks, {} requests, {} engine events, {} scheduled",
            seconds / 60,
            seconds % 60,
            self.live.len(),
            self.api.block_count(),
            self.api.requests.values().sum::<u64>(),
            self.stats.engine_events,
            self.queue.len(),
        )
    }

    fn result(mut self) -> SimStats {
        self.stats.requests = std::mem::take(&mut self.api.requests);
        self.stats.blocks_claimed = self.api.claimed;
        self.stats.claim_conflicts = self.api.conflicts;
        self.stats.blocks_released = self.api.released;
        self.stats.quota_claims = self.api.quotas.written;
        self.stats.quota_conflicts = self.api.quotas.conflicts;
        self.stats.full_view_nodes = self.full_view.len() as u64;
        self.stats.max_queued = self.queue.max_len() as u64;
        self.stats.simulated_time = self.queue.now();
        self.stats
    }
}
