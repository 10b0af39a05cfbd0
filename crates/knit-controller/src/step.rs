//! One event in, effects out.
//!
//! News only say which objects have to be looked at. [`Event::Look`] looks at them: what each should have is compared with
//! what it has, and the difference is the effect. So the same news twice, or in another order, end in the same.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use knit_crds::Object;
use knit_crds::kinds::UsedCounts;
use knit_crds::states::{AppliedObject, NodeNetworkStatus, PodNetworkStateStatus};
use knit_crds::status::READY;
use knit_engine::ObjectKey;
use knit_kube::{Seen, Severity};
use knit_model::provenance::ObjectRef;
use knit_model::quota::Counts;
use serde_json::Value;

use crate::blocks;
use crate::known::{HeldBlock, Known, Name, State};
use crate::labels::{self, Labels};
use crate::rollup::{RollUp, roll_up};
use crate::sample;

/// Agents have this long to say something about a new generation before its status says that it waits for them.
const EARLY: i64 = 1_000;
/// An agent that is away has this long before an object goes without its word. It finds out when it is back.
const LONGEST_FAREWELL: i64 = 30_000;

/// What was listed before anything is decided, beside all kinds.
const PODS: &str = "PodNetworkState";
const NODES: &str = "NodeNetwork";
const ALIVE: &str = "Node";
const SAMPLES: &str = "Deployment";
const BLOCKS: &str = "PodAddressBlock";
/// What every node says whether it has.
const UPLINKS: &str = "Uplink";

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// News of the objects of a kind.
    Objects(&'static str, Box<Seen<Object>>),
    /// News of what agents say about pods.
    Pods(Seen<(Name, PodNetworkStateStatus)>),
    /// News of what agents say about nodes.
    Nodes(Seen<(String, NodeNetworkStatus)>),
    /// News of nodes, each with those of its labels that are Knit's.
    Alive(Seen<(String, Labels)>),
    /// News of sample Deployments, each with the PodConfig that it belongs to.
    Samples(Seen<(Name, String)>),
    /// News of blocks of addresses, by name.
    Blocks(Seen<(String, HeldBlock)>),
    /// Something about this object could not be written.
    Failed(ObjectKey),
    /// Labels of this node could not be written.
    Unlabelled(String),
    /// Everything that waits is to be looked at.
    Look,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Give an object this status.
    WriteStatus(ObjectKey, Value),
    /// Give an object these finalizers, unless it has changed since.
    SetFinalizers {
        /// The object.
        key: ObjectKey,
        /// All of them.
        finalizers: Vec<String>,
        /// The version that this is about.
        version: String,
    },
    /// Make the sample Deployment of a PodConfig.
    MakeSample {
        /// The PodConfig.
        key: ObjectKey,
        /// The Deployment.
        name: String,
    },
    /// Delete a sample Deployment that its PodConfig does not ask for any more.
    DeleteSample(ObjectKey, Name),
    /// Give a node these labels, and take away those without a value.
    LabelNode {
        /// The node.
        node: String,
        /// The labels that differ.
        labels: BTreeMap<String, Option<String>>,
    },
    /// Delete what was said about a node that is gone.
    DeleteNodeState(String),
    /// Delete a block of a node that is gone.
    DeleteBlock {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Take back what nodes that are gone have claimed of a quota, unless it has changed since.
    DropClaims {
        /// The quota.
        key: ObjectKey,
        /// The nodes.
        nodes: Vec<String>,
        /// What is used without them.
        used: UsedCounts,
        /// The version that this is about.
        version: String,
    },
    /// Say something about an object.
    Tell {
        /// The object.
        object: ObjectRef,
        /// How bad it is.
        severity: Severity,
        /// One stable word.
        reason: String,
        /// A sentence.
        note: String,
    },
}

/// Hears an event and says what is to be done. `now` is in milliseconds.
pub fn step(state: &mut State, event: Event, now: i64) -> Vec<Effect> {
    match event {
        Event::Objects(kind, seen) => hear_objects(state, kind, *seen, now),
        Event::Pods(seen) => hear_pods(state, seen),
        Event::Nodes(seen) => hear_nodes(state, seen),
        Event::Alive(seen) => hear_alive(state, seen),
        Event::Samples(seen) => hear_samples(state, seen),
        Event::Blocks(seen) => {
            blocks::hear(state, seen);
            state.listed.insert(BLOCKS.to_owned());
        }
        Event::Failed(key) => {
            // What it has is not known any more.
            if let Some(known) = state.objects.get_mut(&key) {
                known.object.forget_status();
                known.asked = None;
            }
            state.dirty.insert(key);
        }
        // What it has is not known any more: the same labels once more do no harm.
        Event::Unlabelled(node) => {
            state.alive.entry(node.clone()).and_modify(Labels::clear);
            state.unlabelled.insert(node);
        }
        Event::Look => return look(state, now),
    }
    Vec::new()
}

fn hear_objects(state: &mut State, kind: &'static str, seen: Seen<Object>, now: i64) {
    if kind == UPLINKS {
        state.unlabelled.extend(state.alive.keys().cloned());
    }
    match seen {
        Seen::Listed(objects) => {
            let there: Vec<ObjectKey> =
                objects.iter().map(|object| ObjectKey::of(&object.object_ref())).collect();
            state.objects.retain(|key, _| key.kind != kind || there.contains(key));
            state.listed.insert(kind.to_owned());
            objects.into_iter().for_each(|object| know(state, object, now));
        }
        Seen::Applied(object) => know(state, object, now),
        Seen::Deleted(object) => {
            state.objects.remove(&ObjectKey::of(&object.object_ref()));
        }
    }
}

fn know(state: &mut State, object: Object, now: i64) {
    let me = object.object_ref();
    let key = ObjectKey::of(&me);
    let old = state.objects.get(&key).filter(|old| old.object.object_ref().uid == me.uid);
    let same = old.filter(|old| old.object.object_ref().generation == me.generation);
    let is_going = object.metadata().deletion_timestamp.is_some();
    let known = Known {
        since: same.map_or(now, |old| old.since),
        going_since: is_going.then(|| old.and_then(|old| old.going_since).unwrap_or(now)),
        asked: old.and_then(|old| old.asked.clone()),
        object,
    };
    state.objects.insert(key.clone(), known);
    state.dirty.insert(key);
}

fn hear_pods(state: &mut State, seen: Seen<(Name, PodNetworkStateStatus)>) {
    let mut put = |name: Name, new: Option<PodNetworkStateStatus>| {
        let old = match new.clone() {
            Some(new) => state.pods.insert(name, new),
            None => state.pods.remove(&name),
        };
        let objects = old.into_iter().chain(new).flat_map(|pod| pod.objects);
        state.dirty.extend(objects.map(|object| key_of(&object)));
    };
    match seen {
        Seen::Applied((name, pod)) => put(name, Some(pod)),
        Seen::Deleted((name, _)) => put(name, None),
        Seen::Listed(pods) => {
            state.pods = pods.into_iter().collect();
            list(state, PODS);
        }
    }
}

fn hear_nodes(state: &mut State, seen: Seen<(String, NodeNetworkStatus)>) {
    let mut put = |name: String, new: Option<NodeNetworkStatus>| {
        state.unlabelled.insert(name.clone());
        let old = match new.clone() {
            Some(new) => state.nodes.insert(name, new),
            None => state.nodes.remove(&name),
        };
        let objects = old.into_iter().chain(new).flat_map(|node| node.objects);
        state.dirty.extend(objects.map(|object| key_of(&object)));
    };
    match seen {
        Seen::Applied((name, node)) => put(name, Some(node)),
        Seen::Deleted((name, _)) => put(name, None),
        Seen::Listed(nodes) => {
            state.nodes = nodes.into_iter().collect();
            state.unlabelled.extend(state.alive.keys().cloned());
            list(state, NODES);
        }
    }
}

fn hear_alive(state: &mut State, seen: Seen<(String, Labels)>) {
    match seen {
        Seen::Applied((name, labels)) => {
            let before = state.alive.insert(name.clone(), labels);
            // A node's heartbeat is no news.
            if before.as_ref() == state.alive.get(&name) {
                return;
            }
            state.unlabelled.insert(name);
            if before.is_some() {
                return;
            }
        }
        Seen::Deleted((name, _)) => {
            state.alive.remove(&name);
        }
        Seen::Listed(nodes) => {
            state.alive = nodes.into_iter().collect();
            state.unlabelled.extend(state.alive.keys().cloned());
        }
    }
    list(state, ALIVE);
}

fn hear_samples(state: &mut State, seen: Seen<(Name, String)>) {
    let (names, of): (Vec<Name>, Vec<String>) = match seen {
        Seen::Applied((name, of)) => {
            state.samples.insert(name.clone(), of.clone());
            (vec![name], vec![of])
        }
        Seen::Deleted((name, of)) => {
            state.samples.remove(&name);
            (vec![name], vec![of])
        }
        Seen::Listed(samples) => {
            state.samples = samples.into_iter().collect();
            return list(state, SAMPLES);
        }
    };
    for ((namespace, _), name) in names.into_iter().zip(of) {
        state.dirty.insert(ObjectKey { kind: "PodConfig".to_owned(), namespace, name });
    }
}

/// A list may tell of anything.
fn list(state: &mut State, what: &str) {
    state.listed.insert(what.to_owned());
    state.dirty.extend(state.objects.keys().cloned());
}

fn key_of(object: &AppliedObject) -> ObjectKey {
    let AppliedObject { kind, namespace, name, .. } = object;
    ObjectKey { kind: kind.clone(), namespace: namespace.clone(), name: name.clone() }
}

impl State {
    /// What was not listed yet. Before all of it was, nothing is decided.
    pub fn missing(&self) -> BTreeSet<String> {
        let others = [PODS, NODES, ALIVE, SAMPLES, BLOCKS].into_iter();
        let needed = Object::kinds().iter().map(|kind| kind.kind.as_str()).chain(others);
        needed.filter(|what| !self.listed.contains(*what)).map(str::to_owned).collect()
    }
}

fn look(state: &mut State, now: i64) -> Vec<Effect> {
    if !state.missing().is_empty() {
        return Vec::new();
    }
    let mut effects = Vec::new();
    for key in std::mem::take(&mut state.dirty) {
        look_at(state, &key, now, &mut effects);
    }
    let gone = state.nodes.keys().filter(|name| !state.alive.contains_key(*name));
    effects.extend(gone.map(|name| Effect::DeleteNodeState(name.clone())));
    effects.extend(blocks::of_gone_nodes(state, now));
    effects.extend(labels::differences(state));
    effects
}

fn look_at(state: &mut State, key: &ObjectKey, now: i64, effects: &mut Vec<Effect>) {
    let Some(known) = state.objects.get(key) else { return };
    if let Some(since) = known.going_since {
        let is_used = state.in_pods(key).next().is_some() || state.on_nodes(key).next().is_some();
        let is_late = now - since >= LONGEST_FAREWELL;
        if is_used && !is_late {
            state.dirty.insert(key.clone());
            return;
        }
        if is_used {
            let note =
                "some agent did not answer in time: it takes back what it has when it is back".to_owned();
            effects.push(tell(&known.object, Severity::Warning, "AgentAway", note));
        }
        effects.extend(finalizers(state, key, false));
        return;
    }
    effects.extend(finalizers(state, key, true));
    let Some(known) = state.objects.get(key) else { return };
    samples(state, key, &known.object, effects);
    effects.extend(drop_claims(state, key, &known.object));
    let RollUp { report, is_early } = roll_up(state, key, &known.object);
    if is_early && now - known.since < EARLY {
        state.dirty.insert(key.clone());
        return;
    }
    let time = Timestamp::from_millisecond(now).unwrap_or_default();
    let Some(known) = state.objects.get_mut(key) else { return };
    let before = condition(&known.object);
    if !known.object.update_status(&report, time) {
        return;
    }
    let mut status = known.object.to_value()["status"].clone();
    if let (Object::NetworkQuota(_), Some(fields)) = (&known.object, status.as_object_mut()) {
        // These are the agents' to write.
        fields.retain(|field, _| field != "claims" && field != "used");
    }
    effects.push(Effect::WriteStatus(key.clone(), status));
    let after = condition(&known.object);
    // How many pods it is by now is in the status; what is in the way, and that nothing is any more, is told.
    let is_told = |after: &(String, String, String)| {
        before.as_ref().is_some_and(|before| before == after || (after.0 == "True" && before.0 == "True"))
    };
    if let Some((status, reason, note)) = after.filter(|after| !is_told(after)) {
        // Nobody asks to be told that nothing has begun.
        let severity = match (status.as_str(), reason.as_str()) {
            ("True", _) => Severity::Normal,
            (_, "NoPods" | "Unset" | "Configuring") => return,
            _ => Severity::Warning,
        };
        effects.push(tell(&known.object, severity, &reason, note));
    }
}

/// A node that is gone uses nothing any more.
fn drop_claims(state: &State, key: &ObjectKey, object: &Object) -> Option<Effect> {
    let Object::NetworkQuota(quota) = object else { return None };
    let claims = &quota.status.as_ref()?.claims;
    let (alive, gone): (Vec<_>, Vec<_>) =
        claims.iter().partition(|(node, _)| state.alive.contains_key(*node));
    if gone.is_empty() {
        return None;
    }
    let used = alive.into_iter().fold(Counts::default(), |all, (_, one)| all + Counts::from(*one));
    Some(Effect::DropClaims {
        key: key.clone(),
        nodes: gone.into_iter().map(|(node, _)| node.clone()).collect(),
        used: used.into(),
        version: quota.metadata.resource_version.clone().unwrap_or_default(),
    })
}

fn condition(object: &Object) -> Option<(String, String, String)> {
    let ready = object.overview()?.condition(READY)?;
    Some((ready.status.clone(), ready.reason.clone(), ready.message.clone()))
}

fn tell(object: &Object, severity: Severity, reason: &str, note: String) -> Effect {
    Effect::Tell { object: object.object_ref(), severity, reason: reason.to_owned(), note }
}

/// The finalizer of a kind, if it has one.
pub fn finalizer(kind: &str) -> Option<&'static str> {
    match kind {
        "PodNetworkConfig" | "Bridge" => Some("podnetworkconfig.finalizers.opdev.io"),
        "PodConfig" => Some("podconfig.finalizers.opdev.io"),
        _ => None,
    }
}

/// Has the object carry its kind's finalizer, or not.
fn finalizers(state: &mut State, key: &ObjectKey, wanted: bool) -> Option<Effect> {
    let mine = finalizer(&key.kind)?;
    let known = state.objects.get_mut(key)?;
    let metadata = known.object.metadata();
    let mut finalizers = metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|one| one == mine) == wanted {
        return None;
    }
    if wanted {
        finalizers.push(mine.to_owned());
    } else {
        finalizers.retain(|one| one != mine);
    }
    let version = metadata.resource_version.clone().unwrap_or_default();
    if known.asked.replace(version.clone()).as_ref() == Some(&version) {
        return None;
    }
    Some(Effect::SetFinalizers { key: key.clone(), finalizers, version })
}

/// Has a PodConfig have exactly the Deployment that it asks for.
fn samples(state: &State, key: &ObjectKey, object: &Object, effects: &mut Vec<Effect>) {
    if key.kind != "PodConfig" {
        return;
    }
    let wanted = sample::wanted(object);
    let mine = |(name, of): &(&Name, &String)| name.0 == key.namespace && **of == key.name;
    let surplus = state.samples.iter().filter(mine).filter(|(name, _)| Some(&name.1) != wanted.as_ref());
    effects.extend(surplus.map(|(name, _)| Effect::DeleteSample(key.clone(), name.clone())));
    if let Some(name) = wanted
        && !state.samples.contains_key(&(key.namespace.clone(), name.clone()))
    {
        effects.push(Effect::MakeSample { key: key.clone(), name });
    }
}
