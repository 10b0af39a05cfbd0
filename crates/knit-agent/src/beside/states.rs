//! What became of it all, to the API server: one PodNetworkState for each pod that has something, one NodeNetworkState.
//!
//! Whenever something may be another than before, all of it is read from the state and compared with what was written
//! last. Only differences are written, each in one request, and a pod that is being worked on waits until it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use knit_crds::states::{
    AppliedObject, NODE_LABEL, NetworkCapacity, NodeNetworkState, NodeNetworkStateStatus, PodNetworkState,
    PodNetworkStateStatus,
};
use knit_kube::kube::api::{DeleteParams, ListParams};
use knit_kube::kube::{self, Api};
use knit_kube::{Recorder, apply};
use knit_model::report::PodState;
use serde_json::json;
use tokio::time::sleep;

use super::{Shared, words};
use crate::capacity::Capacity;

/// Changes often come in groups: so long after the first everything is compared.
const GROUP: Duration = Duration::from_millis(10);
/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// So many requests are under way at once.
const AT_ONCE: usize = 8;

/// A pod by namespace and name.
type Name = (String, String);
/// What is, or is to be, in the API.
type States = BTreeMap<Name, PodNetworkStateStatus>;

struct Writer {
    shared: Shared,
    recorder: Recorder,
    written: States,
    written_node: Option<NodeNetworkStateStatus>,
    /// The node's uid, so that its state goes with it.
    node_uid: Option<String>,
}

/// What the loop knows.
struct Wanted {
    pods: States,
    /// Pods that are being worked on: what is written about them stays for now.
    unsettled: BTreeSet<Name>,
    node: NodeNetworkStateStatus,
}

/// Writes for as long as it is polled.
pub(super) async fn follow(shared: Shared) {
    let recorder = Recorder::new(shared.client.clone(), "knit-agent", &shared.node);
    let mut version = shared.handle.version();
    let mut writer = Writer { shared, recorder, written: States::new(), written_node: None, node_uid: None };
    let mut began = false;
    loop {
        if !began {
            began = writer.begin().await.inspect_err(away).is_ok();
        }
        let done = began && writer.write().await;
        let tell = std::sync::Arc::clone(&writer.shared.tell);
        tokio::select! {
            changed = version.changed() => if changed.is_err() { return },
            () = tell.notified() => {}
            () = sleep(AGAIN), if !done => {}
        }
        sleep(GROUP).await;
        version.mark_unchanged();
    }
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
            Some((name, state.status.unwrap_or_default()))
        });
        self.written = known.collect();
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        self.node_uid = nodes.get(&self.shared.node).await?.metadata.uid;
        Ok(())
    }

    /// Writes what differs. Says whether everything could be written.
    async fn write(&mut self) -> bool {
        let Some(wanted) = self.wanted().await else { return true };
        let gone = self
            .written
            .keys()
            .filter(|name| !wanted.pods.contains_key(*name) && !wanted.unsettled.contains(*name));
        let changed = wanted.pods.iter().filter(|(name, state)| self.written.get(*name) != Some(*state));
        let todo: Vec<(Name, Option<PodNetworkStateStatus>)> = gone
            .map(|name| (name.clone(), None))
            .chain(changed.map(|(name, state)| (name.clone(), Some(state.clone()))))
            .collect();
        let writes = todo.into_iter().map(|(name, state)| {
            let shared = self.shared.clone();
            async move {
                let result = write_pod(&shared, &name, state.as_ref()).await;
                (name, state, result)
            }
        });
        let results: Vec<_> = futures_util::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        let mut all = true;
        for (name, state, result) in results {
            match result {
                Ok(()) => self.wrote(name, state).await,
                Err(why) => {
                    tracing::warn!(namespace = name.0, pod = name.1, %why, "the pod's state could not be written");
                    all = false;
                }
            }
        }
        if self.written_node.as_ref() != Some(&wanted.node) {
            match self.write_node(&wanted.node).await {
                Ok(()) => self.written_node = Some(wanted.node),
                Err(why) => {
                    tracing::warn!(%why, "the node's state could not be written");
                    all = false;
                }
            }
        }
        all
    }

    async fn wanted(&self) -> Option<Wanted> {
        let shared = self.shared.clone();
        let asked = self.shared.handle.ask(move |node| {
            let state = node.state();
            let pods = shared.pods();
            let mut all = state.pod_states();
            all.extend(pods.refused(state));
            // Of a pod that the API does not have any more nothing is written: it would stay.
            all.retain(|pod| pods.get(&pod.sandbox.uid).is_some());
            Wanted {
                pods: all
                    .iter()
                    .map(|pod| (name_of(pod), PodNetworkStateStatus::of(pod, &shared.node)))
                    .collect(),
                unsettled: state.unsettled().map(|pod| (pod.namespace.clone(), pod.pod.clone())).collect(),
                node: NodeNetworkStateStatus {
                    agent: env!("CARGO_PKG_VERSION").to_owned(),
                    objects: state.node_states().iter().map(AppliedObject::of).collect(),
                    networks: Capacity::of_all(state).into_iter().map(room).collect(),
                },
            }
        });
        asked.await.ok()
    }

    /// Remembers what was written, and tells people.
    async fn wrote(&mut self, name: Name, state: Option<PodNetworkStateStatus>) {
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

    async fn write_node(&self, state: &NodeNetworkStateStatus) -> kube::Result<()> {
        let name = &*self.shared.node;
        let owner = self
            .node_uid
            .as_ref()
            .map(|uid| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]));
        let manifest = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "NodeNetworkState",
            "metadata": {"name": name, "labels": {NODE_LABEL: name}, "ownerReferences": owner},
            "spec": {},
            "status": state,
        });
        let api: Api<NodeNetworkState> = Api::all(self.shared.client.clone());
        apply(&api, name, &manifest).await.map(|_| ())
    }
}

async fn write_pod(shared: &Shared, name: &Name, state: Option<&PodNetworkStateStatus>) -> kube::Result<()> {
    let (namespace, pod) = name;
    let api: Api<PodNetworkState> = Api::namespaced(shared.client.clone(), namespace);
    let Some(state) = state else {
        return match api.delete(pod, &DeleteParams::default()).await {
            Err(kube::Error::Api(why)) if why.code == 404 => Ok(()),
            other => other.map(|_| ()),
        };
    };
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

fn name_of(pod: &PodState) -> Name {
    (pod.sandbox.namespace.clone(), pod.sandbox.pod.clone())
}

fn room(capacity: Capacity) -> NetworkCapacity {
    // The API has no larger numbers.
    let number = |addresses: u128| u64::try_from(addresses).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs());
    NetworkCapacity {
        total: number(capacity.total),
        free: number(capacity.free),
        namespace: capacity.namespace,
        name: capacity.network,
        family: if capacity.ipv6 { "IPv6" } else { "IPv4" }.to_owned(),
    }
}
