//! Policies, namespaces and pods, as far as a node needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::drop_logs::DropLogTarget;
use crate::isolation::app;
use crate::labels::Labels;
use crate::members::PeerSets;
use crate::node::NodeRules;
use crate::pods::{GroupKey, PodView, Pods};
use crate::policy::{Direction, NamedPort, Namespaces, PodSelector, Policy, PolicyId, PolicyKind, Tier};
use crate::selectors::SelectorIndex;

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
    /// Whether compiled rules about additional networks refer to it as a peer.
    pub is_network_peer: bool,
}

/// Policies, namespaces and pods, and what follows from them for the pods of this node.
///
/// A change computes only what it affects ([`PolicyIndex::take_changes`]). A list of everything computes everything.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Inputs", into = "Inputs")]
pub struct PolicyIndex {
    pub(crate) policies: BTreeMap<PolicyId, Policy>,
    /// The policies about the cluster network by the pods that they select.
    subjects: SelectorIndex<PolicyId>,
    pub(crate) namespaces: BTreeMap<String, PolicyNamespace>,
    pub(crate) pods: Pods,
    /// The pods that peers select in rules about additional networks.
    pub(crate) network_peer_sets: PeerSets,
    isolated_namespaces: usize,
    /// The number of pods with an app label.
    app_pods: usize,
    /// What requests logs of dropped packets.
    pub(crate) drop_logs: BTreeSet<DropLogTarget>,
    pub(crate) node: NodeRules,
}

/// What the rest of an index follows from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Inputs {
    #[serde(with = "knit_model::serde_pairs")]
    policies: BTreeMap<PolicyId, Policy>,
    namespaces: BTreeMap<String, PolicyNamespace>,
    #[serde(with = "knit_model::serde_pairs")]
    pods: BTreeMap<PodKey, PolicyPod>,
    #[serde(with = "knit_model::serde_pairs")]
    pod_networks: BTreeMap<PodKey, (String, PodNetworks)>,
    #[serde(default)]
    network_peer_sets: PeerSets,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    drop_logs: BTreeSet<DropLogTarget>,
    /// The pods of this node by name and uid, each with the number of its sandboxes.
    #[serde(default)]
    local: Vec<(PodKey, String, usize)>,
}

impl From<Inputs> for PolicyIndex {
    fn from(inputs: Inputs) -> Self {
        let Inputs { policies, namespaces, pods, pod_networks, network_peer_sets, drop_logs, local } = inputs;
        let mut index = Self { network_peer_sets, drop_logs, ..Self::default() };
        index.pods.set_all_networks(pod_networks);
        index.add_policies(policies.into_values());
        index.replace_namespaces(namespaces);
        index.node.set_local(local);
        index.replace_pods(pods);
        index.rebuild();
        index.take_changes();
        index
    }
}

impl From<PolicyIndex> for Inputs {
    fn from(index: PolicyIndex) -> Self {
        Self {
            pods: index.pods.iter().map(|pod| (pod.key(), pod.to_pod())).collect(),
            pod_networks: index.pods.all_networks().clone(),
            local: index.node.local(),
            policies: index.policies,
            namespaces: index.namespaces,
            network_peer_sets: index.network_peer_sets,
            drop_logs: index.drop_logs,
        }
    }
}

impl PartialEq for PolicyIndex {
    fn eq(&self, other: &Self) -> bool {
        Inputs::from(self.clone()) == Inputs::from(other.clone())
    }
}

impl Eq for PolicyIndex {}

impl PolicyIndex {
    /// Replaces all policies of a kind.
    pub fn set_policies(&mut self, kind: PolicyKind, policies: Vec<Policy>) {
        let old: Vec<PolicyId> = self.policies.keys().filter(|id| id.kind == kind).cloned().collect();
        old.iter().for_each(|id| drop(self.replace_policy(id, None)));
        self.add_policies(policies);
        self.rebuild();
    }

    fn add_policies(&mut self, policies: impl IntoIterator<Item = Policy>) {
        for policy in policies {
            self.replace_policy(&policy.id.clone(), Some(policy));
        }
    }

    /// Adds or replaces a policy. Returns whether it differs from before.
    pub fn apply_policy(&mut self, policy: Policy) -> bool {
        if self.policies.get(&policy.id) == Some(&policy) {
            return false;
        }
        self.change_policy(&policy.id.clone(), Some(policy));
        true
    }

    /// Removes a policy. Returns whether it was known.
    pub fn remove_policy(&mut self, id: &PolicyId) -> bool {
        let is_known = self.policies.contains_key(id);
        if is_known {
            self.change_policy(id, None);
        }
        is_known
    }

    fn change_policy(&mut self, id: &PolicyId, policy: Option<Policy>) {
        let old = self.replace_policy(id, policy);
        let of_apps = |policy: &Policy| policy.tier == Tier::Namespace && policy.ingress.is_some();
        let both = [old.as_ref(), self.policies.get(id)];
        let ends_isolation = both.into_iter().flatten().any(of_apps);
        if id.kind == PolicyKind::MultiNetworkPolicy {
            return;
        }
        if ends_isolation && self.app_pods > 0 {
            self.update_segments(&id.namespace);
        }
        self.update_rules_of(id, old.as_ref());
    }

    fn replace_policy(&mut self, id: &PolicyId, policy: Option<Policy>) -> Option<Policy> {
        let is_on_cluster = |policy: &&Policy| policy.networks.is_none();
        if let Some(policy) = policy.as_ref().filter(is_on_cluster) {
            if let Some(old) = self.policies.get(id).filter(is_on_cluster) {
                self.subjects.remove(&old.subject, id);
            }
            self.subjects.insert(&policy.subject, id);
        } else if let Some(old) = self.policies.get(id).filter(is_on_cluster) {
            self.subjects.remove(&old.subject, id);
        }
        match policy {
            Some(policy) => self.policies.insert(id.clone(), policy),
            None => self.policies.remove(id),
        }
    }

    /// Whether there is any policy.
    pub fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }

    /// Whether there is any policy about the cluster network, or about additional networks.
    pub fn has_policies_on(&self, additional: bool) -> bool {
        // These sort last.
        let is_additional = |id: Option<&PolicyId>| id.map(|id| id.kind == PolicyKind::MultiNetworkPolicy);
        match additional {
            true => is_additional(self.policies.keys().next_back()) == Some(true),
            false => is_additional(self.policies.keys().next()) == Some(false),
        }
    }

    /// Whether any namespace is isolated.
    pub fn has_isolated_namespaces(&self) -> bool {
        self.isolated_namespaces > 0
    }

    /// Whether any pod or namespace is isolated.
    pub(crate) fn isolates(&self) -> bool {
        self.app_pods > 0 || self.has_isolated_namespaces()
    }

    /// Replaces all namespaces.
    pub fn set_namespaces(&mut self, namespaces: BTreeMap<String, PolicyNamespace>) {
        self.replace_namespaces(namespaces);
        self.rebuild_network_peers(|_| true);
        self.rebuild();
    }

    fn replace_namespaces(&mut self, namespaces: BTreeMap<String, PolicyNamespace>) {
        self.isolated_namespaces = namespaces.values().filter(|namespace| namespace.isolated).count();
        self.namespaces = namespaces;
    }

    /// Adds, changes or removes a namespace. Returns whether it differs from before.
    pub fn set_namespace(&mut self, name: &str, namespace: Option<PolicyNamespace>) -> bool {
        if self.namespaces.get(name) == namespace.as_ref() {
            return false;
        }
        let isolated = self.isolates();
        let peers = self.peers_of_groups(name);
        let is_isolated = namespace.as_ref().is_some_and(|namespace| namespace.isolated);
        let was_isolated = match namespace {
            Some(namespace) => self.namespaces.insert(name.to_owned(), namespace),
            None => self.namespaces.remove(name),
        };
        self.touch_peers_of_groups(&peers);
        let was_isolated = was_isolated.is_some_and(|before| before.isolated);
        self.isolated_namespaces += usize::from(is_isolated);
        self.isolated_namespaces -= usize::from(was_isolated);
        self.set_isolated(name, was_isolated);
        self.update_segments(name);
        let is_affected = |key: &PodKey| key.namespace == name;
        self.update_local(|key| is_affected(key));
        self.on_isolation(isolated);
        self.rebuild_network_peers(|selector| matches!(selector.namespaces, Namespaces::Labelled(_)));
        true
    }

    fn rebuild_network_peers(&mut self, is_affected: fn(&PodSelector) -> bool) {
        self.network_peer_sets.rebuild(&self.pods, &self.namespaces, is_affected);
    }

    /// Replaces all pods.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = (PodKey, PolicyPod)>) {
        self.replace_pods(pods);
        self.rebuild_network_peers(|_| true);
        self.rebuild();
    }

    fn replace_pods(&mut self, pods: impl IntoIterator<Item = (PodKey, PolicyPod)>) {
        self.pods.clear();
        self.app_pods = 0;
        for (key, pod) in pods {
            self.app_pods += usize::from(app(&pod.labels).is_some());
            self.pods.remove(&key);
            self.pods.insert(&key, pod);
        }
    }

    /// Replaces the addresses of all pods on additional networks, each with the pod's uid.
    pub fn set_all_pod_networks(&mut self, all: impl IntoIterator<Item = (PodKey, (String, PodNetworks))>) {
        self.pods.set_all_networks(all.into_iter().collect());
        self.rebuild_network_peers(|_| true);
    }

    /// Changes the addresses of a pod on additional networks; `None`: it has none any more.
    pub fn set_pod_networks(&mut self, key: &PodKey, networks: Option<(String, PodNetworks)>) -> PodUpdate {
        let before = self.pods.get(&key.namespace, &key.name).and_then(|pod| pod.networks().cloned());
        let mut is_network_peer = self.change_network_peer(key, false);
        self.pods.set_networks(key, networks);
        is_network_peer |= self.change_network_peer(key, true);
        let after = self.pods.get(&key.namespace, &key.name).and_then(|pod| pod.networks().cloned());
        let changed = before != after;
        PodUpdate { changed, is_network_peer: changed && is_network_peer }
    }

    /// Adds a pod to the sets of peers on additional networks, or removes it. Returns whether one selects it.
    fn change_network_peer(&mut self, key: &PodKey, is_added: bool) -> bool {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return false };
        if pod.networks().is_none() {
            return false;
        }
        let namespace = self.namespaces.get(&key.namespace);
        match is_added {
            true => self.network_peer_sets.add(pod, namespace),
            false => self.network_peer_sets.remove(pod, namespace),
        }
    }

    /// Adds, changes or removes a pod.
    pub fn set_pod(&mut self, key: &PodKey, pod: Option<PolicyPod>) -> PodUpdate {
        let before = self.pods.get(&key.namespace, &key.name).map(|pod| pod.to_pod());
        let is_same = match (&before, &pod) {
            (Some(before), Some(pod)) => {
                let networks = before.networks.clone();
                *before == PolicyPod { networks, ..pod.clone() }
            }
            (before, pod) => before.is_none() && pod.is_none(),
        };
        if is_same {
            return PodUpdate::default();
        }
        let mut update = PodUpdate { changed: true, ..PodUpdate::default() };
        let isolated = self.isolates();
        let elements = self.elements_about(key);
        update.is_network_peer |= self.change_network_peer(key, false);
        let mut gone = None;
        if let Some(before) = &before {
            self.app_pods -= usize::from(app(&before.labels).is_some());
            gone = self.pods.remove(key).and_then(|group| group.segment);
        }
        if let Some(pod) = pod {
            self.app_pods += usize::from(app(&pod.labels).is_some());
            let (group, is_new) = self.pods.insert(key, pod);
            if is_new {
                self.set_segment(group);
            }
        }
        self.release_segment(gone);
        update.is_network_peer |= self.change_network_peer(key, true);
        self.touch_difference(&elements, key);
        self.update_local(|local| local == key);
        self.on_isolation(isolated);
        update
    }

    /// Forgets all pods.
    pub fn forget_pods(&mut self) {
        self.set_pods([]);
    }

    /// A pod.
    pub fn pod(&self, key: &PodKey) -> Option<PodView<'_>> {
        self.pods.get(&key.namespace, &key.name)
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
    pub(crate) fn about(&self, group: &GroupKey, direction: Direction) -> Vec<&Policy> {
        let all = self.subjects.candidates(&group.namespace, &group.labels);
        let all = all.filter_map(|id| self.policies.get(id));
        let all = all.filter(|policy| policy.rules(direction).is_some());
        let mut all: Vec<&Policy> = all.filter(|policy| self.selects(&policy.subject, group)).collect();
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
        pod: PodView<'a>,
        networks: &'a [String],
        direction: Direction,
    ) -> Vec<&'a Policy> {
        let all = self.restricting_on(pod.namespace(), networks, direction);
        all.filter(|policy| self.selects(&policy.subject, &pod.group().key)).collect()
    }

    /// Whether a selector selects the pods of a group.
    pub(crate) fn selects(&self, selector: &PodSelector, group: &GroupKey) -> bool {
        is_selected(selector, &group.namespace, &group.labels, self.namespaces.get(&group.namespace))
    }

    pub(crate) fn selects_pod(&self, selector: &PodSelector, pod: PodView<'_>) -> bool {
        self.selects(selector, &pod.group().key)
    }

    /// Whether the labels of a namespace are known.
    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }
}

/// Whether a selector selects a pod of this namespace. A namespace that is not known has no labels to select.
pub(crate) fn is_selected(
    selector: &PodSelector,
    of: &str,
    labels: &Labels,
    namespace: Option<&PolicyNamespace>,
) -> bool {
    let in_namespace = match &selector.namespaces {
        Namespaces::Named(name) => name == of,
        Namespaces::Labelled(selector) => {
            namespace.is_some_and(|namespace| selector.matches(&namespace.labels))
        }
    };
    in_namespace && selector.pods.matches(labels)
}
