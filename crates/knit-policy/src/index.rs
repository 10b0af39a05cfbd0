//! Policies, namespaces and pods, as far as a node needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::isolation::app;
use crate::labels::Labels;
use crate::members::PeerSets;
use crate::policy::{Direction, NamedPort, Namespaces, PodSelector, Policy, PolicyId, PolicyKind};

/// A pod by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What policies need of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyNamespace {
    /// Its labels.
    pub labels: Labels,
    /// Whether pods of other namespaces reach its pods through Services only.
    #[serde(default)]
    pub isolated: bool,
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
    /// Its addresses on additional networks. They are known from [`PolicyIndex::set_pod_networks`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: PodNetworks,
}

/// The addresses of a pod on additional networks, by the network as `Kind/namespace/name`.
pub type PodNetworks = BTreeMap<String, Vec<IpAddr>>;

/// The result of a change of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodUpdate {
    /// Whether it differs from before.
    pub changed: bool,
    /// Whether compiled rules refer to it as a peer.
    pub is_peer: bool,
    /// The same for rules about additional networks.
    pub is_network_peer: bool,
    /// Whether it belongs to an app, or did: other rules may be needed.
    pub is_of_app: bool,
}

/// Policies, namespaces and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyIndex {
    #[serde(with = "knit_model::serde_pairs")]
    pub(crate) policies: BTreeMap<PolicyId, Policy>,
    pub(crate) namespaces: BTreeMap<String, PolicyNamespace>,
    #[serde(with = "knit_model::serde_pairs")]
    pub(crate) pods: BTreeMap<PodKey, PolicyPod>,
    /// The pods that peers in compiled rules select.
    pub(crate) peer_sets: PeerSets,
    /// The same for rules about additional networks.
    #[serde(default)]
    pub(crate) network_peer_sets: PeerSets,
    /// The addresses of pods on additional networks, each with the pod's uid.
    #[serde(default, with = "knit_model::serde_pairs")]
    pod_networks: BTreeMap<PodKey, (String, PodNetworks)>,
    /// The number of pods with an app label.
    #[serde(default)]
    pub(crate) app_pods: usize,
    /// The pods of this node, as compiled last.
    #[serde(default)]
    pub(crate) local: BTreeSet<PodKey>,
}

impl PolicyIndex {
    /// Replaces all policies of a kind.
    pub fn set_policies(&mut self, kind: PolicyKind, policies: Vec<Policy>) {
        self.policies.retain(|id, _| id.kind != kind);
        self.policies.extend(policies.into_iter().map(|policy| (policy.id.clone(), policy)));
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

    /// Whether there is any policy.
    pub fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Whether there is any policy about the cluster network, or about additional networks.
    pub fn has_policies_on(&self, additional: bool) -> bool {
        self.policies.values().any(|policy| policy.networks.is_some() == additional)
    }

    /// Whether any namespace is isolated.
    pub fn has_isolated_namespaces(&self) -> bool {
        self.namespaces.values().any(|namespace| namespace.isolated)
    }

    /// Replaces all namespaces.
    pub fn set_namespaces(&mut self, namespaces: BTreeMap<String, PolicyNamespace>) {
        self.namespaces = namespaces;
        self.rebuild_peer_sets(|_| true);
    }

    /// Adds, changes or removes a namespace. Returns whether it differs from before.
    pub fn set_namespace(&mut self, name: &str, namespace: Option<PolicyNamespace>) -> bool {
        if self.namespaces.get(name) == namespace.as_ref() {
            return false;
        }
        match namespace {
            Some(namespace) => drop(self.namespaces.insert(name.to_owned(), namespace)),
            None => drop(self.namespaces.remove(name)),
        }
        self.rebuild_peer_sets(|selector| matches!(selector.namespaces, Namespaces::Labelled(_)));
        true
    }

    fn rebuild_peer_sets(&mut self, is_affected: fn(&PodSelector) -> bool) {
        for sets in [&mut self.peer_sets, &mut self.network_peer_sets] {
            sets.rebuild(&self.pods, &self.namespaces, is_affected);
        }
    }

    /// Replaces all pods.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = (PodKey, PolicyPod)>) {
        self.pods = pods.into_iter().collect();
        for (key, pod) in &mut self.pods {
            pod.networks = networks_of(&self.pod_networks, key, &pod.uid);
        }
        self.app_pods = self.pods.values().filter(|pod| app(pod).is_some()).count();
        self.rebuild_peer_sets(|_| true);
    }

    /// Replaces the addresses of all pods on additional networks, each with the pod's uid.
    pub fn set_all_pod_networks(&mut self, all: impl IntoIterator<Item = (PodKey, (String, PodNetworks))>) {
        self.pod_networks = all.into_iter().collect();
        let pods = std::mem::take(&mut self.pods);
        self.set_pods(pods);
    }

    /// Changes the addresses of a pod on additional networks; `None`: it has none any more.
    pub fn set_pod_networks(&mut self, key: &PodKey, networks: Option<(String, PodNetworks)>) -> PodUpdate {
        match networks {
            Some(networks) => drop(self.pod_networks.insert(key.clone(), networks)),
            None => drop(self.pod_networks.remove(key)),
        }
        match self.pods.get(key).cloned() {
            Some(pod) => self.set_pod(key, Some(pod)),
            None => PodUpdate::default(),
        }
    }

    /// Adds, changes or removes a pod.
    pub fn set_pod(&mut self, key: &PodKey, pod: Option<PolicyPod>) -> PodUpdate {
        let pod = pod.map(|mut pod| {
            pod.networks = networks_of(&self.pod_networks, key, &pod.uid);
            pod
        });
        if self.pods.get(key) == pod.as_ref() {
            return PodUpdate::default();
        }
        let mut update = PodUpdate { changed: true, ..PodUpdate::default() };
        let namespace = self.namespaces.get(&key.namespace);
        if let Some(before) = self.pods.remove(key) {
            if app(&before).is_some() {
                (update.is_of_app, self.app_pods) = (true, self.app_pods.saturating_sub(1));
            }
            update.is_peer |= self.peer_sets.remove(key, &before, namespace);
            update.is_network_peer |= self.network_peer_sets.remove(key, &before, namespace);
        }
        if let Some(pod) = pod {
            if app(&pod).is_some() {
                (update.is_of_app, self.app_pods) = (true, self.app_pods + 1);
            }
            update.is_peer |= self.peer_sets.add(key, &pod, namespace);
            update.is_network_peer |= self.network_peer_sets.add(key, &pod, namespace);
            self.pods.insert(key.clone(), pod);
        }
        update
    }

    /// Forgets all pods.
    pub fn forget_pods(&mut self) {
        self.set_pods([]);
    }

    /// A pod.
    pub fn pod(&self, key: &PodKey) -> Option<&PolicyPod> {
        self.pods.get(key)
    }

    /// The policies with rules about a direction that may be about pods of a namespace: a namespace that is not known yet may
    /// have any labels.
    pub(crate) fn restricting<'a>(
        &'a self,
        namespace: &'a str,
        direction: Direction,
    ) -> impl Iterator<Item = &'a Policy> {
        let labels = self.namespaces.get(namespace).map(|namespace| &namespace.labels);
        let of_namespace =
            self.policies.range(PolicyId::namespaced(namespace, "")..).map(|(_, policy)| policy);
        let is_of_namespace = move |policy: &&Policy| {
            policy.id.kind == PolicyKind::NetworkPolicy && policy.id.namespace == namespace
        };
        let of_cluster = self.policies.range(PolicyId::of_cluster("")..).map(|(_, policy)| policy);
        let of_cluster = of_cluster.take_while(|policy| policy.id.kind == PolicyKind::ClusterNetworkPolicy);
        let is_about = move |policy: &&Policy| match &policy.subject.namespaces {
            Namespaces::Named(name) => name == namespace,
            Namespaces::Labelled(selector) => labels.is_none_or(|labels| selector.matches(labels)),
        };
        let all = of_namespace.take_while(is_of_namespace).chain(of_cluster.filter(is_about));
        all.filter(move |policy| policy.rules(direction).is_some())
    }

    /// The policies about a pod with rules about a direction, in the order of their evaluation.
    pub(crate) fn about<'a>(
        &'a self,
        key: &'a PodKey,
        pod: &PolicyPod,
        direction: Direction,
    ) -> Vec<&'a Policy> {
        let all = self.restricting(&key.namespace, direction);
        let mut all: Vec<&Policy> =
            all.filter(|policy| self.is_selected(&policy.subject, key, pod)).collect();
        all.sort_by_key(|policy| (policy.tier, &policy.id));
        all
    }

    /// The policies of a pod's namespace about additional networks of this pod and a direction, whichever pods they select.
    pub(crate) fn restricting_on<'a>(
        &'a self,
        namespace: &'a str,
        networks: &'a [String],
        direction: Direction,
    ) -> impl Iterator<Item = &'a Policy> {
        let first = PolicyId::multi_network(namespace, "");
        let of_kind = self.policies.range(first..).map(|(_, policy)| policy);
        let of_namespace = of_kind.take_while(move |policy| {
            policy.id.kind == PolicyKind::MultiNetworkPolicy && policy.id.namespace == namespace
        });
        of_namespace.filter(move |policy| {
            let is_about = |about: &BTreeSet<String>| networks.iter().any(|network| about.contains(network));
            policy.networks.as_ref().is_some_and(is_about) && policy.rules(direction).is_some()
        })
    }

    /// The policies about a pod's interface on additional networks, and a direction.
    pub(crate) fn about_on<'a>(
        &'a self,
        key: &'a PodKey,
        pod: &PolicyPod,
        networks: &'a [String],
        direction: Direction,
    ) -> Vec<&'a Policy> {
        let all = self.restricting_on(&key.namespace, networks, direction);
        all.filter(|policy| self.is_selected(&policy.subject, key, pod)).collect()
    }

    /// Prepares the sets of pods that rules refer to, and drops others.
    pub(crate) fn retain_peer_sets(&mut self, used: PeerSets) {
        self.peer_sets = std::mem::take(&mut self.peer_sets).replaced_by(used, &self.pods, &self.namespaces);
    }

    pub(crate) fn is_selected(&self, selector: &PodSelector, key: &PodKey, pod: &PolicyPod) -> bool {
        is_selected(selector, key, pod, self.namespaces.get(&key.namespace))
    }

    /// Whether the labels of a namespace are known.
    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }
}

impl PolicyPod {
    /// Its addresses on any of these additional networks.
    pub(crate) fn addresses_on(&self, networks: &BTreeSet<String>) -> Vec<IpAddr> {
        let on = self.networks.iter().filter(|(network, _)| networks.contains(*network));
        let all: BTreeSet<IpAddr> = on.flat_map(|(_, addresses)| addresses).copied().collect();
        all.into_iter().collect()
    }
}

fn networks_of(all: &BTreeMap<PodKey, (String, PodNetworks)>, key: &PodKey, uid: &str) -> PodNetworks {
    let of_pod = all.get(key).filter(|(of, _)| of == uid);
    of_pod.map(|(_, networks)| networks.clone()).unwrap_or_default()
}

/// Whether a selector selects a pod of this namespace. A namespace that is not known has no labels to select.
pub(crate) fn is_selected(
    selector: &PodSelector,
    key: &PodKey,
    pod: &PolicyPod,
    namespace: Option<&PolicyNamespace>,
) -> bool {
    let in_namespace = match &selector.namespaces {
        Namespaces::Named(name) => *name == key.namespace,
        Namespaces::Labelled(labels) => namespace.is_some_and(|namespace| labels.matches(&namespace.labels)),
    };
    in_namespace && selector.pods.matches(&pod.labels)
}
