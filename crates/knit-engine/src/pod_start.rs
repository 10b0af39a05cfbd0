//! Pod start: what the runtime waits for before it starts containers, readiness gates, and what was attached before
//! the first container started.
//!
//! The wait is a call: it ends when everything that objects request is ready, or is blocked by a problem that waiting does
//! not solve. Timeouts are up to the caller, which cancels the call.

use std::collections::{BTreeMap, BTreeSet};

use knit_ipam::Time;
use knit_model::provenance::Dialect;
use knit_model::report::{AppliedReport, AttachTiming, InterfaceReport, ItemReport};
use knit_model::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::{ATTACHMENT_KIND, CallId, CallResult};
use crate::event::{Record, Unit};
use crate::pods::{self, Pod, RuntimePod};
use crate::state::{ObjectKey, State};
use crate::step::{Effects, sandbox_started};
use crate::unit_state::UnitState;

/// A call of the runtime: a sandbox is running, and its containers start when the call is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodStart {
    /// The call.
    pub call: CallId,
    /// The sandbox.
    pub id: SandboxId,
    /// What is known of it.
    pub sandbox: StartingSandbox,
}

/// What the runtime reports of a starting sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartingSandbox {
    /// In a cluster: the API server's view of the pod takes precedence.
    Announced(RuntimePod),
    /// On a machine without a cluster.
    Local(Sandbox),
}

/// The progress of a pod towards what objects request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartProgress {
    /// No object selects the pod, or the sandbox is unknown.
    NothingRequested,
    /// In progress; the objects that are not ready.
    InProgress(Vec<String>),
    /// Everything is ready.
    Ready,
    /// Blocked by problems of these objects.
    Blocked(Vec<String>),
}

/// The condition for a pod's readiness gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadinessGate {
    /// Whether everything that objects request is ready.
    pub is_open: bool,
    /// A stable reason.
    pub reason: String,
    /// A human-readable message.
    pub message: String,
}

/// The (object, field) pairs that were ready before the containers of each sandbox started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachedBeforeStart(
    #[serde(with = "knit_model::serde_pairs")] BTreeMap<SandboxId, BTreeSet<(ObjectKey, String)>>,
);

impl ReadinessGate {
    /// The gate of a pod on the host network.
    pub fn host_network() -> Self {
        let message = "the pod uses the host network (hostNetwork): interfaces cannot be added".to_owned();
        Self { is_open: true, reason: "HostNetwork".to_owned(), message }
    }
}

/// Handles the start of a pod. It is answered by [`answer_starts`], in the same step if the pod needs nothing.
pub(crate) fn starting(state: &mut State, start: PodStart, now: Time, effects: &mut Effects) {
    let PodStart { call, id, sandbox } = start;
    match sandbox {
        StartingSandbox::Announced(announced) => pods::announce(state, &id, announced, now, effects),
        StartingSandbox::Local(sandbox) => sandbox_started(state, sandbox, now, effects),
    }
    state.pod_starts.insert(call, id);
}

/// Answers the starts of pods that are complete or blocked. What their containers find is recorded when the runtime has
/// received the answer: it may have stopped to wait meanwhile.
pub(crate) fn answer_starts(state: &mut State, effects: &mut Effects) {
    if state.pod_starts.is_empty() {
        return;
    }
    let is_over = |(_, id): &(&CallId, &SandboxId)| {
        !state.is_pending(&Unit::Sandbox((*id).clone())) && !state.is_translating(id)
    };
    let candidates: Vec<(CallId, SandboxId)> =
        state.pod_starts.iter().filter(is_over).map(|(call, id)| (call.clone(), id.clone())).collect();
    for (call, id) in candidates {
        let progress = state.start_progress(&id);
        if let StartProgress::InProgress(_) = progress {
            continue;
        }
        state.pod_starts.remove(&call);
        effects.respond(&call, CallResult::PodStarted(progress));
    }
}

impl State {
    /// Sandboxes that wait for the API server: for a key in a Secret, a quota claim or an address block. Their problems are
    /// not final.
    pub fn awaiting_api_server(&self) -> BTreeSet<SandboxId> {
        let blocks = self.blocks.units_awaiting_claim().filter_map(Unit::sandbox);
        let mut waiting: BTreeSet<SandboxId> = blocks.chain(&self.awaiting_keys).cloned().collect();
        waiting.extend(self.sandboxes_awaiting_quota());
        waiting
    }

    /// Whether the objects of a sandbox's namespace or the annotation of its pod are being translated.
    fn is_translating(&self, id: &SandboxId) -> bool {
        let namespace = self.sandboxes.get(id).map(|sandbox| &sandbox.namespace);
        namespace.is_some_and(|namespace| self.unused_objects.is_awaited(namespace))
            || self.pods.uid_of(id).is_some_and(|uid| self.pod_networks.is_awaited(uid))
    }

    /// The progress of a sandbox.
    pub fn start_progress(&self, id: &SandboxId) -> StartProgress {
        let Some(sandbox) = self.sandboxes.get(id) else { return StartProgress::NothingRequested };
        if self.objects_selecting(sandbox).next().is_none() {
            return StartProgress::NothingRequested;
        }
        let pending = self.is_pending(&Unit::Sandbox(id.clone())) || self.awaiting_api_server().contains(id);
        let all = self.pod_state(sandbox).objects;
        let missing = || all.iter().filter(|one| !one.ready);
        if pending {
            // A change in flight may still affect what is ready.
            let first = missing().next().is_some();
            return StartProgress::InProgress(titles(all.iter().filter(|one| !first || !one.ready)));
        }
        // Without a problem an object is still in progress, for example a socket.
        let has_no_problem = |one: &&AppliedReport| one.problems.is_empty();
        if missing().any(|one| has_no_problem(&one)) {
            return StartProgress::InProgress(titles(missing().filter(has_no_problem)));
        }
        match titles(missing()) {
            none if none.is_empty() => StartProgress::Ready,
            blocked => StartProgress::Blocked(blocked),
        }
    }
}

impl State {
    /// The readiness gates of pods that differ from the published ones, by the pods' uids.
    pub fn due_readiness_gates(&self) -> Vec<(&Pod, ReadinessGate)> {
        let gated: Vec<&Pod> = self.pods.all().filter(|pod| pod.has_readiness_gate && !pod.ended).collect();
        if gated.is_empty() {
            return Vec::new();
        }
        let waiting = self.awaiting_api_server();
        let due = gated.into_iter().filter_map(|pod| {
            let gate = match pod.host_network {
                true => ReadinessGate::host_network(),
                false => self.readiness_gate(&pod.uid, &waiting)?,
            };
            (pod.published_gate.as_ref() != Some(&gate)).then_some((pod, gate))
        });
        due.collect()
    }

    /// The readiness gate of the pod with this uid; `None` while a change is about to decide it. `waiting` are the sandboxes
    /// that wait for the API server.
    pub fn readiness_gate(&self, uid: &str, waiting: &BTreeSet<SandboxId>) -> Option<ReadinessGate> {
        let gate = |is_open, reason: &str, message: String| ReadinessGate {
            is_open,
            reason: reason.to_owned(),
            message,
        };
        let mut all = self.sandboxes.values().filter(|sandbox| sandbox.uid == uid);
        let Some(sandbox) = all.next() else {
            return Some(gate(false, "NoSandbox", "the pod's sandbox is not known yet".to_owned()));
        };
        let objects: Vec<AppliedReport> = self.pod_state(sandbox).objects;
        let missing: Vec<&AppliedReport> = objects.iter().filter(|one| !one.ready).collect();
        let is_settled = !self.is_pending(&Unit::Sandbox(sandbox.id.clone()));
        if missing.is_empty() {
            // Most comparisons change nothing.
            return is_settled.then(|| match titles(objects.iter()) {
                none if none.is_empty() => gate(true, "NothingAsked", "no object selects the pod".to_owned()),
                all => gate(true, "Configured", format!("ready: {}", all.join(", "))),
            });
        }
        let problem = missing.iter().find_map(|one| one.problems.first());
        let titles = titles(missing.iter().copied()).join(", ");
        Some(match problem.filter(|_| is_settled && !waiting.contains(&sandbox.id)) {
            Some(problem) => gate(false, problem.reason.name(), format!("{titles}: {problem}")),
            None => gate(false, "Configuring", format!("in progress: {titles}")),
        })
    }

    /// When the pod got the interfaces and items of an object. Unknown for local objects unless a runtime waited:
    /// their pods may have been added by hand.
    pub(crate) fn attached(
        &self,
        id: &SandboxId,
        object: &ObjectKey,
        links: &[InterfaceReport],
        items: &[ItemReport],
    ) -> Option<AttachTiming> {
        if object.kind == ATTACHMENT_KIND {
            return Some(AttachTiming::ByCall);
        }
        let mut fields = links.iter().map(|link| &link.field).chain(items.iter().map(|item| &item.field));
        let first = fields.next()?;
        let before = self.started.0.get(id);
        let was_there =
            |field: &String| before.is_some_and(|before| before.contains(&(object.clone(), field.clone())));
        if was_there(first) && fields.all(was_there) {
            return Some(AttachTiming::BeforeContainers);
        }
        let mut intents = self.objects.get(object)?.intents.iter();
        let is_from_api = intents.any(|intent| intent.origin.dialect == Dialect::Kubernetes);
        is_from_api.then_some(AttachTiming::WhileRunning)
    }
}

fn titles<'a>(objects: impl Iterator<Item = &'a AppliedReport>) -> Vec<String> {
    objects.map(|one| format!("{}/{}", one.object.kind.to_lowercase(), one.object.name)).collect()
}

/// Records what is ready now, if anything is: it was attached before the first container.
pub(crate) fn record_start(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    let Some(sandbox) = state.sandboxes.get(id) else { return };
    let mut before = BTreeSet::new();
    for applied in state.pod_state(sandbox).objects {
        let key = ObjectKey::of(&applied.object);
        let links = applied.interfaces.into_iter().filter(|link| link.ready).map(|link| link.field);
        let items = applied.items.into_iter().filter(|item| item.ready).map(|item| item.field);
        before.extend(links.chain(items).map(|field| (key.clone(), field)));
    }
    before.retain(|(key, _)| key.kind != ATTACHMENT_KIND);
    if before.is_empty() {
        return;
    }
    let objects = before.iter().map(|(key, _)| key.clone()).collect();
    effects.record(state, Record::ContainersStarted(id.clone(), before));
    effects.changed(objects);
}

impl AttachedBeforeStart {
    pub(crate) fn insert(&mut self, id: &SandboxId, before: &BTreeSet<(ObjectKey, String)>) {
        self.0.insert(id.clone(), before.clone());
    }

    pub(crate) fn forget(&mut self, id: &SandboxId) {
        self.0.remove(id);
    }

    /// Drops what was removed or replaced since.
    pub(crate) fn retain_unchanged(&mut self, unit: &Unit, old: Option<&UnitState>, new: &UnitState) {
        let Unit::Sandbox(id) = unit else { return };
        let Some(before) = self.0.get_mut(id) else { return };
        before.retain(|(object, field)| {
            old.and_then(|old| identity(old, object, field)) == identity(new, object, field)
        });
        if before.is_empty() {
            self.0.remove(id);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The identity of an interface (name and kind) or of an item (description and kind).
fn identity<'a>(unit_state: &'a UnitState, object: &ObjectKey, field: &str) -> Option<(&'a str, &'a str)> {
    let links = unit_state.interfaces.iter().filter(|(of, _)| of == object).map(|(_, link)| link);
    let mut links = links.filter(|link| link.field == field);
    let items = unit_state.items.iter().filter(|(of, _)| of == object).map(|(_, item)| item);
    let mut items = items.filter(|item| item.field == field);
    let link = links.next().map(|link| (link.name.as_str(), link.kind.as_str()));
    link.or_else(|| items.next().map(|item| (item.description.as_str(), item.kind.name())))
}
