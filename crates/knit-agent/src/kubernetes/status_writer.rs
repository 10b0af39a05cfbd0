//! Writes the status: one PodNetworkState for each pod with interfaces, one NodeNetwork.
//!
//! On every change of the state, the desired status is computed and compared with what was written last. Only differences are written,
//! each in one request; pods with a change in flight are skipped. Counters change all the time and do not count as a difference: they are
//! written along, see [`counters`].

mod counters;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_crds::states::{
    ADDITIONAL_NETWORKS_LABEL, NODE_LABEL, NodeNetwork, NodeNetworkStatus, PodCounters, PodNetworkState,
    PodNetworkStateStatus,
};
use knit_kube::kube::api::{DeleteParams, ListParams};
use knit_kube::kube::{self, Api};
use knit_kube::{EventRecorder, apply};
use knit_model::Sandbox;
use knit_model::report::PodState;
use serde_json::json;
use tokio::time::{Instant, sleep};

use self::counters::WrittenCounters;
use self::node::{KernelFacts, Opened};
use super::state_follower::{StateFollower, notified};
use super::{Context, pod_events};

/// Changes come in bursts: they are collected this long.
const SETTLE_TIME: Duration = Duration::from_millis(10);
/// Minimum interval between two comparisons: each queries the loop about all pods.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(200);
/// The number of free addresses changes with each pod. If nothing else does, it is written at most this often.
const CAPACITY_INTERVAL: Duration = Duration::from_secs(2);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How often bridges with a change in flight are polled before they are reported as they are.
const MAX_SETTLE_POLLS: usize = 20;
/// Concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 8;

/// A pod's namespace and name.
type Name = (String, String);
/// The written or desired status of pods.
type States = BTreeMap<Name, PodNetworkStateStatus>;

struct StatusWriter {
    context: Context,
    recorder: EventRecorder,
    /// The written status of pods, without counters.
    written: States,
    counters: WrittenCounters,
    written_node: Option<(NodeNetworkStatus, Instant)>,
    /// When a changed number of free addresses is to be written.
    capacity_due: Option<Instant>,
    kernel_facts: KernelFacts,
    /// The Node's uid, for the owner reference.
    node_uid: Option<String>,
}

/// The desired status.
struct DesiredStatus {
    pods: States,
    /// The sandboxes to read counters from.
    sandboxes: BTreeMap<Name, Sandbox>,
    /// Pods with a change in flight: their written status stays for now.
    unsettled: BTreeSet<Name>,
    /// The uids of the pods that the API server has.
    existing: BTreeSet<String>,
    node: NodeNetworkStatus,
    opened: Opened,
}

/// The desired status of a pod without counters, and its counters. `None`: delete it.
type PodUpdate = Option<(PodNetworkStateStatus, PodCounters)>;

/// Keeps the status up to date.
pub(super) async fn run(context: Context) {
    let recorder = EventRecorder::new(context.client.clone(), "knit-agent", &context.node);
    let follower = StateFollower::new(&context.handle, SETTLE_TIME);
    let mut state = follower.with_min_interval(MIN_QUERY_INTERVAL);
    let mut writer = StatusWriter {
        context,
        recorder,
        written: States::new(),
        counters: WrittenCounters::new(),
        written_node: None,
        capacity_due: None,
        kernel_facts: KernelFacts::default(),
        node_uid: None,
    };
    let mut initialised = false;
    loop {
        if !initialised {
            initialised = writer.initialise().await.inspect_err(log_unavailable).is_ok();
        }
        let done = initialised && writer.write().await;
        let pods_changed = Arc::clone(&writer.context.pods_changed);
        let due = if done { writer.due() } else { Instant::now() + RETRY_INTERVAL };
        if state.changed(notified(&pods_changed), Some(due)).await.is_err() {
            return;
        }
    }
}

/// When to write a node's status in which only the number of free addresses differs.
fn capacity_due(old: &NodeNetworkStatus, new: &NodeNetworkStatus, written: Instant) -> Option<Instant> {
    let networks = || old.networks.iter().zip(&new.networks);
    // A transition from or to 0 is written at once.
    let is_small = networks().all(|(old, new)| (old.free == 0) == (new.free == 0));
    if old == new || !is_small || old.networks.len() != new.networks.len() {
        return None;
    }
    let mut moved = new.clone();
    moved.networks.iter_mut().zip(&old.networks).for_each(|(new, old)| new.free = old.free);
    (moved == *old).then(|| written + CAPACITY_INTERVAL)
}

fn log_unavailable(why: &kube::Error) {
    tracing::debug!(error = %why, "API server unavailable; the status is written later");
}

impl StatusWriter {
    /// When the next write is due without a change of the state.
    fn due(&self) -> Instant {
        self.capacity_due.into_iter().fold(self.kernel_facts.due().min(self.counters.due()), Instant::min)
    }

    /// Reads what an earlier agent of this node wrote, so that the status of pods that are gone is deleted.
    async fn initialise(&mut self) -> kube::Result<()> {
        let api: Api<PodNetworkState> = Api::all(self.context.client.clone());
        let mine = ListParams::default().labels(&format!("{NODE_LABEL}={}", self.context.node));
        let found = api.list(&mine).await?;
        let known = found.items.into_iter().filter_map(|state| {
            let name = (state.metadata.namespace?, state.metadata.name?);
            Some((name, state.status.unwrap_or_default().without_counters()))
        });
        self.written = known.collect();
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        self.node_uid = nodes.get(&self.context.node).await?.metadata.uid;
        Ok(())
    }

    /// Writes differences. Returns whether all writes succeeded.
    async fn write(&mut self) -> bool {
        let Some(mut desired) = self.desired().await else { return false };
        let updates = self.updates(&desired).await;
        let writes = updates.into_iter().map(|(name, update)| {
            let context = self.context.clone();
            async move {
                let result = write_pod(&context, &name, update.as_ref()).await;
                (name, update, result)
            }
        });
        let results: Vec<_> =
            futures_util::stream::iter(writes).buffer_unordered(MAX_CONCURRENT_REQUESTS).collect().await;
        let mut succeeded = true;
        for (name, update, result) in results {
            match result {
                Ok(()) => self.written(name, update, &desired.existing),
                Err(why) => {
                    tracing::warn!(namespace = name.0, pod = name.1, error = %why, "cannot write the pod's status");
                    succeeded = false;
                }
            }
        }
        self.kernel_facts.complete(&mut desired.node, &desired.opened).await;
        self.capacity_due =
            self.written_node.as_ref().and_then(|(old, at)| capacity_due(old, &desired.node, *at));
        let is_same = self.written_node.as_ref().is_some_and(|(old, _)| *old == desired.node);
        if !is_same && self.capacity_due.is_none_or(|due| due <= Instant::now()) {
            self.capacity_due = None;
            match self.write_node(&desired.node).await {
                Ok(()) => self.written_node = Some((desired.node, Instant::now())),
                Err(why) => {
                    tracing::warn!(error = %why, "cannot write the node's status");
                    succeeded = false;
                }
            }
        }
        succeeded
    }

    /// The differences, with current counters. When counters are due, also pods of which only the counters differ.
    async fn updates(&mut self, desired: &DesiredStatus) -> Vec<(Name, PodUpdate)> {
        let gone = self.written.keys().filter(|name| !desired.pods.contains_key(*name));
        let gone = gone.filter(|name| !desired.unsettled.contains(*name));
        let mut updates: Vec<(Name, PodUpdate)> = gone.map(|name| (name.clone(), None)).collect();
        let counters_due = self.counters.start_interval_if_due();
        let is_new = |name: &Name, state: &PodNetworkStateStatus| self.written.get(name) != Some(state);
        let candidates = desired.pods.iter().filter(|(name, state)| counters_due || is_new(name, state));
        let candidates: Vec<_> = candidates.map(|(name, state)| (name.clone(), state.clone())).collect();
        let sandboxes = candidates.iter().filter_map(|(name, _)| {
            let sandbox = desired.sandboxes.get(name)?;
            Some((name.clone(), sandbox.clone()))
        });
        let mut counted = counters::read(sandboxes.collect()).await;
        for (name, state) in candidates {
            let counters = counted.remove(&name).unwrap_or_default();
            if is_new(&name, &state) || self.counters.has_changed(&name, &counters) {
                updates.push((name, Some((state, counters))));
            }
        }
        updates
    }

    /// Computes the desired status. Waits for bridges with a change in flight, but only a limited time: with many pods there is always one.
    async fn desired(&self) -> Option<DesiredStatus> {
        for _ in 0..MAX_SETTLE_POLLS {
            let is_settled = |node: &mut crate::node::Node| {
                let state = node.state();
                state.bridges_are_settled() && state.namespaces_awaiting_quota().is_empty()
            };
            if self.context.handle.query(is_settled).await.ok()? {
                break;
            }
            sleep(SETTLE_TIME).await;
        }
        let context = self.context.clone();
        let desired = self.context.handle.query(move |node| {
            let state = node.state();
            let mut all = state.pod_states();
            all.extend(state.host_network_states());
            let waiting = state.awaiting_api_server();
            all.retain(|pod| !waiting.contains(&pod.sandbox.id));
            // A status of a deleted pod would never be garbage collected.
            all.retain(|pod| state.pods.get(&pod.sandbox.uid).is_some());
            let (node, opened) = node::of(state);
            DesiredStatus {
                pods: all
                    .iter()
                    .map(|pod| (name_of(pod), PodNetworkStateStatus::of(pod, &context.node)))
                    .collect(),
                sandboxes: all.iter().map(|pod| (name_of(pod), pod.sandbox.clone())).collect(),
                unsettled: state
                    .unsettled()
                    .chain(waiting.iter().filter_map(|id| state.sandboxes.get(id)))
                    .map(|pod| (pod.namespace.clone(), pod.pod.clone()))
                    .collect(),
                existing: state.pods.all().map(|pod| pod.uid.clone()).collect(),
                node,
                opened,
            }
        });
        desired.await.ok()
    }

    /// Records what was written, and reports it as Events.
    fn written(&mut self, name: Name, update: PodUpdate, existing: &BTreeSet<String>) {
        let (state, counted) = update.unzip();
        self.counters.written(&name, counted);
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
        let exists = pod.uid.as_ref().is_some_and(|uid| existing.contains(uid));
        let events = if exists { pod_events::diff(old.as_ref(), state.as_ref()) } else { Vec::new() };
        if let Some(state) = state {
            self.written.insert(name, state);
        }
        for event in events {
            let (recorder, pod) = (self.recorder.clone(), pod.clone());
            // Not awaited: an Event must not delay the status.
            tokio::spawn(
                async move { recorder.publish(&pod, event.severity, &event.reason, &event.note).await },
            );
        }
    }

    async fn write_node(&self, state: &NodeNetworkStatus) -> kube::Result<()> {
        let name = &*self.context.node;
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
        let api: Api<NodeNetwork> = Api::all(self.context.client.clone());
        apply(&api, name, &manifest).await.map(|_| ())
    }
}

async fn write_pod(
    context: &Context,
    name: &Name,
    update: Option<&(PodNetworkStateStatus, PodCounters)>,
) -> kube::Result<()> {
    let (namespace, pod) = name;
    let api: Api<PodNetworkState> = Api::namespaced(context.client.clone(), namespace);
    let Some((state, counters)) = update else {
        return match api.delete(pod, &DeleteParams::default()).await {
            Err(kube::Error::Api(why)) if why.code == 404 => Ok(()),
            other => other.map(|_| ()),
        };
    };
    let mut labels = BTreeMap::from([(NODE_LABEL, &*context.node)]);
    if state.has_additional_networks() {
        labels.insert(ADDITIONAL_NETWORKS_LABEL, "true");
    }
    let state = state.clone().with_counters(counters, Time(jiff::Timestamp::now()));
    let manifest = json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "PodNetworkState",
        "metadata": {
            "name": pod,
            "namespace": namespace,
            "labels": labels,
            // Garbage collected with the pod, even without an agent.
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": state.pod_uid}],
        },
        "spec": {},
        "status": state,
    });
    apply(&api, pod, &manifest).await.map(|_| ())
}

fn name_of(pod: &PodState) -> Name {
    (pod.sandbox.namespace.clone(), pod.sandbox.pod.clone())
}

#[cfg(test)]
mod tests {
    use knit_crds::states::NetworkCapacity;

    use super::*;

    fn with(networks: &[u64]) -> NodeNetworkStatus {
        let capacity = |free: &u64| NetworkCapacity {
            namespace: "knit".to_owned(),
            name: "cluster".to_owned(),
            family: "IPv4".to_owned(),
            total: 250,
            free: *free,
        };
        NodeNetworkStatus {
            networks: networks.iter().map(capacity).collect(),
            ..NodeNetworkStatus::default()
        }
    }

    #[test]
    fn a_changed_number_of_free_addresses_is_written_with_a_delay() {
        let now = Instant::now();
        assert_eq!(capacity_due(&with(&[9, 9]), &with(&[9, 8]), now), Some(now + CAPACITY_INTERVAL));
        // Transitions from and to 0 are written at once, and so is everything else.
        for (old, new) in [(&[1][..], &[0][..]), (&[0], &[1]), (&[9], &[8, 9]), (&[9], &[9])] {
            assert_eq!(capacity_due(&with(old), &with(new), now), None, "{old:?} {new:?}");
        }
        let other = NodeNetworkStatus { agent: "new".to_owned(), ..with(&[8]) };
        assert_eq!(capacity_due(&with(&[9]), &other, now), None);
    }
}
