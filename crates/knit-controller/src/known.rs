//! What the controller knows: all of it comes from watches, nothing of it is kept.

use std::collections::{BTreeMap, BTreeSet};

use knit_crds::Object;
use knit_crds::states::{AppliedObject, NodeNetworkStatus, PodNetworkStateStatus};
use knit_engine::ObjectKey;

use crate::labels::Labels;

/// Something in a namespace, by namespace and name.
pub type Name = (String, String);

/// An object of a tenant's or an admin's.
#[derive(Clone, Debug)]
pub struct Known {
    /// The object, with the status that it has or is about to get.
    pub object: Object,
    /// When this generation of it was first seen, in milliseconds.
    pub since: i64,
    /// When it was seen that someone deletes it.
    pub going_since: Option<i64>,
    /// The version for which other finalizers were asked for: not twice for the same.
    pub asked: Option<String>,
}

/// A block of addresses, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// Its uid.
    pub uid: String,
    /// The node that holds it.
    pub node: String,
}

/// Everything that is known.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Objects.
    pub objects: BTreeMap<ObjectKey, Known>,
    /// What agents say about pods.
    pub pods: BTreeMap<Name, PodNetworkStateStatus>,
    /// What agents say about nodes.
    pub nodes: BTreeMap<String, NodeNetworkStatus>,
    /// Nodes that there are, each with those of its labels that are Knit's, as they are or are about to be.
    pub alive: BTreeMap<String, Labels>,
    /// Sample Deployments, each with the PodConfig that it belongs to.
    pub samples: BTreeMap<Name, String>,
    /// Blocks of addresses, by name.
    pub blocks: BTreeMap<String, HeldBlock>,
    /// Nodes that hold blocks and are gone, and since when that is seen, in milliseconds.
    pub(crate) gone_since: BTreeMap<String, i64>,
    /// What was listed once. Before all of it was, nothing is decided.
    pub(crate) listed: BTreeSet<String>,
    /// Objects to look at.
    pub(crate) dirty: BTreeSet<ObjectKey>,
    /// Nodes whose labels are to be looked at.
    pub(crate) unlabelled: BTreeSet<String>,
}

impl State {
    /// Whether anything waits to be looked at.
    pub fn is_waiting(&self) -> bool {
        !self.dirty.is_empty() || !self.unlabelled.is_empty()
    }

    /// Whether a node that is gone holds blocks: they go when it has been gone for long.
    pub fn waits_for_nodes(&self) -> bool {
        !self.gone_since.is_empty()
    }

    /// What agents of nodes that there are say about an object in pods, with the pod.
    pub fn in_pods<'a>(&'a self, key: &'a ObjectKey) -> impl Iterator<Item = (&'a Name, &'a AppliedObject)> {
        // Names are in order: of a large cluster only this namespace is walked through.
        let first = (key.namespace.clone(), String::new());
        let here = self.pods.range(first..).take_while(move |(name, _)| name.0 == key.namespace);
        let here = here.filter(|(_, pod)| self.alive.contains_key(&pod.node));
        here.flat_map(|(name, pod)| pod.objects.iter().map(move |object| (name, object)))
            .filter(move |(_, object)| is_about(object, key))
    }

    /// What agents of nodes that there are say about an object outside of pods, with the node.
    pub fn on_nodes<'a>(
        &'a self,
        key: &'a ObjectKey,
    ) -> impl Iterator<Item = (&'a String, &'a AppliedObject)> {
        let nodes = self.nodes.iter().filter(|(name, _)| self.alive.contains_key(*name));
        nodes
            .flat_map(|(name, node)| node.objects.iter().map(move |object| (name, object)))
            .filter(move |(_, object)| is_about(object, key))
    }
}

fn is_about(object: &AppliedObject, key: &ObjectKey) -> bool {
    object.kind == key.kind && object.namespace == key.namespace && object.name == key.name
}
