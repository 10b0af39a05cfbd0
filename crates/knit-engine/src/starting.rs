//! Pods whose containers have not been started: what their runtime waits for, and what was there before the first of them.
//!
//! The runtime is answered when all that objects ask for stands, or cannot stand for a reason that waiting does not help.
//! Nothing here knows how long that may take: whoever waits does.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::SandboxId;
use knit_model::provenance::Dialect;
use knit_model::report::{AppliedReport, Attached, InterfaceReport, ItemReport};
use serde::{Deserialize, Serialize};

use crate::call::ATTACHMENT;
use crate::event::{Record, Unit};
use crate::made::Made;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// How far a pod is with what objects ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No object asks for anything, or nothing is known of the sandbox.
    Nothing,
    /// Something of it is under way: these objects wait.
    UnderWay(Vec<String>),
    /// All of it stands.
    Stands,
    /// Something of it cannot stand as things are: these objects say why.
    Hindered(Vec<String>),
}

/// What the readiness gate of a pod says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Whether all that objects ask for is there.
    pub is_open: bool,
    /// A stable word.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// What pods had before their containers were started, by the object that asked and its field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Started(#[serde(with = "knit_model::pairs")] BTreeMap<SandboxId, BTreeSet<(ObjectKey, String)>>);

impl Gate {
    /// The gate of a pod that uses the node's own network.
    pub fn on_host() -> Self {
        let message = "the pod uses the node's own network (hostNetwork): nothing is added there".to_owned();
        Self { is_open: true, reason: "HostNetwork".to_owned(), message }
    }
}

impl State {
    /// How far a sandbox is. `waiting` are those that wait for someone else: for a key, a quota or a block of addresses that is
    /// being asked for. What is in their way is no reason yet.
    pub fn progress(&self, id: &SandboxId, waiting: &BTreeSet<SandboxId>) -> Progress {
        let Some(sandbox) = self.sandboxes.get(id) else { return Progress::Nothing };
        if self.asking(sandbox).next().is_none() {
            return Progress::Nothing;
        }
        let under_way = self.is_pending(&Unit::Sandbox(id.clone())) || waiting.contains(id);
        let all = self.pod_state(sandbox).objects;
        let missing = || all.iter().filter(|one| !one.ready);
        if under_way {
            // What stands may still be changed by what is under way.
            let first = missing().next().is_some();
            return Progress::UnderWay(titles(all.iter().filter(|one| !first || !one.ready)));
        }
        // What an object waits for and nobody says why is on its way, such as a socket.
        let is_silent = |one: &&AppliedReport| one.problems.is_empty();
        if missing().any(|one| is_silent(&one)) {
            return Progress::UnderWay(titles(missing().filter(is_silent)));
        }
        match titles(missing()) {
            none if none.is_empty() => Progress::Stands,
            hindered => Progress::Hindered(hindered),
        }
    }
}

impl State {
    /// What the readiness gate of the pod with this uid says; `None` while what it says is about to follow. `waiting` is as for
    /// [`State::progress`].
    pub fn gate(&self, uid: &str, waiting: &BTreeSet<SandboxId>) -> Option<Gate> {
        let gate =
            |is_open, reason: &str, message: String| Gate { is_open, reason: reason.to_owned(), message };
        let mut all = self.sandboxes.values().filter(|sandbox| sandbox.uid == uid);
        let Some(sandbox) = all.next() else {
            return Some(gate(false, "NoSandbox", "the pod's sandbox is not known yet".to_owned()));
        };
        let objects: Vec<AppliedReport> = self.pod_state(sandbox).objects;
        let missing: Vec<&AppliedReport> = objects.iter().filter(|one| !one.ready).collect();
        let is_settled = !self.is_pending(&Unit::Sandbox(sandbox.id.clone()));
        if missing.is_empty() {
            // A comparison changes nothing most of the time.
            return is_settled.then(|| match titles(objects.iter()) {
                none if none.is_empty() => {
                    gate(true, "NothingAsked", "no object asks for anything".to_owned())
                }
                all => gate(true, "Configured", format!("all is there of {}", all.join(", "))),
            });
        }
        let problem = missing.iter().find_map(|one| one.problems.first());
        let titles = titles(missing.iter().copied()).join(", ");
        Some(match problem.filter(|_| is_settled && !waiting.contains(&sandbox.id)) {
            Some(problem) => gate(false, &format!("{:?}", problem.reason), format!("{titles}: {problem}")),
            None => gate(false, "Configuring", format!("is being made: {titles}")),
        })
    }

    /// When a pod got what it has of an object. Of one that a person gave to this machine alone it is not known unless a runtime
    /// waited: its pods may have been added by hand, too.
    pub(crate) fn attached(
        &self,
        id: &SandboxId,
        object: &ObjectKey,
        links: &[InterfaceReport],
        items: &[ItemReport],
    ) -> Option<Attached> {
        if object.kind == ATTACHMENT {
            return Some(Attached::ByCall);
        }
        let mut fields = links.iter().map(|link| &link.field).chain(items.iter().map(|item| &item.field));
        let first = fields.next()?;
        let before = self.started.0.get(id);
        let was_there =
            |field: &String| before.is_some_and(|before| before.contains(&(object.clone(), field.clone())));
        if was_there(first) && fields.all(was_there) {
            return Some(Attached::BeforeContainers);
        }
        let mut intents = self.objects.get(object)?.intents.iter();
        let is_from_api = intents.any(|intent| intent.origin.dialect == Dialect::Kubernetes);
        is_from_api.then_some(Attached::WhileRunning)
    }
}

fn titles<'a>(objects: impl Iterator<Item = &'a AppliedReport>) -> Vec<String> {
    objects.map(|one| format!("{}/{}", one.object.kind.to_lowercase(), one.object.name)).collect()
}

/// Remembers what stands now, if anything does.
pub(crate) fn note(state: &mut State, id: &SandboxId, effects: &mut Effects) {
    let Some(sandbox) = state.sandboxes.get(id) else { return };
    let mut before = BTreeSet::new();
    for applied in state.pod_state(sandbox).objects {
        let key = ObjectKey::of(&applied.object);
        let links = applied.interfaces.into_iter().filter(|link| link.ready).map(|link| link.field);
        let items = applied.items.into_iter().filter(|item| item.ready).map(|item| item.field);
        before.extend(links.chain(items).map(|field| (key.clone(), field)));
    }
    before.retain(|(key, _)| key.kind != ATTACHMENT);
    if before.is_empty() {
        return;
    }
    let objects = before.iter().map(|(key, _)| key.clone()).collect();
    effects.record(state, Record::Started(id.clone(), before));
    effects.changed(objects);
}

impl Started {
    pub(crate) fn note(&mut self, id: &SandboxId, before: &BTreeSet<(ObjectKey, String)>) {
        self.0.insert(id.clone(), before.clone());
    }

    pub(crate) fn forget(&mut self, id: &SandboxId) {
        self.0.remove(id);
    }

    /// What was taken away, or made anew as another, was not there before.
    pub(crate) fn follow(&mut self, unit: &Unit, old: Option<&Made>, new: &Made) {
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

/// What makes an interface or an item another one: its name and kind, or what it is.
fn identity<'a>(made: &'a Made, object: &ObjectKey, field: &str) -> Option<(&'a str, &'a str)> {
    let links = made.interfaces.iter().filter(|(of, _)| of == object).map(|(_, link)| link);
    let mut links = links.filter(|link| link.field == field);
    let items = made.items.iter().filter(|(of, _)| of == object).map(|(_, item)| item);
    let mut items = items.filter(|item| item.field == field);
    let link = links.next().map(|link| (link.name.as_str(), link.kind.as_str()));
    link.or_else(|| items.next().map(|item| (item.what.as_str(), "")))
}
