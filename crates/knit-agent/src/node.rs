//! The engine's host: handles events and executes the effects that follow.

mod repair;
mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use knit_crds::attachments::AllowedPlugins;
use knit_engine::blocks::BlockRequest;
use knit_engine::extension::Invocation;
use knit_engine::packet_filter::FastPathChange;
use knit_engine::quota::ClaimRequest;
use knit_engine::recording::{Digest, NewEntry};
use knit_engine::sockets::SocketListener;
use knit_engine::{
    CallId, CallResult, Effect, Event, ObjectKey, PlanResult, Record, Settings, State, StoredObject, Unit,
    step,
};
use knit_ipam::Time;
use knit_kernel::fault::FaultInjector;
use knit_kernel::redirect::{DatapathMode, Redirect};
use knit_kernel::{SandboxNamespaces, memory};
use knit_model::link::OwnerId;
use knit_model::{Plan, Sandbox, SandboxId, Scope};
use knit_store::{Journal, SegmentSize, Seq};

pub use repair::Repair;
pub use start::FORMAT;

use crate::error::{Error, Result};
use crate::executor::{Completion, Executor, Faults, Work};
use crate::keys::KeyDir;
use crate::recorder::Recorder;
use crate::{api_objects, host, plugin_chain, pod_networks, sockets};

/// The journal is compacted into a snapshot after this many records, which bounds the time of a start.
const MAX_JOURNAL_RECORDS: u64 = 5_000;
/// The same by size, which bounds the memory of a start: all records since the snapshot are read at once.
const MAX_JOURNAL_BYTES: u64 = 8 << 20;

/// A node: its state, its journal, and an executor for the kernel.
///
/// [`Node::handle`] completes everything that follows from an event before it returns. A daemon takes the same steps one by one:
/// [`Node::step`], the effects on other executors, [`Node::complete`].
pub struct Node {
    state: State,
    journal: Journal<Record, State>,
    executor: Box<dyn Executor>,
    /// The fault points of all executors.
    faults: Faults,
    keys: Arc<KeyDir>,
    /// Open namespaces of units with a change in flight.
    namespaces: BTreeMap<Unit, SandboxNamespaces>,
    /// Scopes with links whose deletion is deferred.
    deferred_deletes: BTreeSet<Scope>,
    /// The sandboxes among them: a sandbox may be removed from the state before its links are deleted.
    deferred_sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Whether links with Knit's mark that no unit owns belong to another Knit, and stay.
    keeps_foreign_links: bool,
    /// The ranges of the host as of the last search for strays.
    host_settings: Option<Settings>,
    /// Pending changes of the fast path: until they are applied, packets take the bridge.
    fast_path: Vec<FastPathChange>,
    /// CNI plugins that annotations of pods may run.
    allowed_plugins: AllowedPlugins,
    /// Where inputs are recorded.
    recorder: Option<Recorder>,
}

/// Plans, each with its unit.
pub type Plans = Vec<(Unit, Arc<Plan>)>;

/// Everything that followed from events.
#[derive(Debug, Default)]
pub struct EventOutcome {
    /// Objects whose status changed.
    pub changed: BTreeSet<ObjectKey>,
    /// The applied plans, or in a dry run those that would be applied.
    pub plans: Plans,
    /// Results of calls.
    pub answers: Vec<(CallId, CallResult)>,
}

/// A request to the API server. Its result is an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiRequest {
    /// Claim or return an address block.
    Block(BlockRequest),
    /// Write this node's claim of a quota.
    ClaimQuota(ClaimRequest),
}

/// What follows from one step of the engine.
#[derive(Debug, Default)]
pub struct StepResult {
    /// Effects for executors.
    pub effects: Vec<Effect>,
    /// Objects whose status changed.
    pub changed: BTreeSet<ObjectKey>,
    /// Results of calls.
    pub answers: Vec<(CallId, CallResult)>,
    /// Extensions to call.
    pub invocations: Vec<Invocation>,
    /// Requests to the API server.
    pub api_requests: Vec<ApiRequest>,
    /// The complete set of sockets to offer to pods, if it changed.
    pub offers: Option<Vec<SocketListener>>,
    /// Journalled records.
    pub records: Vec<(Seq, Record)>,
}

impl StepResult {
    /// Adds what follows from the next step.
    fn append(&mut self, mut next: Self) {
        self.effects.append(&mut next.effects);
        self.changed.append(&mut next.changed);
        self.answers.append(&mut next.answers);
        self.invocations.append(&mut next.invocations);
        self.api_requests.append(&mut next.api_requests);
        self.offers = next.offers.or(self.offers.take());
        self.records.append(&mut next.records);
    }
}

impl Node {
    /// The node's state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Journals and applies a record that needs no decision.
    pub fn record(&mut self, record: &Record) -> Result<Seq> {
        self.state.record(record);
        if let Some(recorder) = &mut self.recorder {
            recorder.write(&NewEntry::Recorded(record));
        }
        Ok(self.journal.append_durable(record)?)
    }

    /// Handles an event and completes everything that follows.
    pub fn handle(&mut self, event: Event) -> Result<EventOutcome> {
        self.handle_all(vec![event])
    }

    /// Handles events and completes everything that follows. A unit that several of them affect is changed for the first one, then for all
    /// others at once.
    pub fn handle_all(&mut self, events: Vec<Event>) -> Result<EventOutcome> {
        let outcome = self.run_to_completion(events.into());
        // Open sockets keep their namespaces alive.
        self.namespaces.clear();
        outcome
    }

    fn run_to_completion(&mut self, mut events: VecDeque<Event>) -> Result<EventOutcome> {
        let mut outcome = EventOutcome::default();
        while let Some(event) = events.pop_front() {
            let StepResult { effects, changed, answers, offers, .. } = self.step(event)?;
            events.extend(offers.map(|offers| sockets::without_agent(&offers)));
            outcome.changed.extend(changed);
            outcome.answers.extend(answers);
            for effect in effects {
                if let Effect::Apply { unit, plan } = &effect {
                    outcome.plans.push((unit.clone(), Arc::clone(plan)));
                }
                let mut work = self.prepare(effect);
                let completion = self.executor.execute(&mut work)?;
                events.extend(self.complete(completion));
            }
        }
        Ok(outcome)
    }

    /// Decides what follows from an event and journals it. Returns the effects for executors.
    pub fn step(&mut self, mut event: Event) -> Result<StepResult> {
        if let Event::AttachRequested(attach) = &mut event {
            host::find_nics(attach);
        }
        let mut result = StepResult::default();
        // The API server has its objects; only those of this machine have to survive a power failure here.
        let is_from_api = matches!(
            &event,
            Event::Objects(_) | Event::ObjectsTranslated { .. } | Event::NetworksTranslated(_)
        );
        let deletes_local = match &event {
            Event::ObjectDeleted(key) => {
                !self.state.objects.get(key).is_some_and(StoredObject::is_kept_by_api_server)
            }
            _ => false,
        };
        let must_sync = |record: &Record| match record {
            Record::ObjectApplied(object) => !is_from_api && !object.is_kept_by_api_server(),
            Record::ObjectDeleted(_) => deletes_local,
            other => is_durable(other),
        };
        let observed = if let Event::Observed { unit, .. } = &event { Some(unit.clone()) } else { None };
        let mut translations = Vec::new();
        let mut digest = Digest::default();
        for effect in self.decide(event) {
            if self.recorder.is_some() && !matches!(effect, Effect::Journal(_)) {
                digest.add_effect(&effect);
            }
            match effect {
                Effect::Journal(record) => {
                    let (seq, checksum) = self.write(&record, must_sync(&record))?;
                    digest.add_record(checksum);
                    result.records.push((seq, record));
                }
                Effect::ObjectsChanged(objects) => result.changed.extend(objects),
                Effect::Respond { call, result: answer } => result.answers.push((call, answer)),
                Effect::InvokeExtension(invocation) => result.invocations.push(*invocation),
                Effect::Block(request) => result.api_requests.push(ApiRequest::Block(request)),
                Effect::ClaimQuota(request) => result.api_requests.push(ApiRequest::ClaimQuota(request)),
                Effect::OfferSockets(offers) => result.offers = Some(offers),
                Effect::TranslateNetworks(request) => {
                    let plugins = &self.allowed_plugins;
                    translations.push(pod_networks::translated(&self.state, request, plugins));
                }
                Effect::TranslateObjects { namespace, manifests } => {
                    translations.push(api_objects::translated(namespace, &manifests));
                }
                Effect::UpdateFastPath(change) => {
                    if matches!(change, FastPathChange::All(_)) {
                        self.fast_path.clear();
                    }
                    self.fast_path.push(change);
                }
                effect => result.effects.push(effect),
            }
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.end_handled(digest);
        }
        let is_applied = |unit: &Unit| {
            result.effects.iter().any(|effect| matches!(effect, Effect::Apply { unit: of, .. } if of == unit))
        };
        if let Some(unit) = observed.filter(|unit| !is_applied(unit)) {
            // Open sockets keep their namespace alive.
            self.namespaces.remove(&unit);
        }
        for translated in translations {
            result.append(self.step(translated)?);
        }
        Ok(result)
    }

    fn decide(&mut self, event: Event) -> Vec<Effect> {
        let at = now();
        if let Some(recorder) = &mut self.recorder {
            recorder.start_handled(at, &event);
        }
        step(&mut self.state, event, at)
    }

    /// Writes what is recorded so far. To be called when the node is idle.
    pub(crate) fn flush_recording(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.flush_buffer();
        }
    }

    /// Limits the recording of the last minutes. To be called now and then.
    pub(crate) fn rotate_recording(&mut self, now: Instant) {
        if let Some(recorder) = &mut self.recorder {
            recorder.rotate(&self.state, now);
        }
    }

    /// An effect as work for an executor.
    pub fn prepare(&mut self, effect: Effect) -> Work {
        let unit = match &effect {
            Effect::Observe { unit, .. } | Effect::Apply { unit, .. } => Some(unit),
            _ => None,
        };
        let namespaces = unit.and_then(|unit| self.namespaces.remove(unit)).unwrap_or_default();
        Work::effect(effect, &self.state, namespaces, true)
    }

    /// The deferred deletions as work for an executor.
    pub(crate) fn prepare_deferred_delete(&mut self) -> Work {
        let mut work = Work::deferred_delete(std::mem::take(&mut self.deferred_deletes), &self.state);
        if let Work::DeferredDelete { sandboxes, .. } = &mut work {
            let known: BTreeSet<SandboxId> = sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
            let removed = std::mem::take(&mut self.deferred_sandboxes).into_iter();
            sandboxes.extend(removed.filter(|(id, _)| !known.contains(id)).map(|(_, sandbox)| sandbox));
        }
        work
    }

    /// The check for sandboxes that are gone as work for an executor.
    pub(crate) fn prepare_sandbox_check(&self) -> Work {
        Work::CheckSandboxes(self.state.sandboxes.values().cloned().collect())
    }

    /// Takes over the result of completed work. The returned events are to be handled next.
    pub fn complete(&mut self, completion: Completion) -> Vec<Event> {
        for scope in completion.deferred_deletes {
            if let Scope::Sandbox(id) = &scope
                && let Some(sandbox) = self.state.sandboxes.get(id)
            {
                self.deferred_sandboxes.insert(id.clone(), sandbox.clone());
            }
            self.deferred_deletes.insert(scope);
        }
        if let Some((unit, namespaces)) = completion.namespaces {
            self.namespaces.insert(unit, namespaces);
        }
        completion.events
    }

    /// Executes pending changes of the fast path.
    pub(crate) fn update_fast_path(&mut self) {
        for change in self.fast_path.drain(..) {
            self.executor.update_fast_path(&change);
        }
    }

    /// What would follow from events. Observes the kernel and changes nothing.
    pub fn dry_run(&mut self, events: impl IntoIterator<Item = Event>) -> Result<(State, EventOutcome)> {
        let mut state = self.state.clone();
        let mut outcome = EventOutcome::default();
        for event in events {
            let mut queue = VecDeque::from([event]);
            while let Some(event) = queue.pop_front() {
                for effect in step(&mut state, event, now()) {
                    match effect {
                        Effect::Journal(_) => {}
                        Effect::ObjectsChanged(objects) => outcome.changed.extend(objects),
                        Effect::Respond { call, result: answer } => outcome.answers.push((call, answer)),
                        Effect::Apply { unit, plan } => {
                            outcome.plans.push((unit.clone(), plan));
                            queue.push_back(Event::PlanApplied(PlanResult { unit, result: Ok(()) }));
                        }
                        // Extensions are not called; their success is assumed.
                        Effect::InvokeExtension(one) => {
                            queue.push_back(Event::ExtensionInvoked {
                                id: one.id,
                                result: Ok(BTreeMap::new()),
                            });
                        }
                        // Nothing is created or deleted.
                        Effect::CreateNetns { .. }
                        | Effect::RemoveNetns { .. }
                        | Effect::UpdateFastPath(_)
                        | Effect::RerouteConnections(_)
                        | Effect::EndConnections(_) => {}
                        Effect::Block(_) | Effect::ClaimQuota(_) => {}
                        Effect::TranslateNetworks(request) => {
                            queue.push_front(pod_networks::translated(
                                &state,
                                request,
                                &self.allowed_plugins,
                            ));
                        }
                        Effect::TranslateObjects { namespace, manifests } => {
                            queue.push_front(api_objects::translated(namespace, &manifests));
                        }
                        Effect::OfferSockets(offers) => queue.push_back(sockets::without_agent(&offers)),
                        Effect::RunPluginChain { command: verb, interface: chained } => {
                            let result = chained.result.clone().ok_or_else(plugin_chain::unknown_in_dry_run);
                            queue.push_back(Event::PluginChainDone {
                                key: chained.key(),
                                command: verb,
                                result,
                            });
                        }
                        effect @ (Effect::Observe { .. } | Effect::InspectNetns { .. }) => {
                            let mut work = Work::effect(effect, &state, SandboxNamespaces::new(), false);
                            queue.extend(self.executor.execute(&mut work)?.events);
                        }
                    }
                }
            }
        }
        Ok((state, outcome))
    }

    /// Executes deferred deletions and compacts the journal. To be called when no change is in flight.
    pub fn clean_up(&mut self) -> Result<()> {
        let mut work = self.prepare_deferred_delete();
        self.executor.execute(&mut work)?;
        self.compact()
    }

    /// Whether deletions are deferred.
    pub(crate) fn has_deferred_deletes(&self) -> bool {
        !self.deferred_deletes.is_empty()
    }

    /// Removes unused keys, and compacts the journal if it has grown.
    pub fn compact(&mut self) -> Result<()> {
        self.remove_unused_keys()?;
        let SegmentSize { records, bytes } = self.journal.size();
        if records > MAX_JOURNAL_RECORDS || bytes > MAX_JOURNAL_BYTES {
            self.journal.compact(&self.state.persistent(), self.journal.last())?;
            memory::trim();
        }
        Ok(())
    }

    /// The position of the last record.
    pub fn last_seq(&self) -> Seq {
        self.journal.last()
    }

    /// The size of the journal.
    pub fn journal_size(&self) -> SegmentSize {
        self.journal.size()
    }

    /// All records from this position on that still exist.
    pub fn history(&self, from: Seq) -> Result<knit_store::History<Record>> {
        Ok(self.journal.history(from)?)
    }

    /// Syncs the journal to disk.
    pub fn sync(&self) -> Result<()> {
        Ok(self.journal.sync()?)
    }

    /// Another executor of this node, for another thread.
    pub fn another_executor(&self) -> Result<Box<dyn Executor>> {
        self.executor.another()
    }

    /// Takes over Knit's tables of the host's packet filter that earlier processes left: only this node can change them then. False:
    /// it owns no tables, or the kernel has no owners of tables.
    pub fn claim_tables(&mut self) -> Result<bool> {
        self.executor.claim_tables()
    }

    /// Sets the eBPF redirect. A disabled one removes what an earlier process left.
    pub fn set_redirect(&mut self, redirect: Arc<Redirect>) {
        self.executor.set_redirect(redirect);
    }

    /// Sets the CNI plugins that annotations of pods may run.
    pub fn set_allowed_plugins(&mut self, plugins: AllowedPlugins) {
        self.allowed_plugins = plugins;
    }

    /// The data path between pods of this node.
    pub fn datapath_mode(&self) -> DatapathMode {
        self.executor.datapath_mode()
    }

    /// Carries out work on the node's own executor.
    pub fn execute(&mut self, work: &mut Work) -> Result<Completion> {
        self.executor.execute(work)
    }

    /// Every sandbox whose namespace still exists, as attachments without an interface.
    pub fn live_attachments(&mut self) -> Result<BTreeSet<(SandboxId, Option<knit_model::IfName>)>> {
        let mut work = self.prepare_sandbox_check();
        let events = self.executor.execute(&mut work)?.events.into_iter();
        let gone = events.filter_map(|event| match event {
            Event::SandboxRemoved(id) => Some(id),
            _ => None,
        });
        let gone: BTreeSet<_> = gone.collect();
        let live = self.state.sandboxes.keys().filter(|id| !gone.contains(*id));
        Ok(live.map(|id| (id.clone(), None)).collect())
    }

    /// Sets fault points, for tests.
    pub fn set_faults(&mut self, faults: Box<dyn FaultInjector + Send>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// A fault point outside of the steps of plans.
    pub(crate) fn fault_point(&self, what: &'static str) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).at_point(what);
    }

    /// Journals a record. Also returns its checksum.
    fn write(&mut self, record: &Record, durable: bool) -> Result<(Seq, u32)> {
        self.fault_point("record");
        let written = self.journal.append_with_checksum(record)?;
        if durable {
            self.journal.sync()?;
        }
        Ok(written)
    }

    /// Removes generated keys of attachments that are gone.
    fn remove_unused_keys(&self) -> Result<()> {
        let mut used = self.owner_ids();
        used.extend(self.state.wireguard_key_name());
        self.keys.retain(|id| used.contains(id)).map_err(|source| Error::Keys { source })
    }

    /// The owner ids of all interfaces in pods.
    fn owner_ids(&self) -> BTreeSet<String> {
        let sandboxes = self.state.units.iter().filter_map(|(unit, unit_state)| match unit {
            Unit::Sandbox(id) => Some((id, unit_state)),
            Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => None,
        });
        sandboxes
            .flat_map(|(id, unit_state)| {
                unit_state.interfaces.iter().map(move |(_, interface)| (id, &interface.name))
            })
            .map(|(id, name)| OwnerId::derived(&format!("{id}/{name}")).0)
            .collect()
    }
}

/// Whether a record other than that of an object must be on disk before its effects are executed. Links and pods do not survive a reboot,
/// so their records need not be.
fn is_durable(record: &Record) -> bool {
    match record {
        Record::Revision(_)
        | Record::RevisionUndone
        | Record::ExtensionRegistered(_)
        | Record::ExtensionRemoved { .. }
        // Another node may claim it from now on.
        | Record::BlockReleased { .. } => true,
        // Original values of the host are restored even after a reboot.
        Record::ChangeStarted(began) => began.original_values.iter().any(|(key, _)| key.scope == Scope::Host),
        _ => false,
    }
}

/// No fault points.
pub(crate) fn no_faults() -> Faults {
    Arc::new(Mutex::new(Box::new(knit_kernel::fault::NoFaults)))
}

/// Milliseconds since 1970, for display.
pub(crate) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use knit_engine::event::ChangeStarted;
    use knit_engine::state::OriginalValueKey;

    use super::*;

    #[test]
    fn only_records_that_survive_a_reboot_are_durable() {
        let began = |scope: Scope| {
            let key = OriginalValueKey { scope, link: Some("lo".parse().unwrap()), field: "up".to_owned() };
            Record::ChangeStarted(Box::new(ChangeStarted {
                unit: Unit::Sandbox(SandboxId("a".to_owned())),
                plan: Arc::default(),
                leases: Vec::new(),
                original_values: BTreeMap::from([(key, serde_json::Value::Bool(false))]),
            }))
        };
        assert!(!is_durable(&began(Scope::Sandbox(SandboxId("a".to_owned())))));
        assert!(is_durable(&began(Scope::Host)));
    }
}
