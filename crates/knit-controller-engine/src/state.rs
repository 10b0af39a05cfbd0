//! The controller's state: a cache of watched objects, rebuilt at every start.

use std::collections::{BTreeMap, BTreeSet};

use knit_crds::Object;
use knit_crds::states::{AppliedObject, NodeNetworkStatus, PodNetworkStateStatus};
use knit_engine::ObjectKey;

use crate::labels::Labels;
use crate::segments::Segments;
use crate::service_addresses::ServiceAddresses;

/// A namespaced object, by namespace and name.
pub type Name = (String, String);

/// An object that users write.
#[derive(Clone, Debug)]
pub struct TrackedObject {
    /// The object, with its current or pending status.
    pub object: Object,
    /// When this generation was first observed, in milliseconds.
    pub generation_since: i64,
    /// When its deletion was first observed.
    pub deleting_since: Option<i64>,
    /// The resourceVersion for which the finalizers were patched, so that they are patched once.
    pub finalizers_patched: Option<String>,
}

/// A block of addresses held by a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its UID.
    pub uid: String,
    /// The node that holds it.
    pub node: String,
}

/// The state.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Objects.
    pub objects: BTreeMap<ObjectKey, TrackedObject>,
    /// PodNetworkStates.
    pub pod_states: BTreeMap<Name, PodNetworkStateStatus>,
    /// NodeNetworks.
    pub node_networks: BTreeMap<String, NodeNetworkStatus>,
    /// Nodes of the cluster, each with its current or pending labels that Knit owns.
    pub cluster_nodes: BTreeMap<String, Labels>,
    /// Sample Deployments, each with its PodConfig.
    pub samples: BTreeMap<Name, String>,
    /// Address blocks, by name.
    pub blocks: BTreeMap<String, HeldBlock>,
    /// When the deletion of nodes that hold blocks was first observed, in milliseconds.
    pub(crate) missing_since: BTreeMap<String, i64>,
    /// Resources whose watches have synced. Nothing is reconciled before all have.
    pub(crate) synced: BTreeSet<String>,
    /// Objects to reconcile.
    pub(crate) dirty: BTreeSet<ObjectKey>,
    /// Nodes whose labels must be reconciled.
    pub(crate) dirty_nodes: BTreeSet<String>,
    /// Segments of the cluster network.
    pub(crate) segments: Segments,
    /// Load balancer addresses of Services.
    pub(crate) service_addresses: ServiceAddresses,
}

impl State {
    /// Whether anything must be reconciled.
    pub fn needs_reconcile(&self) -> bool {
        !self.dirty.is_empty()
            || !self.dirty_nodes.is_empty()
            || self.segments.needs_reconcile()
            || self.service_addresses.needs_reconcile()
    }

    /// Whether blocks of deleted nodes await their expiry.
    pub fn has_missing_nodes(&self) -> bool {
        !self.missing_since.is_empty()
    }

    /// The reports about an object in pods, with the pod, from agents of existing nodes.
    pub fn in_pods<'a>(&'a self, key: &'a ObjectKey) -> impl Iterator<Item = (&'a Name, &'a AppliedObject)> {
        // Names are sorted: only this namespace is iterated.
        let first = (key.namespace.clone(), String::new());
        let here = self.pod_states.range(first..).take_while(move |(name, _)| name.0 == key.namespace);
        let here = here.filter(|(_, pod)| self.cluster_nodes.contains_key(&pod.node));
        here.flat_map(|(name, pod)| pod.objects.iter().map(move |object| (name, object)))
            .filter(move |(_, object)| refers_to(object, key))
    }

    /// The reports about an object outside of pods, with the node, from agents of existing nodes.
    pub fn on_nodes<'a>(
        &'a self,
        key: &'a ObjectKey,
    ) -> impl Iterator<Item = (&'a String, &'a AppliedObject)> {
        let nodes = self.node_networks.iter().filter(|(name, _)| self.cluster_nodes.contains_key(*name));
        nodes
            .flat_map(|(name, node)| node.objects.iter().map(move |object| (name, object)))
            .filter(move |(_, object)| refers_to(object, key))
    }
}

fn refers_to(object: &AppliedObject, key: &ObjectKey) -> bool {
    object.kind == key.kind && object.namespace == key.namespace && object.name == key.name
}
