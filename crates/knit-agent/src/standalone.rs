//! Knit on one machine, without a cluster: objects come from files, pods are network namespaces.
//!
//! A command works on a node in its own process, or on that of an agent that runs ([`Host`]). What is asked for and answered
//! is the same ([`desk`]).

pub mod desk;
mod files;
mod host;
mod prepare;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use knit_crds::Object;
use knit_engine::{Event, ObjectKey, Record, Revision, State};
use knit_kernel::Netns;
use knit_model::sandbox::Isolation;
use knit_model::{Sandbox, SandboxId};

pub(crate) use files::read_files;
pub use files::read_objects;
pub use host::{Decision, Host, Others};
pub(crate) use prepare::{Asked, Prepared, prepare};

use crate::error::{Error, Result};
use crate::node::{Node, Plans, Repair, now};
use crate::sandboxes;

/// A node whose objects come from files.
pub struct Standalone<H = Node> {
    host: H,
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
        Ok(Self { host: node, notes })
    }

    /// What the node knows.
    pub fn state(&self) -> &State {
        self.host.state()
    }

    /// The node, for tests that let something go wrong.
    pub fn node(&mut self) -> &mut Node {
        &mut self.host
    }

    /// An object with the status that follows from what became of it.
    pub fn object(&self, key: &ObjectKey) -> Option<Object> {
        with_status(self.state(), key)
    }
}

impl<H: Host> Standalone<H> {
    /// The node that someone else has.
    pub fn of(host: H) -> Self {
        Self { host, notes: Vec::new() }
    }

    /// Adds a sandbox: the namespace of a process.
    pub fn add_sandbox(
        &mut self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<String, String>,
        holder: u32,
    ) -> Result<()> {
        let id = sandbox_id(namespace, name);
        let netns = sandboxes::netns_of(holder);
        let handle = Netns::open_sandbox(Path::new(&netns), &Netns::current()?)?;
        let instance = sandboxes::instance_of(&handle)?;
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
            annotated: None,
        };
        let decide = move |state: &State| {
            let Sandbox { id, pod, namespace, .. } = &sandbox;
            if state.sandboxes.contains_key(id) {
                return Err(Error::SandboxExists { name: pod.clone(), namespace: namespace.clone() });
            }
            Ok(((), event(Event::SandboxSeen(sandbox))))
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
            Ok(((), event(Event::SandboxSeen(sandbox))))
        };
        self.host.change(decide)
    }

    /// Takes everything of a sandbox back, and ends its holder. A process that was added with its namespace goes on, in
    /// a namespace as it was before.
    pub fn delete_sandbox(&mut self, namespace: &str, name: &str) -> Result<()> {
        let which = (namespace.to_owned(), name.to_owned());
        // The namespace may outlive the holder: other processes may be inside. So it is cleared before it is let go.
        let clear = move |state: &State| {
            let sandbox = find_sandbox(state, &which.0, &which.1)?.clone();
            let bare = Sandbox { labels: BTreeMap::new(), ..sandbox.clone() };
            Ok((sandbox, event(Event::SandboxSeen(bare))))
        };
        let sandbox = self.host.change(clear)?;
        sandboxes::stop_holder(sandbox.number, &sandbox.instance)?;
        let forget = move |state: &State| {
            // Someone may have found out already that it is gone, and another may have come under its name.
            let known = state.sandboxes.get(&sandbox.id);
            let is_it = known.is_some_and(|known| known.instance == sandbox.instance);
            let events = if is_it { vec![Event::SandboxGone(sandbox.id)] } else { Vec::new() };
            Ok(((), Decision { record: None, events }))
        };
        self.host.change(forget)
    }

    /// A sandbox by its pod's name.
    pub fn sandbox(&mut self, namespace: &str, name: &str) -> Result<Sandbox> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.host.ask(move |node| find_sandbox(node.state(), &namespace, &name).cloned())
    }

    /// Applies objects. All of them are checked before the first one changes anything.
    pub fn apply(&mut self, objects: Vec<Object>, what: &str) -> Result<Vec<Change>> {
        let (what, others) = (what.to_owned(), self.host.others());
        let decide = move |state: &State| {
            let Prepared { changes, events, before } = prepare(state, by_hand(objects))?;
            rules::may_apply(state, &changes, others)?;
            Ok((changes, Decision { record: revision(what, before), events }))
        };
        let changes = self.host.change(decide)?;
        self.retry_waiting()?;
        Ok(changes)
    }

    /// What applying the objects would change, with what has to be repaired.
    pub fn plan(&mut self, objects: Vec<Object>) -> Result<(Vec<Change>, Plans)> {
        let others = self.host.others();
        self.host.ask_at_rest(move |node| {
            let Prepared { changes, events, .. } = prepare(node.state(), by_hand(objects))?;
            rules::may_apply(node.state(), &changes, others)?;
            Ok((changes, rehearse(node, events)?))
        })
    }

    /// What deleting the objects would change, with what has to be repaired.
    pub fn plan_delete(&mut self, keys: &[ObjectKey]) -> Result<Plans> {
        let (keys, others) = (keys.to_vec(), self.host.others());
        self.host.ask_at_rest(move |node| {
            rules::may_delete(node.state(), &keys, others)?;
            rehearse(node, keys.into_iter().map(Event::ObjectDeleted).collect())
        })
    }

    /// What is not in the kernel as it was asked for.
    pub fn differences(&mut self) -> Result<Plans> {
        self.host.ask_at_rest(|node| rehearse(node, Vec::new()))
    }

    /// Deletes objects.
    pub fn delete(&mut self, keys: &[ObjectKey], what: &str) -> Result<Vec<Change>> {
        let (keys, what, others) = (keys.to_vec(), what.to_owned(), self.host.others());
        let decide = move |state: &State| {
            rules::may_delete(state, &keys, others)?;
            let there: BTreeSet<&ObjectKey> =
                keys.iter().filter(|key| state.objects.contains_key(*key)).collect();
            let before =
                there.iter().map(|key| ((*key).clone(), state.objects.get(*key).cloned().map(Box::new)));
            let before = before.collect();
            let verb = |key: &ObjectKey| if there.contains(key) { Verb::Deleted } else { Verb::NotFound };
            let changes = keys
                .iter()
                .map(|key| Change { key: key.clone(), verb: verb(key), warnings: Vec::new() })
                .collect();
            let events = keys.iter().cloned().map(Event::ObjectDeleted).collect();
            Ok((changes, Decision { record: revision(what, before), events }))
        };
        let changes = self.host.change(decide)?;
        self.retry_waiting()?;
        Ok(changes)
    }

    /// Takes the newest change of objects back. Returns what it was, and what became of each object. What a watched folder
    /// has by now stays as the folder says.
    pub fn undo(&mut self) -> Result<(String, Vec<Change>)> {
        let others = self.host.others();
        let decide = move |state: &State| {
            let revision = state.revisions.last().cloned().ok_or(Error::NothingToUndo)?;
            let (mut changes, mut events) = (Vec::new(), Vec::new());
            for (key, before) in revision.before.into_iter().rev() {
                if let Some(why) = rules::stays(state, &key, others) {
                    changes.push(Change { key, verb: Verb::Unchanged, warnings: vec![why] });
                    continue;
                }
                let verb = if before.is_some() { Verb::Configured } else { Verb::Deleted };
                changes.push(Change { key: key.clone(), verb, warnings: Vec::new() });
                events.push(match before {
                    Some(object) => Event::ObjectApplied(*object),
                    None => Event::ObjectDeleted(key),
                });
            }
            Ok(((revision.what, changes), Decision { record: Some(Record::Undone), events }))
        };
        let undone = self.host.change(decide)?;
        self.retry_waiting()?;
        Ok(undone)
    }

    /// Compares everything with the kernel, repairs what differs, and removes what has Knit's mark and no unit knows.
    pub fn repair(&mut self) -> Result<Vec<Repair>> {
        self.host.repair()
    }

    /// What waits for something that another object may just have brought.
    fn retry_waiting(&mut self) -> Result<()> {
        if self.host.ask(|node| Ok(node.state().problems.is_empty()))? {
            return Ok(());
        }
        self.host.change(|_| Ok(((), event(Event::Resync))))
    }
}

/// The plans that would be carried out. Each is a comparison with the kernel as it is, so the last of a unit counts.
fn rehearse(node: &mut Node, events: Vec<Event>) -> Result<Plans> {
    let (_, outcome) = node.rehearse(std::iter::once(Event::Resync).chain(events))?;
    let mut plans = Plans::new();
    for (unit, plan) in outcome.plans {
        plans.retain(|(other, _)| *other != unit);
        plans.push((unit, plan));
    }
    plans.retain(|(_, plan)| !plan.is_empty());
    Ok(plans)
}

/// An object with the status that follows from what became of it.
fn with_status(state: &State, key: &ObjectKey) -> Option<Object> {
    let stored = state.objects.get(key)?;
    let mut object = Object::from_manifest(&stored.manifest)?;
    let report = state.report(key)?;
    object.update_status(&report, jiff::Timestamp::now());
    Some(object)
}

fn by_hand(objects: Vec<Object>) -> Vec<Asked> {
    objects.into_iter().map(|object| Asked { object, file: None }).collect()
}

/// How a change is taken back; nothing if it changes nothing.
fn revision(what: String, before: prepare::Before) -> Option<Record> {
    (!before.is_empty()).then(|| Record::Revision(Revision { what, at: now(), before }))
}

fn event(event: Event) -> Decision {
    Decision { record: None, events: vec![event] }
}

/// A sandbox that `knit sandbox add` made. Those of calls are their callers'.
fn find_sandbox<'a>(state: &'a State, namespace: &str, name: &str) -> Result<&'a Sandbox> {
    let sandbox = find_any(state, namespace, name)?;
    if sandbox.id == sandbox_id(namespace, name) {
        return Ok(sandbox);
    }
    let id = sandbox.id.to_string();
    Err(Error::Called { name: name.to_owned(), namespace: namespace.to_owned(), id })
}

/// A sandbox by its pod's name, whoever made it.
fn find_any<'a>(state: &'a State, namespace: &str, name: &str) -> Result<&'a Sandbox> {
    let is_it = |sandbox: &&Sandbox| sandbox.pod == name && sandbox.namespace == namespace;
    let made_here = state.sandboxes.get(&sandbox_id(namespace, name));
    let found = made_here.or_else(|| state.sandboxes.values().find(is_it));
    found.ok_or_else(|| Error::NoSandbox { name: name.to_owned(), namespace: namespace.to_owned() })
}

/// A standalone sandbox's id is its pod's name: there is no runtime that gives one.
fn sandbox_id(namespace: &str, name: &str) -> SandboxId {
    SandboxId(format!("{namespace}/{name}"))
}
