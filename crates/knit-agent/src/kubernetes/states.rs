//! What became of it all, to the API server: one PodNetworkState for each pod that has something, one NodeNetwork.
//!
//! Whenever something may be another than before, all of it is read from the state and compared with what was written
//! last. Only differences are written, each in one request, and a pod that is being worked on waits until it is not.
//! Counters move all the time and are no difference: they go along, see [`counting`].

mod counting;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_crds::states::{
    NODE_LABEL, NodeNetwork, NodeNetworkStatus, PodCounters, PodNetworkState, PodNetworkStateStatus,
};
use knit_engine::{State, Unit};
use knit_kube::kube::api::{DeleteParams, ListParams};
use knit_kube::kube::{self, Api};
use knit_kube::{Recorder, apply};
use knit_model::report::PodState;
use knit_model::{Sandbox, SandboxId};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use self::counting::Counting;
use self::node::{Facts, Opened};
use super::{Shared, words};

/// Changes often come in groups: so long after the first everything is compared.
const GROUP: Duration = Duration::from_millis(10);
/// From one comparison to the next it is at least this long: the loop is asked about all pods.
const PAUSE: Duration = Duration::from_millis(200);
/// How many addresses are free is another with each pod. When nothing else is, it is written this long after the last time.
const ROOM: Duration = Duration::from_secs(2);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// Bridges that are being worked on are looked at this often before they are told as they are.
const SETTLING: usize = 20;
/// So many requests are under way at once.
const AT_ONCE: usize = 8;

/// A pod by namespace and name.
type Name = (String, String);
/// What is, or is to be, in the API.
type States = BTreeMap<Name, PodNetworkStateStatus>;

struct Writer {
    shared: Shared,
    recorder: Recorder,
    /// What was written about pods, without counters.
    written: States,
    counting: Counting,
    written_node: Option<(NodeNetworkStatus, Instant)>,
    /// When it is to be written how many addresses are free.
    room_due: Option<Instant>,
    facts: Facts,
    /// The node's uid, so that its state goes with it.
    node_uid: Option<String>,
}

/// What the loop knows.
struct Wanted {
    pods: States,
    /// Where to count.
    sandboxes: BTreeMap<Name, Sandbox>,
    /// Pods that are being worked on: what is written about them stays for now.
    unsettled: BTreeSet<Name>,
    node: NodeNetworkStatus,
    opened: Opened,
}

/// What is to be written about a pod: without counters, and the counters. `None`: nothing any more.
type News = Option<(PodNetworkStateStatus, PodCounters)>;

/// Writes for as long as it is polled.
pub(super) async fn follow(shared: Shared) {
    let recorder = Recorder::new(shared.client.clone(), "knit-agent", &shared.node);
    let mut version = shared.handle.version();
    let mut writer = Writer {
        shared,
        recorder,
        written: States::new(),
        counting: Counting::new(),
        written_node: None,
        room_due: None,
        facts: Facts::default(),
        node_uid: None,
    };
    let mut began = false;
    loop {
        if !began {
            began = writer.begin().await.inspect_err(away).is_ok();
        }
        let done = began && writer.write().await;
        let rested = Instant::now() + PAUSE;
        let tell = std::sync::Arc::clone(&writer.shared.tell);
        let due =
            writer.room_due.into_iter().fold(writer.facts.due().min(writer.counting.due()), Instant::min);
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = tell.notified() => {}
            () = sleep(AGAIN), if !done => {}
            () = sleep_until(due), if done => {}
        }
        sleep_until(rested.max(Instant::now() + GROUP)).await;
        version.mark_unchanged();
    }
}

/// When a node's state is to be written of which nothing but the number of free addresses is another.
fn room_due(old: &NodeNetworkStatus, new: &NodeNetworkStatus, written: Instant) -> Option<Instant> {
    let rooms = || old.networks.iter().zip(&new.networks);
    // Where there was none, or is none now, people wait for the news.
    let is_small = rooms().all(|(old, new)| (old.free == 0) == (new.free == 0));
    if old == new || !is_small || old.networks.len() != new.networks.len() {
        return None;
    }
    let mut moved = new.clone();
    moved.networks.iter_mut().zip(&old.networks).for_each(|(new, old)| new.free = old.free);
    (moved == *old).then(|| written + ROOM)
}

fn away(why: &kube::Error) {
    tracing::debug!(%why, "states are written as soon as the API server answers");
}

impl Writer {
    /// What an earlier agent of this node wrote: of pods that are gone it has to go.
    async fn begin(&mut self) -> kube::Result<()> {
        let api: Api<PodNetworkState> = Api::all(self.shared.client.clone());
        let mine = ListParams::default().labels(&format!("{NODE_LABEL}={}", self.shared.node));
        let found = api.list(&mine).await?;
        let known = found.items.into_iter().filter_map(|state| {
            let name = (state.metadata.namespace?, state.metadata.name?);
            Some((name, state.status.unwrap_or_default().without_counters()))
        });
        self.written = known.collect();
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        self.node_uid = nodes.get(&self.shared.node).await?.metadata.uid;
        Ok(())
    }

    /// Writes what differs. Says whether everything could be written.
    async fn write(&mut self) -> bool {
        let Some(mut wanted) = self.wanted().await else { return false };
        let todo = self.todo(&wanted).await;
        let writes = todo.into_iter().map(|(name, news)| {
            let shared = self.shared.clone();
            async move {
                let result = write_pod(&shared, &name, news.as_ref()).await;
                (name, news, result)
            }
        });
        let results: Vec<_> = futures_util::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        let mut all = true;
        for (name, news, result) in results {
            match result {
                Ok(()) => self.wrote(name, news),
                Err(why) => {
                    tracing::warn!(namespace = name.0, pod = name.1, %why, "the pod's state could not be written");
                    all = false;
                }
            }
        }
        self.facts.complete(&mut wanted.node, &wanted.opened).await;
        self.room_due = self.written_node.as_ref().and_then(|(old, at)| room_due(old, &wanted.node, *at));
        let is_same = self.written_node.as_ref().is_some_and(|(old, _)| *old == wanted.node);
        if !is_same && self.room_due.is_none_or(|due| due <= Instant::now()) {
            self.room_due = None;
            match self.write_node(&wanted.node).await {
                Ok(()) => self.written_node = Some((wanted.node, Instant::now())),
                Err(why) => {
                    tracing::warn!(%why, "the node's state could not be written");
                    all = false;
                }
            }
        }
        all
    }

    /// What differs from what was written, with the counters as they are now. When counters are due, also pods of which
    /// only those have moved.
    async fn todo(&mut self, wanted: &Wanted) -> Vec<(Name, News)> {
        let gone = self.written.keys().filter(|name| !wanted.pods.contains_key(*name));
        let gone = gone.filter(|name| !wanted.unsettled.contains(*name));
        let mut todo: Vec<(Name, News)> = gone.map(|name| (name.clone(), None)).collect();
        let is_turn = self.counting.take_turn();
        let is_new = |name: &Name, state: &PodNetworkStateStatus| self.written.get(name) != Some(state);
        let asked = wanted.pods.iter().filter(|(name, state)| is_turn || is_new(name, state));
        let asked: Vec<_> = asked.map(|(name, state)| (name.clone(), state.clone())).collect();
        let places = asked.iter().filter_map(|(name, _)| {
            let sandbox = wanted.sandboxes.get(name)?;
            Some((name.clone(), sandbox.clone()))
        });
        let mut counted = counting::read(places.collect()).await;
        for (name, state) in asked {
            let counters = counted.remove(&name).unwrap_or_default();
            if is_new(&name, &state) || self.counting.is_worth_it(&name, &counters) {
                todo.push((name, Some((state, counters))));
            }
        }
        todo
    }

    /// What there is to say. Bridges that are being worked on are waited for, but not forever: with many pods that come
    /// and go there is always one.
    async fn wanted(&self) -> Option<Wanted> {
        for _ in 0..SETTLING {
            let quotas = std::sync::Arc::clone(&self.shared.quotas);
            let is_settled = move |node: &mut crate::node::Node| {
                let state = node.state();
                state.bridges_are_settled() && quotas.waiting(state).is_empty()
            };
            if self.shared.handle.ask(is_settled).await.ok()? {
                break;
            }
            sleep(GROUP).await;
        }
        let shared = self.shared.clone();
        let asked = self.shared.handle.ask(move |node| {
            let state = node.state();
            let pods = shared.pods();
            let mut all = state.pod_states();
            all.extend(pods.refused(state));
            let waiting = waiting(&shared, state);
            all.retain(|pod| !waiting.contains(&pod.sandbox.id));
            // Of a pod that the API does not have any more nothing is written: it would stay.
            all.retain(|pod| pods.get(&pod.sandbox.uid).is_some());
            let (mut node, opened) = node::of(state);
            let claiming = shared.quotas.waiting(state);
            node::pass_over_quotas(&mut node, &claiming);
            Wanted {
                pods: all
                    .iter()
                    .map(|pod| (name_of(pod), PodNetworkStateStatus::of(pod, &shared.node)))
                    .collect(),
                sandboxes: all.iter().map(|pod| (name_of(pod), pod.sandbox.clone())).collect(),
                unsettled: state
                    .unsettled()
                    .chain(waiting.iter().filter_map(|id| state.sandboxes.get(id)))
                    .map(|pod| (pod.namespace.clone(), pod.pod.clone()))
                    .collect(),
                node,
                opened,
            }
        });
        asked.await.ok()
    }

    /// Remembers what was written, and tells people.
    fn wrote(&mut self, name: Name, news: News) {
        let (state, counted) = news.unzip();
        self.counting.wrote(&name, counted);
        let old = self.written.remove(&name);
        let uid = state.as_ref().or(old.as_ref()).map(|state| state.pod_uid.clone());
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(name.0.clone()),
            name: Some(name.1.clone()),
            uid,
            ..ObjectReference::default()
        };
        let is_there = pod.uid.as_ref().is_some_and(|uid| self.shared.pods().get(uid).is_some());
        let told = if is_there { words::between(old.as_ref(), state.as_ref()) } else { Vec::new() };
        if let Some(state) = state {
            self.written.insert(name, state);
        }
        for word in told {
            let (recorder, pod) = (self.recorder.clone(), pod.clone());
            // Nobody waits for an Event.
            tokio::spawn(async move { recorder.tell(&pod, word.severity, &word.reason, &word.note).await });
        }
    }

    async fn write_node(&self, state: &NodeNetworkStatus) -> kube::Result<()> {
        let name = &*self.shared.node;
        let owner = self
            .node_uid
            .as_ref()
            .map(|uid| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]));
        let manifest = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "NodeNetwork",
            "metadata": {"name": name, "labels": {NODE_LABEL: name}, "ownerReferences": owner},
            "spec": {},
            "status": state,
        });
        let api: Api<NodeNetwork> = Api::all(self.shared.client.clone());
        apply(&api, name, &manifest).await.map(|_| ())
    }
}

async fn write_pod(
    shared: &Shared,
    name: &Name,
    news: Option<&(PodNetworkStateStatus, PodCounters)>,
) -> kube::Result<()> {
    let (namespace, pod) = name;
    let api: Api<PodNetworkState> = Api::namespaced(shared.client.clone(), namespace);
    let Some((state, counters)) = news else {
        return match api.delete(pod, &DeleteParams::default()).await {
            Err(kube::Error::Api(why)) if why.code == 404 => Ok(()),
            other => other.map(|_| ()),
        };
    };
    let state = state.clone().with_counters(counters, Time(jiff::Timestamp::now()));
    let manifest = json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "PodNetworkState",
        "metadata": {
            "name": pod,
            "namespace": namespace,
            "labels": {NODE_LABEL: &*shared.node},
            // It goes with its pod, whoever is away then.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": state.pod_uid}],
        },
        "spec": {},
        "status": state,
    });
    apply(&api, pod, &manifest).await.map(|_| ())
}

/// Sandboxes that wait for someone else: a key that is being read is no problem yet, nor is a quota of which more is being
/// claimed, nor a block that is there in a moment.
pub(super) fn waiting(shared: &Shared, state: &State) -> BTreeSet<SandboxId> {
    let mut waiting = waiting_for_keys(shared, state);
    waiting.extend(shared.quotas.sandboxes_waiting(state));
    waiting.extend(state.blocks.soon().filter_map(Unit::sandbox).cloned());
    waiting
}

/// Sandboxes that need a Secret of which nothing is known yet.
fn waiting_for_keys(shared: &Shared, state: &State) -> BTreeSet<SandboxId> {
    let Some(secrets) = shared.handle.secrets() else { return BTreeSet::new() };
    let unknown = state.secrets_needed().into_iter().filter(|(name, _)| !secrets.is_known(name));
    unknown.flat_map(|(_, sandboxes)| sandboxes).collect()
}

fn name_of(pod: &PodState) -> Name {
    (pod.sandbox.namespace.clone(), pod.sandbox.pod.clone())
}

#[cfg(test)]
mod tests {
    use knit_crds::states::NetworkCapacity;

    use super::*;

    fn with(rooms: &[u64]) -> NodeNetworkStatus {
        let room = |free: &u64| NetworkCapacity {
            namespace: "knit".to_owned(),
            name: "cluster".to_owned(),
            family: "IPv4".to_owned(),
            total: 250,
            free: *free,
        };
        NodeNetworkStatus { networks: rooms.iter().map(room).collect(), ..NodeNetworkStatus::default() }
    }

    #[test]
    fn free_addresses_alone_are_written_a_moment_later() {
        let now = Instant::now();
        assert_eq!(room_due(&with(&[9, 9]), &with(&[9, 8]), now), Some(now + ROOM));
        // The first that is used up, and the first that is free again, are told at once; so is everything else.
        for (old, new) in [(&[1][..], &[0][..]), (&[0], &[1]), (&[9], &[8, 9]), (&[9], &[9])] {
            assert_eq!(room_due(&with(old), &with(new), now), None, "{old:?} {new:?}");
        }
        let other = NodeNetworkStatus { agent: "new".to_owned(), ..with(&[8]) };
        assert_eq!(room_due(&with(&[9]), &other, now), None);
    }
}
