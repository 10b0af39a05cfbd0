//! The rules that policies need on one node, kept up to date change by change.
//!
//! A chain exists as long as a pod of this node uses it, a set as long as a rule refers to it. A change computes the chains of the
//! pods of this node that it can affect, and only names the chains, sets and elements that may differ: what they are is computed
//! when it is asked for, so several changes in between cost no more than one. The members of a set are not kept: whether an
//! address is one follows from the pods that have it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::filter::field::{DataType, IpFamily, Value};
use knit_model::filter::rule::{FilterRule, Verdict};
use knit_model::filter::{ElementData, ElementKey, FilterSet, KeyPart};

use crate::compile::{Compiler, LocalPod, NodePolicies, chain_name, peer_element, shortened};
use crate::drop_logs::DropLogTarget;
use crate::index::{PodKey, PolicyIndex};
use crate::isolation::Segment;
use crate::members::{Member, PeerSet};
use crate::pods::{GroupId, PodView};
use crate::policy::{Direction, NamedPort, Namespaces, Policy, PolicyId, PolicyKind, Tier};
use crate::report::{DropReason, DropRule, drops_of};
use crate::selectors::SelectorIndex;
use crate::tables::{CLOSED, Element, ISOLATED_REMOTE, PodChains, PolicyTables, element};

/// What may differ from before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChanges {
    /// Whether it may be anything: there was a list.
    pub everything: bool,
    /// Pods of this node that use other chains.
    pub pods: BTreeSet<PodKey>,
    /// Chains that are new, have other rules, or are not used any more.
    pub chains: BTreeSet<String>,
    /// Sets that are new or not used any more.
    pub sets: BTreeSet<String>,
    /// Elements of other sets.
    pub elements: BTreeSet<ElementKey>,
}

/// The rules of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeRules {
    /// The pods of this node by name and uid.
    local: BTreeMap<PodKey, BTreeMap<String, LocalState>>,
    chains: BTreeMap<String, Chain>,
    chains_by_policy: BTreeMap<PolicyId, BTreeSet<String>>,
    /// Chains whose policies changed and that were not compiled since.
    stale: BTreeSet<String>,
    peers: BTreeMap<String, Peers>,
    /// The sets of peers by the pods that they select.
    selectors: SelectorIndex<String>,
    constants: BTreeMap<String, Constants>,
    /// All segments of the cluster, each with the number of groups of pods in it, and one more for an isolated namespace.
    segments: BTreeMap<Segment, usize>,
    changes: PolicyChanges,
}

#[derive(Clone, Debug, Default)]
struct LocalState {
    sandboxes: usize,
    chains: PodChains,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    rules: Vec<FilterRule>,
    /// The number of pods and chains that lead to it.
    users: usize,
    /// The chain that it continues with.
    next: Option<String>,
    policies: Vec<PolicyId>,
    /// Sets of peers and of constants.
    sets: BTreeSet<String>,
}

/// A set of pods that rules refer to.
#[derive(Clone, Debug)]
struct Peers {
    set: PeerSet,
    users: usize,
}

/// A set of ranges or ports that rules refer to.
#[derive(Clone, Debug)]
struct Constants {
    declaration: FilterSet,
    elements: Vec<Element>,
    users: usize,
}

/// A direction of some pods with the same policies.
#[derive(Clone, Copy)]
struct Restricted<'a> {
    namespace: &'a str,
    ports: &'a [NamedPort],
    direction: Direction,
}

impl PolicyIndex {
    /// What may differ since the last call.
    pub fn take_changes(&mut self) -> PolicyChanges {
        std::mem::take(&mut self.node.changes)
    }

    /// A sandbox of a pod appeared on this node.
    pub fn add_local(&mut self, pod: LocalPod<'_>) {
        let key = PodKey { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() };
        let is_first = !self.node.local.contains_key(&key);
        let of_pod = self.node.local.entry(key.clone()).or_default();
        of_pod.entry(pod.uid.to_owned()).or_default().sandboxes += 1;
        self.on_local(&key, is_first);
    }

    /// A sandbox of a pod is gone.
    pub fn remove_local(&mut self, pod: LocalPod<'_>) {
        let key = PodKey { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() };
        let Some(of_pod) = self.node.local.get_mut(&key) else { return };
        let Some(state) = of_pod.get_mut(pod.uid) else { return };
        state.sandboxes = state.sandboxes.saturating_sub(1);
        if state.sandboxes > 0 {
            return;
        }
        let chains = of_pod.remove(pod.uid).map(|state| state.chains).unwrap_or_default();
        let is_last = of_pod.is_empty();
        if is_last {
            self.node.local.remove(&key);
        }
        self.node.release_pod(&chains);
        self.on_local(&key, is_last);
    }

    /// A pod is on this node from now on, or no longer.
    fn on_local(&mut self, key: &PodKey, changed: bool) {
        if changed && let Some(pod) = self.pod(key) {
            let addresses: Vec<ElementKey> = pod.addresses().map(isolated_key).collect();
            self.node.changes.elements.extend(addresses);
        }
        self.update_local(|local| local == key);
    }

    /// The policies of the given pods, which are those of this node from now on.
    pub fn compile<'a>(&mut self, local: impl IntoIterator<Item = LocalPod<'a>>) -> NodePolicies {
        let local: Vec<LocalPod<'a>> = local.into_iter().collect();
        let before = self.node.local();
        local.iter().for_each(|pod| self.add_local(*pod));
        for (key, uid, sandboxes) in &before {
            let pod = LocalPod { namespace: &key.namespace, name: &key.name, uid };
            (0..*sandboxes).for_each(|_| self.remove_local(pod));
        }
        let elements = self.node.constants.values().flat_map(|set| set.elements.iter().cloned());
        NodePolicies {
            pods: local.into_iter().map(|pod| self.local_chains(pod)).collect(),
            tables: self.tables(),
            elements: elements.collect(),
        }
    }

    /// The chains of a pod of this node.
    pub fn local_chains(&self, pod: LocalPod<'_>) -> PodChains {
        let key = PodKey { namespace: pod.namespace.to_owned(), name: pod.name.to_owned() };
        let state = self.node.local.get(&key).and_then(|of_pod| of_pod.get(pod.uid));
        state.map(|state| state.chains.clone()).unwrap_or_default()
    }

    /// The chains of all pods of this node.
    pub fn all_local_chains(&self) -> impl Iterator<Item = (&PodKey, &PodChains)> {
        let all = self.node.local.iter();
        all.flat_map(|(key, of_pod)| of_pod.values().map(move |state| (key, &state.chains)))
    }

    /// All chains and sets.
    pub fn tables(&self) -> PolicyTables {
        let node = &self.node;
        let chains = node.chains.iter().map(|(name, chain)| (name.clone(), chain.rules.clone()));
        let peers = node.peers.iter().flat_map(|(name, peers)| {
            IpFamily::ALL.map(|family| (family.suffixed(name), peers.set.declaration(family)))
        });
        let constants = node.constants.iter().map(|(name, set)| (name.clone(), set.declaration.clone()));
        PolicyTables { chains: chains.collect(), sets: peers.chain(constants).collect() }
    }

    /// Whether there are rules for this node: a policy restricts a pod here, or pods are isolated, here or elsewhere.
    pub fn has_chains(&self) -> bool {
        !self.node.chains.is_empty()
    }

    /// The rules of a chain, as long as it is used.
    pub fn chain(&self, name: &str) -> Option<&[FilterRule]> {
        self.node.chains.get(name).map(|chain| chain.rules.as_slice())
    }

    /// A chain, and those that connections continue with.
    pub fn chains_from(&self, first: &str) -> Vec<String> {
        let next = |name: &String| self.node.chains.get(name)?.next.clone();
        std::iter::successors(Some(first.to_owned()), next).collect()
    }

    /// The declaration of a set, as long as it is used.
    pub fn set(&self, name: &str) -> Option<FilterSet> {
        if let Some(constants) = self.node.constants.get(name) {
            return Some(constants.declaration.clone());
        }
        let (peers, family) = self.peers(name)?;
        Some(peers.set.declaration(family))
    }

    /// The set of peers with this name, which ends with a family.
    fn peers(&self, name: &str) -> Option<(&Peers, IpFamily)> {
        let peers = self.node.peers.get(IpFamily::without_suffix(name)?)?;
        let family = IpFamily::ALL.into_iter().find(|family| name.ends_with(&family.suffixed("")))?;
        Some((peers, family))
    }

    /// The elements of a set.
    pub fn elements_of_set(&self, name: &str) -> Vec<Element> {
        if let Some(constants) = self.node.constants.get(name) {
            return constants.elements.clone();
        }
        let (Some((peers, _)), Some(stem)) = (self.peers(name), IpFamily::without_suffix(name)) else {
            return Vec::new();
        };
        let members = self.members(&peers.set).into_iter();
        members.map(|member| peer_element(stem, &member)).filter(|(key, _)| key.set == name).collect()
    }

    fn members(&self, set: &PeerSet) -> BTreeSet<Member> {
        let groups: Vec<_> = match &set.selector.namespaces {
            Namespaces::Named(namespace) => self.pods.groups_of(namespace).collect(),
            Namespaces::Labelled(_) => self.pods.groups().collect(),
        };
        let selected = groups.into_iter().filter(|(_, group)| self.selects(&set.selector, &group.key));
        let pods = selected.flat_map(|(_, group)| self.pods.pods_of(group));
        pods.flat_map(|pod| set.members(pod)).collect()
    }

    /// An element that no pod of this node owns, if it is in its set.
    pub fn element(&self, key: &ElementKey) -> Option<ElementData> {
        if let Some(constants) = self.node.constants.get(&key.set) {
            return constants.elements.iter().find(|(one, _)| one == key).map(|(_, data)| data.clone());
        }
        let Some(KeyPart::One(Value::Address(address))) = key.key.first() else { return None };
        if key.set == IpFamily::of(*address).suffixed(ISOLATED_REMOTE) {
            // A pod that starts may have the address of one that ended.
            let pods = self.pods.at(*address).filter(|pod| !self.node.local.contains_key(&pod.key()));
            let segments = pods.filter_map(|pod| Some((pod.key(), self.segment_of(pod)?)));
            let (_, segment) = segments.max_by(|(key, _), (other, _)| key.cmp(other))?;
            return Some(ElementData::Verdict(Verdict::Jump(segment.chain())));
        }
        let (peers, _) = self.peers(&key.set)?;
        let stem = IpFamily::without_suffix(&key.set)?;
        let mut pods = self.pods.at(*address).filter(|pod| self.selects_pod(&peers.set.selector, *pod));
        let has_it = |pod: PodView<'_>| {
            let mut members = peers.set.members(pod).into_iter();
            members.any(|member| peer_element(stem, &member).0 == *key)
        };
        pods.any(has_it).then_some(ElementData::Key)
    }

    /// The addresses of pods that the compiled rules refer to.
    pub fn peer_elements(&self) -> Vec<Element> {
        let sets = self.node.peers.keys().flat_map(|name| IpFamily::ALL.map(|family| family.suffixed(name)));
        let mut all: Vec<Element> = sets.flat_map(|name| self.elements_of_set(&name)).collect();
        let isolated = self.pods.groups().filter(|(_, group)| group.segment.is_some());
        let addresses =
            isolated.flat_map(|(_, group)| self.pods.pods_of(group)).flat_map(|pod| pod.addresses());
        let keys: BTreeSet<ElementKey> = addresses.map(isolated_key).collect();
        all.extend(keys.into_iter().filter_map(|key| self.element(&key).map(|data| (key, data))));
        all
    }

    /// What requests logs of dropped packets.
    pub fn drop_logs(&self) -> &BTreeSet<DropLogTarget> {
        &self.drop_logs
    }

    /// Changes what requests logs of dropped packets.
    pub fn set_drop_logs(&mut self, targets: BTreeSet<DropLogTarget>) {
        if self.drop_logs == targets {
            return;
        }
        self.drop_logs = targets;
        self.compile_with(|node, index| {
            node.stale = node.chains.keys().cloned().collect();
            node.compile_segments(index);
        });
        self.update_local(|_| true);
        self.node.stale.clear();
    }

    /// Computes everything again.
    pub(crate) fn rebuild(&mut self) {
        let groups: Vec<GroupId> = self.pods.groups().map(|(id, _)| id).collect();
        let before = std::mem::take(&mut self.node);
        let queued = before.changes.pods.clone();
        for (key, of_pod) in &before.local {
            let state =
                |state: &LocalState| LocalState { sandboxes: state.sandboxes, ..LocalState::default() };
            let of_pod = of_pod.iter().map(|(uid, one)| (uid.clone(), state(one))).collect();
            self.node.local.insert(key.clone(), of_pod);
        }
        groups.into_iter().for_each(|group| self.set_segment(group));
        let isolated: Vec<String> =
            self.namespaces.iter().filter(|(_, one)| one.isolated).map(|(name, _)| name.clone()).collect();
        isolated.iter().for_each(|name| self.set_isolated(name, false));
        self.update_local(|_| true);
        let differs = |key: &PodKey| {
            let chains = |node: &NodeRules| -> Option<Vec<(String, PodChains)>> {
                let all = node.local.get(key)?.iter();
                Some(all.map(|(uid, state)| (uid.clone(), state.chains.clone())).collect())
            };
            chains(&before) != chains(&self.node)
        };
        let changed: BTreeSet<PodKey> = self.node.local.keys().filter(|key| differs(key)).cloned().collect();
        let changes = &mut self.node.changes;
        *changes = PolicyChanges { everything: true, pods: queued, ..PolicyChanges::default() };
        changes.pods.extend(changed);
    }

    /// Runs a computation that changes the rules of this node.
    fn compile_with(&mut self, compute: impl FnOnce(&mut NodeRules, &Self)) {
        let mut node = std::mem::take(&mut self.node);
        compute(&mut node, self);
        self.node = node;
    }

    /// Computes the chains of some pods of this node.
    pub(crate) fn update_local(&mut self, is_affected: impl Fn(&PodKey) -> bool) {
        let affected: Vec<PodKey> = self.node.local.keys().filter(|key| is_affected(key)).cloned().collect();
        self.compile_with(|node, index| affected.iter().for_each(|key| node.compile_pod(index, key)));
    }

    /// A policy changed: computes its chains, and those of the pods that it selects or selected.
    pub(crate) fn update_rules_of(&mut self, id: &PolicyId, old: Option<&Policy>) {
        let chains = self.node.chains_by_policy.get(id).cloned().unwrap_or_default();
        self.node.stale.extend(chains);
        let subjects: Vec<_> =
            [old, self.policies.get(id)].into_iter().flatten().map(|policy| &policy.subject).collect();
        let is_affected = |key: &PodKey| {
            let in_namespace = id.kind != PolicyKind::NetworkPolicy || key.namespace == id.namespace;
            // Whether an unknown pod is closed depends on all policies that could be about it.
            let is_known = |pod: &PodView<'_>| {
                let all = self.node.local.get(key).into_iter().flatten();
                self.knows_namespace(&key.namespace) && all.into_iter().all(|(uid, _)| pod.has_uid(uid))
            };
            in_namespace
                && self
                    .pod(key)
                    .filter(is_known)
                    .is_none_or(|pod| subjects.iter().any(|subject| self.selects_pod(subject, pod)))
        };
        let affected: BTreeSet<PodKey> =
            self.node.local.keys().filter(|key| is_affected(key)).cloned().collect();
        self.update_local(|key| affected.contains(key));
        self.node.stale.clear();
    }

    /// Isolation may begin or end in the cluster: then all pods are affected.
    pub(crate) fn on_isolation(&mut self, before: bool) {
        if before != self.isolates() {
            self.update_local(|_| true);
        }
    }

    /// A namespace is isolated, or was.
    pub(crate) fn set_isolated(&mut self, name: &str, before: bool) {
        let now = self.namespaces.get(name).is_some_and(|namespace| namespace.isolated);
        let segment = Segment::Namespace(name.to_owned());
        match (before, now) {
            (false, true) => self.acquire_segment(&segment),
            (true, false) => self.release_segment(Some(segment)),
            _ => {}
        }
    }

    /// Computes the segment of a new group.
    pub(crate) fn set_segment(&mut self, id: GroupId) {
        let segment = self.pods.group(id).and_then(|group| self.segment_of_group(&group.key));
        if let Some(segment) = &segment {
            self.acquire_segment(segment);
        }
        self.pods.set_segment(id, segment);
    }

    /// Policies or the namespace changed: computes the segments of its groups.
    pub(crate) fn update_segments(&mut self, namespace: &str) {
        let groups: Vec<GroupId> = self.pods.groups_of(namespace).map(|(id, _)| id).collect();
        for id in groups {
            let Some(group) = self.pods.group(id) else { continue };
            let (before, now) = (group.segment.clone(), self.segment_of_group(&group.key));
            if before == now {
                continue;
            }
            let addresses = self.pods.pods_of(group).flat_map(|pod| pod.addresses());
            let keys: Vec<ElementKey> = addresses.map(isolated_key).collect();
            self.node.changes.elements.extend(keys);
            self.set_segment(id);
            self.release_segment(before);
        }
    }

    fn acquire_segment(&mut self, segment: &Segment) {
        let count = self.node.segments.entry(segment.clone()).or_default();
        *count += 1;
        if *count == 1 {
            self.compile_with(|node, index| node.compile_segment(index, segment));
        }
    }

    pub(crate) fn release_segment(&mut self, segment: Option<Segment>) {
        let Some(segment) = segment else { return };
        let Some(count) = self.node.segments.get_mut(&segment) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.node.segments.remove(&segment);
            self.node.release_chain(&segment.chain());
        }
    }

    /// The elements of a pod that no pod of this node owns, each with the segment, if it is about one.
    pub(crate) fn elements_about(&self, key: &PodKey) -> BTreeSet<(ElementKey, Option<Segment>)> {
        let Some(pod) = self.pod(key) else { return BTreeSet::new() };
        let of_sets = self.selecting(pod).into_iter().flat_map(|(name, peers)| {
            let members = peers.set.members(pod).into_iter();
            members.map(move |member| (peer_element(name, &member).0, None))
        });
        let segment = self.segment_of(pod);
        let addresses = segment.iter().flat_map(|_| pod.addresses());
        of_sets.chain(addresses.map(|address| (isolated_key(address), segment.clone()))).collect()
    }

    /// The sets of peers that select a pod.
    fn selecting(&self, pod: PodView<'_>) -> Vec<(&String, &Peers)> {
        let node = &self.node;
        let candidates = node.selectors.candidates(pod.namespace(), pod.labels());
        let all = candidates.filter_map(|name| node.peers.get_key_value(name));
        all.filter(|(_, peers)| self.selects_pod(&peers.set.selector, pod)).collect()
    }

    /// A pod changed: what it adds now is not what it added before.
    pub(crate) fn touch_difference(
        &mut self,
        before: &BTreeSet<(ElementKey, Option<Segment>)>,
        key: &PodKey,
    ) {
        let now = self.elements_about(key);
        let different = before.symmetric_difference(&now).map(|(key, _)| key.clone());
        self.node.changes.elements.extend(different);
    }

    /// The sets of peers that select pods of each group of a namespace.
    pub(crate) fn peers_of_groups(&self, namespace: &str) -> BTreeMap<GroupId, BTreeSet<String>> {
        let names =
            |pod: PodView<'_>| self.selecting(pod).into_iter().map(|(name, _)| name.clone()).collect();
        let groups = self.pods.groups_of(namespace);
        groups.filter_map(|(id, group)| Some((id, names(self.pods.pods_of(group).next()?)))).collect()
    }

    /// A namespace changed: other sets select its pods.
    pub(crate) fn touch_peers_of_groups(&mut self, before: &BTreeMap<GroupId, BTreeSet<String>>) {
        let mut touched = Vec::new();
        for (id, before) in before {
            let Some(group) = self.pods.group(*id) else { continue };
            let Some(first) = self.pods.pods_of(group).next() else { continue };
            let now: BTreeSet<String> =
                self.selecting(first).into_iter().map(|(name, _)| name.clone()).collect();
            for name in before.symmetric_difference(&now) {
                let Some(peers) = self.node.peers.get(name) else { continue };
                let members = self.pods.pods_of(group).flat_map(|pod| peers.set.members(pod));
                touched.extend(members.map(|member| peer_element(name, &member).0));
            }
        }
        self.node.changes.elements.extend(touched);
    }
}

impl NodeRules {
    /// The pods of this node by name and uid, each with the number of its sandboxes.
    pub(crate) fn local(&self) -> Vec<(PodKey, String, usize)> {
        let all =
            self.local.iter().flat_map(|(key, of_pod)| of_pod.iter().map(move |(uid, one)| (key, uid, one)));
        all.map(|(key, uid, state)| (key.clone(), uid.clone(), state.sandboxes)).collect()
    }

    pub(crate) fn set_local(&mut self, all: Vec<(PodKey, String, usize)>) {
        for (key, uid, sandboxes) in all {
            let state = LocalState { sandboxes, ..LocalState::default() };
            self.local.entry(key).or_default().insert(uid, state);
        }
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.keys()
    }

    fn compile_pod(&mut self, index: &PolicyIndex, key: &PodKey) {
        let uids: Vec<String> = self.local.get(key).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for uid in uids {
            let now = self.chains_of(index, key, &uid);
            let first = [&now.ingress, &now.egress].into_iter().flatten();
            first.for_each(|chain| self.acquire_chain(chain));
            let state = self.local.get_mut(key).and_then(|of_pod| of_pod.get_mut(&uid));
            let Some(state) = state else { continue };
            let before = std::mem::replace(&mut state.chains, now.clone());
            if before != now {
                self.changes.pods.insert(key.clone());
            }
            self.release_pod(&before);
        }
    }

    fn chains_of(&mut self, index: &PolicyIndex, key: &PodKey, uid: &str) -> PodChains {
        let known = index.pod(key).filter(|pod| pod.has_uid(uid));
        let [ingress, egress] = Direction::ALL.map(|direction| {
            let is_known = index.knows_namespace(&key.namespace);
            let mut restricting = index.restricting(&key.namespace, direction);
            match known.filter(|_| is_known || restricting.all(|policy| policy.tier == Tier::Namespace)) {
                Some(pod) => self.chain_of(index, pod, direction),
                None => {
                    // It may belong to an app.
                    let may_be_isolated = direction == Direction::Ingress && index.isolates();
                    let is_restricted = index.restricting(&key.namespace, direction).next().is_some();
                    (is_restricted || may_be_isolated).then(|| CLOSED.to_owned())
                }
            }
        });
        let segment = known.and_then(|pod| index.segment_of(pod)).map(|segment| segment.chain());
        PodChains { ingress, egress, segment, confined: index.isolates() }
    }

    /// The chain of a pod's policies about a direction.
    fn chain_of(&mut self, index: &PolicyIndex, pod: PodView<'_>, direction: Direction) -> Option<String> {
        let policies = index.about(&pod.group().key, direction);
        let of = Restricted { namespace: pod.namespace(), ports: pod.ports(), direction };
        let first_after_admins = policies.iter().position(|policy| policy.tier >= Tier::Namespace);
        let (admin, rest) = policies.split_at(first_after_admins.unwrap_or(policies.len()));
        // A Baseline policy is about pods without NetworkPolicies.
        let is_namespace = |policy: &&&Policy| policy.tier == Tier::Namespace;
        let has_namespace = rest.iter().any(|policy| policy.tier == Tier::Namespace);
        let rest: Vec<&Policy> =
            rest.iter().filter(|one| !has_namespace || is_namespace(one)).copied().collect();
        let rest = (!rest.is_empty()).then(|| self.compile_chain(index, &rest, None, of));
        match admin {
            [] => rest,
            admin => Some(self.compile_chain(index, admin, rest, of)),
        }
    }

    /// Compiles a chain unless it is there and its policies are those that it was compiled from.
    fn compile_chain(
        &mut self,
        index: &PolicyIndex,
        policies: &[&Policy],
        next: Option<String>,
        of: Restricted<'_>,
    ) -> String {
        let Restricted { namespace, ports, direction } = of;
        let name = chain_name(namespace, policies, next.as_ref(), ports, direction);
        let is_stale = self.stale.remove(&name);
        if self.chains.contains_key(&name) && !is_stale {
            return name;
        }
        let mut compiler = Compiler::new(index);
        let mut rules = compiler.rules(policies, next.clone(), ports, direction);
        if !index.drop_logs.is_empty() {
            let mut tables =
                PolicyTables { chains: [(name.clone(), rules)].into(), ..PolicyTables::default() };
            let drops = drops_of(&tables, &name, namespace, direction, policies);
            tables.log_drops(&drops, &index.drop_logs);
            rules = tables.chains.remove(&name).unwrap_or_default();
        }
        let ids = policies.iter().map(|policy| policy.id.clone()).collect();
        self.install(&name, Chain { rules, next, policies: ids, ..Chain::default() }, compiler);
        name
    }

    fn compile_segments(&mut self, index: &PolicyIndex) {
        let segments: Vec<Segment> = self.segments.keys().cloned().collect();
        segments.iter().for_each(|segment| self.compile_segment(index, segment));
    }

    fn compile_segment(&mut self, index: &PolicyIndex, segment: &Segment) {
        let mut compiler = Compiler::new(index);
        let name = segment.chain();
        let mut tables = PolicyTables::default();
        tables.chains.insert(name.clone(), compiler.segment(segment));
        let drop = DropRule {
            chain: name.clone(),
            comment: shortened(segment.title()),
            namespace: segment.namespace().to_owned(),
            direction: Direction::Ingress,
            reason: DropReason::Isolated(segment.clone()),
        };
        tables.log_drops(&[drop], &index.drop_logs);
        let rules = tables.chains.remove(&name).unwrap_or_default();
        // As long as there is a segment, its chain is used.
        self.install(&name, Chain { rules, users: 1, ..Chain::default() }, compiler);
    }

    /// Adds or replaces a chain. Sets that both versions use stay.
    fn install(&mut self, name: &str, mut chain: Chain, compiler: Compiler<'_>) {
        let Compiler { tables, elements, peer_sets, .. } = compiler;
        for (set, declared) in peer_sets.declared() {
            chain.sets.insert(set.clone());
            self.acquire_peers(set, declared);
        }
        let constants = tables.sets.into_iter().filter(|(set, _)| !is_of(set, &chain.sets));
        for (set, declaration) in constants.collect::<Vec<_>>() {
            self.acquire_constants(&set, declaration, &elements);
            chain.sets.insert(set);
        }
        for id in &chain.policies {
            self.chains_by_policy.entry(id.clone()).or_default().insert(name.to_owned());
        }
        let before = self.chains.remove(name);
        if before.as_ref().is_none_or(|before| before.rules != chain.rules) {
            self.changes.chains.insert(name.to_owned());
        }
        let (users, sets) = before.map(|before| (before.users, before.sets)).unwrap_or_default();
        let is_new = users == 0;
        chain.users = chain.users.max(users);
        if let Some(next) = chain.next.clone().filter(|_| is_new) {
            self.acquire_chain(&next);
        }
        self.chains.insert(name.to_owned(), chain);
        sets.iter().for_each(|set| self.release_set(set));
    }

    fn acquire_chain(&mut self, name: &str) {
        if let Some(chain) = self.chains.get_mut(name) {
            chain.users += 1;
        }
    }

    fn release_pod(&mut self, chains: &PodChains) {
        let first = [&chains.ingress, &chains.egress].into_iter().flatten();
        first.for_each(|chain| self.release_chain(chain));
    }

    fn release_chain(&mut self, name: &str) {
        let Some(chain) = self.chains.get_mut(name) else { return };
        chain.users = chain.users.saturating_sub(1);
        if chain.users > 0 {
            return;
        }
        let Some(chain) = self.chains.remove(name) else { return };
        self.changes.chains.insert(name.to_owned());
        for id in &chain.policies {
            if let Some(chains) = self.chains_by_policy.get_mut(id) {
                chains.remove(name);
                if chains.is_empty() {
                    self.chains_by_policy.remove(id);
                }
            }
        }
        chain.sets.iter().for_each(|set| self.release_set(set));
        if let Some(next) = &chain.next {
            self.release_chain(next);
        }
    }

    fn acquire_peers(&mut self, name: &str, set: &PeerSet) {
        if let Some(peers) = self.peers.get_mut(name) {
            peers.users += 1;
            return;
        }
        self.selectors.insert(&set.selector, &name.to_owned());
        self.peers.insert(name.to_owned(), Peers { set: set.clone(), users: 1 });
        self.changes.sets.extend(IpFamily::ALL.map(|family| family.suffixed(name)));
    }

    fn acquire_constants(&mut self, name: &str, declaration: FilterSet, elements: &[Element]) {
        if let Some(constants) = self.constants.get_mut(name) {
            constants.users += 1;
            return;
        }
        let elements = elements.iter().filter(|(key, _)| key.set == name).cloned().collect();
        self.constants.insert(name.to_owned(), Constants { declaration, elements, users: 1 });
        self.changes.sets.insert(name.to_owned());
    }

    fn release_set(&mut self, name: &str) {
        if let Some(constants) = self.constants.get_mut(name) {
            constants.users = constants.users.saturating_sub(1);
            if constants.users == 0 {
                self.constants.remove(name);
                self.changes.sets.insert(name.to_owned());
            }
        } else if let Some(peers) = self.peers.get_mut(name) {
            peers.users = peers.users.saturating_sub(1);
            if peers.users == 0 {
                self.selectors.remove(&peers.set.selector, &name.to_owned());
                self.peers.remove(name);
                self.changes.sets.extend(IpFamily::ALL.map(|family| family.suffixed(name)));
            }
        }
    }
}

impl PeerSet {
    /// Its declaration in the packet filter.
    pub(crate) fn declaration(&self, family: IpFamily) -> FilterSet {
        let port = self.named_port.as_ref().map(|_| DataType::Port);
        let key: Vec<DataType> = [family.data_type()].into_iter().chain(port).collect();
        FilterSet::keys(&key)
    }
}

/// Whether a set is that of a family of these sets of peers.
fn is_of(set: &str, peers: &BTreeSet<String>) -> bool {
    IpFamily::without_suffix(set).is_some_and(|stem| peers.contains(stem))
}

/// The element of an address of an isolated pod of another node.
fn isolated_key(address: IpAddr) -> ElementKey {
    element(IpFamily::of(address).suffixed(ISOLATED_REMOTE), vec![address.into()])
}
