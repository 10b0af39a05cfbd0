//! Sockets offered to pods: the listeners of each pod and object.
//!
//! Listeners belong to the host program, not to the kernel, and end with it, so they are never journalled. They are
//! derived from objects and sandboxes and requested as a whole, on every change and on resync.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::intent::{IntentSpec, SocketIntent};
use knit_model::problem::{Problem, Reason};
use knit_model::report::{ItemKind, ItemReport};
use knit_model::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::event::Effect;
use crate::state::{ObjectKey, State, StoredObject};
use crate::step::Effects;

/// The kind of objects that offer sockets.
pub const KIND: &str = "PodSocket";

/// The sockets that one object offers to one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketListener {
    /// The pod.
    pub sandbox: Sandbox,
    /// The object.
    pub object: ObjectKey,
    /// The sockets, in the object's order.
    pub sockets: Vec<SocketIntent>,
}

/// The result of starting a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerResult {
    /// The pod.
    pub sandbox: SandboxId,
    /// The object.
    pub object: ObjectKey,
    /// Whether it is listening.
    pub result: Result<(), Problem>,
}

type Key = (SandboxId, ObjectKey);

/// The requested listeners and their results. Not persistent: they are requested again after a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sockets {
    requested: Vec<SocketListener>,
    /// Whether a request is in flight.
    in_progress: bool,
    #[serde(with = "knit_model::serde_pairs")]
    results: BTreeMap<Key, Result<(), Problem>>,
}

impl Sockets {
    /// The problems of an object, without duplicates.
    pub(crate) fn problems_of(&self, object: &ObjectKey) -> impl Iterator<Item = &Problem> {
        let mine = self.results.iter().filter(move |((_, of), _)| of == object);
        mine.filter_map(|(_, result)| result.as_ref().err())
    }

    /// The problem of an object in one pod.
    pub(crate) fn problem(&self, sandbox: &SandboxId, object: &ObjectKey) -> Option<&Problem> {
        self.results.get(&(sandbox.clone(), object.clone())).and_then(|result| result.as_ref().err())
    }
}

impl SocketListener {
    fn key(&self) -> Key {
        (self.sandbox.id.clone(), self.object.clone())
    }

    /// A rejection of this listener.
    pub fn rejected(&self, reason: Reason, message: String) -> ListenerResult {
        let problem = Problem::new("spec.sockets", reason, message);
        self.result(Err(problem))
    }

    /// A result of this listener.
    pub fn result(&self, result: Result<(), Problem>) -> ListenerResult {
        ListenerResult { sandbox: self.sandbox.id.clone(), object: self.object.clone(), result }
    }
}

impl State {
    /// An object's sockets in one pod, in the object's order.
    pub(crate) fn socket_items(&self, stored: &StoredObject, sandbox: &Sandbox) -> Vec<ItemReport> {
        let key = (sandbox.id.clone(), stored.key());
        let is_ready = matches!(self.sockets.results.get(&key), Some(Ok(())));
        let requested = stored.intents.iter().filter_map(|intent| match &intent.spec {
            IntentSpec::Socket(spec) if spec.pods.matches(&stored.object.namespace, sandbox) => {
                Some((&intent.origin.field, &**spec))
            }
            _ => None,
        });
        let item = |(field, spec): (&String, &SocketIntent)| ItemReport {
            field: field.clone(),
            kind: ItemKind::Socket,
            description: format!("{} {}", spec.name, spec.socket),
            links: spec.socket.interface().cloned().into_iter().collect(),
            ready: is_ready,
        };
        requested.map(item).collect()
    }
}

/// All desired listeners. Virtual machines have no network namespace and get none.
fn desired(state: &State) -> Vec<SocketListener> {
    let first = ObjectKey { kind: KIND.to_owned(), namespace: String::new(), name: String::new() };
    let objects = state.objects.range(first..).take_while(|(key, _)| key.kind == KIND);
    let pods = || state.sandboxes.values().filter(|sandbox| sandbox.isolation.is_netns());
    let mut all = Vec::new();
    for (object, stored) in objects {
        for sandbox in pods() {
            let sockets = stored.intents.iter().filter_map(|intent| match &intent.spec {
                IntentSpec::Socket(spec) if spec.pods.matches(&object.namespace, sandbox) => {
                    Some((**spec).clone())
                }
                _ => None,
            });
            let sockets: Vec<SocketIntent> = sockets.collect();
            if !sockets.is_empty() {
                all.push(SocketListener { sandbox: sandbox.clone(), object: object.clone(), sockets });
            }
        }
    }
    all
}

/// Requests the desired listeners if they changed or `force` is set. One request is in flight at a time.
pub(crate) fn reconcile(state: &mut State, force: bool, effects: &mut Effects) {
    if state.sockets.in_progress {
        return;
    }
    let desired = desired(state);
    let is_same = desired == state.sockets.requested;
    if is_same && (desired.is_empty() || !force) {
        return;
    }
    let keys: BTreeSet<Key> = desired.iter().map(SocketListener::key).collect();
    state.sockets.results.retain(|key, _| keys.contains(key));
    state.sockets.requested.clone_from(&desired);
    state.sockets.in_progress = true;
    effects.list.push(Effect::OfferSockets(desired));
}

/// A request finished.
pub(crate) fn on_offered(state: &mut State, offered: Vec<ListenerResult>, effects: &mut Effects) {
    let sockets = &mut state.sockets;
    sockets.in_progress = false;
    let mut changed = BTreeSet::new();
    for ListenerResult { sandbox, object, result } in offered {
        let key = (sandbox, object);
        if sockets.results.get(&key) != Some(&result) {
            changed.insert(key.1.clone());
            sockets.results.insert(key, result);
        }
    }
    effects.changed(changed);
}
