//! Policies, namespaces and pods, as far as a node needs them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::labels::Labels;
use crate::members::PeerSets;
use crate::policy::{Direction, NamedPort, Namespaces, PodSelector, Policy, PolicyId};

/// A pod by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What policies need of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyPod {
    /// Its uid: another pod may have had the same name.
    pub uid: String,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses on the cluster network. A pod on the host network has none: it has the addresses of its node.
    pub addresses: Vec<IpAddr>,
    /// The ports that it declares with a name.
    pub ports: Vec<NamedPort>,
}

/// The result of a change of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodUpdate {
    /// It is as before.
    Unchanged,
    /// No compiled rule refers to it as a peer.
    Changed,
    /// Compiled rules refer to it.
    Peer,
}

/// Policies, namespaces and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyIndex {
    #[serde(with = "knit_model::serde_pairs")]
    pub(crate) policies: BTreeMap<PolicyId, Policy>,
    namespaces: BTreeMap<String, Labels>,
    #[serde(with = "knit_model::serde_pairs")]
    pub(crate) pods: BTreeMap<PodKey, PolicyPod>,
    /// The pods that peers in compiled rules select.
    pub(crate) peer_sets: PeerSets,
}

impl PolicyIndex {
    /// Replaces all policies.
    pub fn set_policies(&mut self, policies: Vec<Policy>) {
        self.policies = policies.into_iter().map(|policy| (policy.id.clone(), policy)).collect();
    }

    /// Adds or replaces a policy. Returns whether it differs from before.
    pub fn apply_policy(&mut self, policy: Policy) -> bool {
        if self.policies.get(&policy.id) == Some(&policy) {
            return false;
        }
        self.policies.insert(policy.id.clone(), policy);
        true
    }

    /// Removes a policy. Returns whether it was known.
    pub fn remove_policy(&mut self, id: &PolicyId) -> bool {
        self.policies.remove(id).is_some()
    }

    /// Whether there is a policy in any namespace.
    pub fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Replaces all namespaces.
    pub fn set_namespaces(&mut self, namespaces: BTreeMap<String, Labels>) {
        self.namespaces = namespaces;
        self.peer_sets.rebuild(&self.pods, &self.namespaces, |_| true);
    }

    /// Adds, changes or (without labels) removes a namespace. Returns whether it differs from before.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) -> bool {
        if self.namespaces.get(name) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.namespaces.remove(name)),
        }
        let by_labels = |selector: &PodSelector| matches!(selector.namespaces, Namespaces::Labelled(_));
        self.peer_sets.rebuild(&self.pods, &self.namespaces, by_labels);
        true
    }

    /// Replaces all pods.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = (PodKey, PolicyPod)>) {
        self.pods = pods.into_iter().collect();
        self.peer_sets.rebuild(&self.pods, &self.namespaces, |_| true);
    }

    /// Adds, changes or removes a pod.
    pub fn set_pod(&mut self, key: &PodKey, pod: Option<PolicyPod>) -> PodUpdate {
        if self.pods.get(key) == pod.as_ref() {
            return PodUpdate::Unchanged;
        }
        let mut is_peer = false;
        let labels = self.namespaces.get(&key.namespace);
        if let Some(before) = self.pods.remove(key) {
            is_peer |= self.peer_sets.remove(key, &before, labels);
        }
        if let Some(pod) = pod {
            is_peer |= self.peer_sets.add(key, &pod, labels);
            self.pods.insert(key.clone(), pod);
        }
        if is_peer { PodUpdate::Peer } else { PodUpdate::Changed }
    }

    /// Forgets all pods.
    pub fn forget_pods(&mut self) {
        self.set_pods([]);
    }

    /// A pod.
    pub fn pod(&self, key: &PodKey) -> Option<&PolicyPod> {
        self.pods.get(key)
    }

    /// The policies about a namespace that restrict a direction.
    pub(crate) fn restricting(&self, namespace: &str, direction: Direction) -> impl Iterator<Item = &Policy> {
        let first = PolicyId { namespace: namespace.to_owned(), name: String::new() };
        let of_namespace = self.policies.range(first..).map(|(_, policy)| policy);
        let of_namespace = of_namespace.take_while(move |policy| policy.id.namespace == namespace);
        of_namespace.filter(move |policy| policy.rules(direction).is_some())
    }

    /// The policies about a pod that restrict a direction.
    pub(crate) fn about<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a PolicyPod,
        direction: Direction,
    ) -> impl Iterator<Item = &'a Policy> {
        self.restricting(namespace, direction).filter(|policy| policy.subject.matches(&pod.labels))
    }

    /// Prepares the sets of pods that rules refer to, and drops others.
    pub(crate) fn retain_peer_sets(&mut self, used: PeerSets) {
        self.peer_sets = std::mem::take(&mut self.peer_sets).replaced_by(used, &self.pods, &self.namespaces);
    }

    pub(crate) fn is_selected(&self, selector: &PodSelector, key: &PodKey, pod: &PolicyPod) -> bool {
        is_selected(selector, key, pod, self.namespaces.get(&key.namespace))
    }
}

/// Whether a selector selects a pod of a namespace with these labels. A namespace that is not known has no labels to select.
pub(crate) fn is_selected(
    selector: &PodSelector,
    key: &PodKey,
    pod: &PolicyPod,
    namespace: Option<&Labels>,
) -> bool {
    let in_namespace = match &selector.namespaces {
        Namespaces::Named(name) => *name == key.namespace,
        Namespaces::Labelled(labels) => namespace.is_some_and(|namespace| labels.matches(namespace)),
    };
    in_namespace && selector.pods.matches(&pod.labels)
}
