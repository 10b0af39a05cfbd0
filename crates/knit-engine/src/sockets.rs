//! Sockets that pods may ask for: who listens in which pod, for which object.
//!
//! What is offered is not part of a sandbox's unit: a listener is the host program's, not the kernel's, and ends with it.
//! So it is never written down. It follows from objects and sandboxes, and is asked for as a whole whenever it is another,
//! and again whenever everything is compared.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::intent::{IntentSpec, SocketIntent};
use knit_model::problem::{Problem, Reason};
use knit_model::report::ItemReport;
use knit_model::{Sandbox, SandboxId};

use crate::event::Effect;
use crate::state::{ObjectKey, State, StoredObject};
use crate::step::Effects;

/// The kind whose objects ask for sockets.
pub const KIND: &str = "PodSocket";

/// What one object offers to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The pod.
    pub sandbox: Sandbox,
    /// The object.
    pub object: ObjectKey,
    /// The sockets, in the object's order.
    pub sockets: Vec<SocketIntent>,
}

/// What became of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The pod.
    pub sandbox: SandboxId,
    /// The object.
    pub object: ObjectKey,
    /// Whether it listens.
    pub result: Result<(), Problem>,
}

type Key = (SandboxId, ObjectKey);

/// What the host was asked to offer, and what became of it. Not remembered: it is asked again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sockets {
    asked: Vec<Listener>,
    /// Whether the host works on what was asked.
    under_way: bool,
    stands: BTreeMap<Key, Result<(), Problem>>,
}

impl Sockets {
    /// What stands in the way of an object, each once.
    pub(crate) fn problems_of(&self, object: &ObjectKey) -> impl Iterator<Item = &Problem> {
        let mine = self.stands.iter().filter(move |((_, of), _)| of == object);
        mine.filter_map(|(_, result)| result.as_ref().err())
    }

    /// What stands in the way of an object in one pod.
    pub(crate) fn problem(&self, sandbox: &SandboxId, object: &ObjectKey) -> Option<&Problem> {
        self.stands.get(&(sandbox.clone(), object.clone())).and_then(|result| result.as_ref().err())
    }
}

impl Listener {
    fn key(&self) -> Key {
        (self.sandbox.id.clone(), self.object.clone())
    }

    /// That this one is refused, in words.
    pub fn refused(&self, reason: Reason, message: String) -> Offered {
        let problem = Problem { field: "spec.sockets".to_owned(), reason, message };
        self.answer(Err(problem))
    }

    /// What became of it.
    pub fn answer(&self, result: Result<(), Problem>) -> Offered {
        Offered { sandbox: self.sandbox.id.clone(), object: self.object.clone(), result }
    }
}

impl State {
    /// An object's sockets in one pod, in the object's order.
    pub(crate) fn socket_items(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<ItemReport> {
        let key = (sandbox.id.clone(), stored.key());
        let stands = matches!(self.sockets.stands.get(&key), Some(Ok(())));
        let asked = stored.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Socket(want) if want.pods.matches(&stored.object.namespace, sandbox) => {
                Some((&intent.origin.field, &**want))
            }
            _ => None,
        });
        let item = |(field, want): (&String, &SocketIntent)| ItemReport {
            field: field.clone(),
            what: format!("socket {} {}", want.name, want.socket),
            links: want.socket.interface().cloned().into_iter().collect(),
            ready: stands,
        };
        asked.map(item).collect()
    }
}

/// All that objects offer. A virtual machine has its own network, and its unit says so.
fn wanted(state: &State) -> Vec<Listener> {
    let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
    let objects = state.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
    let pods = || state.sandboxes.values().filter(|sandbox| sandbox.isolation.is_netns());
    let mut all = Vec::new();
    for (object, stored) in objects {
        for sandbox in pods() {
            let sockets = stored.intents.iter().filter_map(|intent| match &intent.spec {
                IntentSpec::Socket(want) if want.pods.matches(&object.namespace, sandbox) => {
                    Some((**want).clone())
                }
                _ => None,
            });
            let sockets: Vec<SocketIntent> = sockets.collect();
            if !sockets.is_empty() {
                all.push(Listener { sandbox: sandbox.clone(), object: object.clone(), sockets });
            }
        }
    }
    all
}

/// Asks the host for what is wanted, if that is another than before or is to be asked for again. There is one change at a
/// time; what changed meanwhile follows.
pub(crate) fn keep(state: &mut State, again: bool, effects: &mut Effects) {
    if state.sockets.under_way {
        return;
    }
    let wanted = wanted(state);
    let is_same = wanted == state.sockets.asked;
    if is_same && (wanted.is_empty() || !again) {
        return;
    }
    let keys: BTreeSet<Key> = wanted.iter().map(Listener::key).collect();
    state.sockets.stands.retain(|key, _| keys.contains(key));
    state.sockets.asked.clone_from(&wanted);
    state.sockets.under_way = true;
    effects.list.push(Effect::Offer(wanted));
}

/// The host has done what it was asked.
pub(crate) fn heard(state: &mut State, offered: Vec<Offered>, effects: &mut Effects) {
    let sockets = &mut state.sockets;
    sockets.under_way = false;
    let mut changed = BTreeSet::new();
    for Offered { sandbox, object, result } in offered {
        let key = (sandbox, object);
        if sockets.stands.get(&key) != Some(&result) {
            changed.insert(key.1.clone());
            sockets.stands.insert(key, result);
        }
    }
    effects.changed(changed);
}
