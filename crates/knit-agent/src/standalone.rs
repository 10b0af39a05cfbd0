//! Knit on one machine, without a cluster: objects come from files, pods are network namespaces.
//!
//! A command works on a node in its own process or on that of a running agent ([`NodeAccess`]), with the same requests and responses ([`desk`]).

mod files;
pub mod local_api;
mod node_access;
mod ownership;
mod prepare;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, Record, Revision, State};
use knit_model::sandbox::Isolation;
use knit_model::{Sandbox, SandboxId};

pub(crate) use files::read_files;
pub use files::read_objects;
pub use node_access::{Decision, NodeAccess, ObjectSources};
pub(crate) use prepare::{ManifestInput, Prepared, prepare};

use crate::error::{Error, Result};
use crate::node::{Node, Plans, Repair, now};
use crate::sandboxes;

/// A node whose objects come from files.
pub struct Standalone<H = Node> {
    host: H,
    /// Problems of the state directory.
    pub notes: Vec<String>,
}

/// The outcome of applying or deleting an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectOutcome {
    /// The object.
    pub key: ObjectKey,
    /// What happened to it.
    pub action: Action,
    /// Warnings for its author.
    pub warnings: Vec<String>,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was created.
    Created,
    /// It was changed.
    Configured,
    /// It already had this configuration.
    Unchanged,
    /// It was deleted.
    Deleted,
    /// It did not exist.
    NotFound,
}

impl Standalone {
    /// Opens the node with the state directory `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let (node, notes) = Node::open(folder)?;
        Ok(Self { host: node, notes })
    }

    /// The node's state.
    pub fn state(&self) -> &State {
        self.host.state()
    }

    /// The node, for tests with fault points.
    pub fn node(&mut self) -> &mut Node {
        &mut self.host
    }

    /// An object with its current status.
    pub fn object(&self, key: &ObjectKey) -> Option<Object> {
        with_status(self.state(), key)
    }
}

impl<H: NodeAccess> Standalone<H> {
    /// The node of another owner.
    pub fn of(host: H) -> Self {
        Self { host, notes: Vec::new() }
    }

    /// Adds the namespace of a process as a sandbox.
    pub fn add_sandbox(
        &mut self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<String, String>,
        holder: u32,
    ) -> Result<()> {
        let id = sandbox_id(namespace, name);
        let netns = sandboxes::netns_of(holder);
        let instance = sandboxes::instance_at(Path::new(&netns))?;
        let uid = format!("{}-{}", instance.boot, instance.cookie);
        let (pod, namespace) = (name.to_owned(), namespace.to_owned());
        let isolation = Isolation::Netns;
        let sandbox = Sandbox {
            id,
            instance,
            isolation,
            netns,
            number: holder,
            pod,
            namespace,
            uid,
            labels,
            annotated_limits: None,
        };
        let decide = move |state: &State| {
            let Sandbox { id, pod, namespace, .. } = &sandbox;
            if state.sandboxes.contains_key(id) {
                return Err(Error::SandboxExists { name: pod.clone(), namespace: namespace.clone() });
            }
            Ok(((), event(Event::SandboxUpdated(sandbox))))
        };
        self.host.change(decide)
    }

    /// Changes a sandbox's labels.
    pub fn label_sandbox(
        &mut self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) + Send + 'static,
    ) -> Result<()> {
        let which = (namespace.to_owned(), name.to_owned());
        let decide = move |state: &State| {
            let mut sandbox = find_sandbox(state, &which.0, &which.1)?.clone();
            change(&mut sandbox.labels);
            Ok(((), event(Event::SandboxUpdated(sandbox))))
        };
        self.host.change(decide)
    }

    /// Removes a sandbox's configuration and stops its holder. A process that was added with `--pid` keeps running, in a namespace as it was
    /// before.
    pub fn delete_sandbox(&mut self, namespace: &str, name: &str) -> Result<()> {
        let which = (namespace.to_owned(), name.to_owned());
        // Other processes may keep the namespace alive, so it is cleared before the sandbox is forgotten.
        let clear = move |state: &State| {
            let sandbox = find_sandbox(state, &which.0, &which.1)?.clone();
            let bare = Sandbox { labels: BTreeMap::new(), ..sandbox.clone() };
            Ok((sandbox, event(Event::SandboxUpdated(bare))))
        };
        let sandbox = self.host.change(clear)?;
        sandboxes::stop_holder(sandbox.number, &sandbox.instance)?;
        let forget = move |state: &State| {
            // The sandbox may already be forgotten, and another may have its name.
            let known = state.sandboxes.get(&sandbox.id);
            let is_same = known.is_some_and(|known| known.instance == sandbox.instance);
            let events = if is_same { vec![Event::SandboxRemoved(sandbox.id)] } else { Vec::new() };
            Ok(((), Decision { record: None, events }))
        };
        self.host.change(forget)
    }

    /// A sandbox by its pod's name.
    pub fn sandbox(&mut self, namespace: &str, name: &str) -> Result<Sandbox> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.host.query(move |node| find_sandbox(node.state(), &namespace, &name).cloned())
    }

    /// Applies objects. All of them are validated before the first change.
    pub fn apply(&mut self, objects: Vec<Object>, what: &str) -> Result<Vec<ObjectOutcome>> {
        let (what, sources) = (what.to_owned(), self.host.object_sources());
        let decide = move |state: &State| {
            let Prepared { changes, events, before } = prepare(state, by_hand(objects))?;
            ownership::check_apply(state, &changes, sources)?;
            Ok((changes, Decision { record: revision(what, before), events }))
        };
        self.host.change(decide)
    }

    /// The plans of applying the objects, including repairs.
    pub fn plan(&mut self, objects: Vec<Object>) -> Result<(Vec<ObjectOutcome>, Plans)> {
        let sources = self.host.object_sources();
        self.host.query_idle(move |node| {
            let Prepared { changes, events, .. } = prepare(node.state(), by_hand(objects))?;
            ownership::check_apply(node.state(), &changes, sources)?;
            Ok((changes, dry_run(node, events)?))
        })
    }

    /// The plans of deleting the objects, including repairs.
    pub fn plan_delete(&mut self, keys: &[ObjectKey]) -> Result<Plans> {
        let (keys, sources) = (keys.to_vec(), self.host.object_sources());
        self.host.query_idle(move |node| {
            ownership::check_delete(node.state(), &keys, sources)?;
            dry_run(node, keys.into_iter().map(Event::ObjectDeleted).collect())
        })
    }

    /// The drift between the kernel and the desired configuration.
    pub fn differences(&mut self) -> Result<Plans> {
        self.host.query_idle(|node| dry_run(node, Vec::new()))
    }

    /// Deletes objects.
    pub fn delete(&mut self, keys: &[ObjectKey], what: &str) -> Result<Vec<ObjectOutcome>> {
        let (keys, what, sources) = (keys.to_vec(), what.to_owned(), self.host.object_sources());
        let decide = move |state: &State| {
            ownership::check_delete(state, &keys, sources)?;
            let existing: BTreeSet<&ObjectKey> =
                keys.iter().filter(|key| state.objects.contains_key(*key)).collect();
            let before =
                existing.iter().map(|key| ((*key).clone(), state.objects.get(*key).cloned().map(Box::new)));
            let before = before.collect();
            let action =
                |key: &ObjectKey| if existing.contains(key) { Action::Deleted } else { Action::NotFound };
            let changes = keys
                .iter()
                .map(|key| ObjectOutcome { key: key.clone(), action: action(key), warnings: Vec::new() })
                .collect();
            let events = keys.iter().cloned().map(Event::ObjectDeleted).collect();
            Ok((changes, Decision { record: revision(what, before), events }))
        };
        self.host.change(decide)
    }

    /// Undoes the last change of objects. Returns its description and the outcome for each object. Objects that a watched directory has taken
    /// over stay.
    pub fn undo(&mut self) -> Result<(String, Vec<ObjectOutcome>)> {
        let sources = self.host.object_sources();
        let decide = move |state: &State| {
            let revision = state.revisions.last().cloned().ok_or(Error::NothingToUndo)?;
            let (mut changes, mut events) = (Vec::new(), Vec::new());
            for (key, before) in revision.before.into_iter().rev() {
                if let Some(why) = ownership::kept_on_undo(state, &key, sources) {
                    changes.push(ObjectOutcome { key, action: Action::Unchanged, warnings: vec![why] });
                    continue;
                }
                let action = if before.is_some() { Action::Configured } else { Action::Deleted };
                changes.push(ObjectOutcome { key: key.clone(), action, warnings: Vec::new() });
                events.push(match before {
                    Some(object) => Event::ObjectApplied(*object),
                    None => Event::ObjectDeleted(key),
                });
            }
            Ok(((revision.what, changes), Decision { record: Some(Record::RevisionUndone), events }))
        };
        self.host.change(decide)
    }

    /// Compares everything with the kernel, repairs drift and removes strays.
    pub fn repair(&mut self) -> Result<Vec<Repair>> {
        self.host.repair()
    }
}

/// The plans of a dry run. Each compares with the current kernel, so only the last one of a unit counts.
fn dry_run(node: &mut Node, events: Vec<Event>) -> Result<Plans> {
    let (_, outcome) = node.dry_run(std::iter::once(Event::Resync).chain(events))?;
    let mut plans = Plans::new();
    for (unit, plan) in outcome.plans {
        plans.retain(|(other, _)| *other != unit);
        plans.push((unit, plan));
    }
    plans.retain(|(_, plan)| !plan.is_empty());
    Ok(plans)
}

/// An object with its current status.
fn with_status(state: &State, key: &ObjectKey) -> Option<Object> {
    let stored = state.objects.get(key)?;
    let mut object = Object::from_manifest(&stored.manifest)?;
    let report = state.report(key)?;
    object.update_status(&report, jiff::Timestamp::now());
    Some(object)
}

fn by_hand(objects: Vec<Object>) -> Vec<ManifestInput> {
    objects.into_iter().map(|object| ManifestInput { object, file: None }).collect()
}

/// The record that allows to undo a change; `None` if nothing changes.
fn revision(what: String, before: prepare::Before) -> Option<Record> {
    (!before.is_empty()).then(|| Record::Revision(Revision { what, at: now(), before }))
}

fn event(event: Event) -> Decision {
    Decision { record: None, events: vec![event] }
}

/// A sandbox of `knit sandbox add`. Those of API calls belong to their callers.
fn find_sandbox<'a>(state: &'a State, namespace: &str, name: &str) -> Result<&'a Sandbox> {
    let sandbox = find_any(state, namespace, name)?;
    if sandbox.id == sandbox_id(namespace, name) {
        return Ok(sandbox);
    }
    let id = sandbox.id.to_string();
    Err(Error::OwnedByCall { name: name.to_owned(), namespace: namespace.to_owned(), id })
}

/// A sandbox by its pod's name, of any origin.
fn find_any<'a>(state: &'a State, namespace: &str, name: &str) -> Result<&'a Sandbox> {
    let is_same = |sandbox: &&Sandbox| sandbox.pod == name && sandbox.namespace == namespace;
    let standalone_sandbox = state.sandboxes.get(&sandbox_id(namespace, name));
    let found = standalone_sandbox.or_else(|| state.sandboxes.values().find(is_same));
    found.ok_or_else(|| Error::NoSandbox { name: name.to_owned(), namespace: namespace.to_owned() })
}

/// The id of a standalone sandbox is derived from its pod's name: no runtime assigns one.
fn sandbox_id(namespace: &str, name: &str) -> SandboxId {
    SandboxId(format!("{namespace}/{name}"))
}
