//! Knit on one machine, without a cluster: objects come from files, pods are network namespaces.

mod files;
mod prepare;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, Record, Revision, State};
use knit_kernel::Netns;
use knit_model::sandbox::Isolation;
use knit_model::{Sandbox, SandboxId};

pub use files::read_objects;
pub(crate) use prepare::{Prepared, prepare};

use crate::error::{Error, Result};
use crate::node::{Node, Plans, Repair, now};
use crate::sandboxes;

/// A node whose objects come from files.
pub struct Standalone {
    node: Node,
    /// What was found wrong in the state folder, for people.
    pub notes: Vec<String>,
}

/// What became of an object that was applied or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub key: ObjectKey,
    /// What became of it.
    pub verb: Verb,
    /// What its author should know.
    pub warnings: Vec<String>,
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It is new.
    Created,
    /// It was there, and was changed.
    Configured,
    /// It was there as it is.
    Unchanged,
    /// It is gone.
    Deleted,
    /// It was not there.
    NotFound,
}

impl Standalone {
    /// Opens the node whose state is in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let (node, notes) = Node::open(folder)?;
        Ok(Self { node, notes })
    }

    /// What the node knows.
    pub fn state(&self) -> &State {
        self.node.state()
    }

    /// The node, for tests that let something go wrong.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Adds a sandbox: a new namespace with a holder, or that of a process.
    pub fn add_sandbox(
        &mut self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<String, String>,
        holder: u32,
    ) -> Result<()> {
        let id = sandbox_id(namespace, name);
        if self.state().sandboxes.contains_key(&id) {
            return Err(Error::SandboxExists { name: name.to_owned(), namespace: namespace.to_owned() });
        }
        let netns = sandboxes::netns_of(holder);
        let handle = Netns::open_sandbox(Path::new(&netns), &Netns::current()?)?;
        let instance = sandboxes::instance_of(&handle)?;
        let uid = format!("{}-{}", instance.boot, instance.cookie);
        let (pod, namespace) = (name.to_owned(), namespace.to_owned());
        let isolation = Isolation::Netns;
        let sandbox = Sandbox { id, instance, isolation, netns, number: holder, pod, namespace, uid, labels };
        self.node.hear(Event::SandboxSeen(sandbox))?;
        self.node.tidy()
    }

    /// Sets a sandbox's labels.
    pub fn label_sandbox(
        &mut self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<()> {
        let sandbox = Sandbox { labels, ..self.sandbox(namespace, name)?.clone() };
        self.node.hear(Event::SandboxSeen(sandbox))?;
        self.node.tidy()
    }

    /// Takes everything of a sandbox back, and ends its holder. A process that was added with its namespace goes on, in
    /// a namespace as it was before.
    pub fn delete_sandbox(&mut self, namespace: &str, name: &str) -> Result<()> {
        let sandbox = self.sandbox(namespace, name)?.clone();
        // The namespace may outlive the holder: other processes may be inside. So it is cleared before it is let go.
        self.node.hear(Event::SandboxSeen(Sandbox { labels: BTreeMap::new(), ..sandbox.clone() }))?;
        self.node.tidy()?;
        sandboxes::stop_holder(sandbox.number, &sandbox.instance)?;
        self.node.hear(Event::SandboxGone(sandbox.id))?;
        self.node.tidy()
    }

    /// A sandbox by its pod's name.
    pub fn sandbox(&self, namespace: &str, name: &str) -> Result<&Sandbox> {
        let found = self.state().sandboxes.get(&sandbox_id(namespace, name));
        found.ok_or_else(|| Error::NoSandbox { name: name.to_owned(), namespace: namespace.to_owned() })
    }

    /// Applies objects. All of them are checked before the first one changes anything.
    pub fn apply(&mut self, objects: Vec<Object>, what: &str) -> Result<Vec<Change>> {
        let Prepared { changes, events, before } = prepare(self.state(), objects)?;
        if !before.is_empty() {
            self.node.record(&Record::Revision(Revision { what: what.to_owned(), at: now(), before }))?;
        }
        for event in events {
            self.node.hear(event)?;
        }
        self.retry_waiting()?;
        self.node.tidy()?;
        Ok(changes)
    }

    /// What applying the objects would change, with what has to be repaired.
    pub fn plan(&mut self, objects: Vec<Object>) -> Result<(Vec<Change>, Plans)> {
        let Prepared { changes, events, .. } = prepare(self.state(), objects)?;
        Ok((changes, self.rehearse(events)?))
    }

    /// What deleting the objects would change, with what has to be repaired.
    pub fn plan_delete(&mut self, keys: &[ObjectKey]) -> Result<Plans> {
        self.rehearse(keys.iter().cloned().map(Event::ObjectDeleted))
    }

    /// What is not in the kernel as it was asked for.
    pub fn differences(&mut self) -> Result<Plans> {
        self.rehearse([])
    }

    /// The plans that would be carried out. Each is a comparison with the kernel as it is, so the last of a unit counts.
    fn rehearse(&mut self, events: impl IntoIterator<Item = Event>) -> Result<Plans> {
        let (_, outcome) = self.node.rehearse(std::iter::once(Event::Resync).chain(events))?;
        let mut plans = Plans::new();
        for (unit, plan) in outcome.plans {
            plans.retain(|(other, _)| *other != unit);
            plans.push((unit, plan));
        }
        plans.retain(|(_, plan)| !plan.is_empty());
        Ok(plans)
    }

    /// Deletes objects.
    pub fn delete(&mut self, keys: &[ObjectKey], what: &str) -> Result<Vec<Change>> {
        let there: BTreeSet<&ObjectKey> =
            keys.iter().filter(|key| self.state().objects.contains_key(*key)).collect();
        let before: Vec<_> = there
            .iter()
            .map(|key| ((*key).clone(), self.state().objects.get(*key).cloned().map(Box::new)))
            .collect();
        let verb = |key: &ObjectKey| if there.contains(key) { Verb::Deleted } else { Verb::NotFound };
        let changes = keys
            .iter()
            .map(|key| Change { key: key.clone(), verb: verb(key), warnings: Vec::new() })
            .collect();
        if !before.is_empty() {
            self.node.record(&Record::Revision(Revision { what: what.to_owned(), at: now(), before }))?;
        }
        for key in keys {
            self.node.hear(Event::ObjectDeleted(key.clone()))?;
        }
        self.retry_waiting()?;
        self.node.tidy()?;
        Ok(changes)
    }

    /// Takes the newest change of objects back. Returns what it was, and what became of each object.
    pub fn undo(&mut self) -> Result<(String, Vec<Change>)> {
        let revision = self.state().revisions.last().cloned().ok_or(Error::NothingToUndo)?;
        self.node.record(&Record::Undone)?;
        let mut changes = Vec::new();
        for (key, before) in revision.before.into_iter().rev() {
            let verb = if before.is_some() { Verb::Configured } else { Verb::Deleted };
            changes.push(Change { key: key.clone(), verb, warnings: Vec::new() });
            self.node.hear(match before {
                Some(object) => Event::ObjectApplied(*object),
                None => Event::ObjectDeleted(key),
            })?;
        }
        self.retry_waiting()?;
        self.node.tidy()?;
        Ok((revision.what, changes))
    }

    /// Compares everything with the kernel, repairs what differs, and removes what has Knit's mark and no unit knows.
    pub fn repair(&mut self) -> Result<Vec<Repair>> {
        self.node.repair()
    }

    /// An object with the status that follows from what became of it.
    pub fn object(&self, key: &ObjectKey) -> Option<Object> {
        let stored = self.state().objects.get(key)?;
        let mut object = Object::from_manifest(&stored.manifest)?;
        let report = self.state().report(key)?;
        object.update_status(&report, jiff::Timestamp::now());
        Some(object)
    }

    /// What waits for something that another object may just have brought.
    fn retry_waiting(&mut self) -> Result<()> {
        if !self.state().problems.is_empty() {
            self.node.hear(Event::Resync)?;
        }
        Ok(())
    }
}

/// A standalone sandbox's id is its pod's name: there is no runtime that gives one.
fn sandbox_id(namespace: &str, name: &str) -> SandboxId {
    SandboxId(format!("{namespace}/{name}"))
}
