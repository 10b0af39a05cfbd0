//! Network policies on the pods of this node.
//!
//! Policies, namespaces and pods come from the API server and are not persistent: the kernel has what was compiled from
//! them. Until everything has been listed after a start, the rules in the kernel stay as they are, and a new pod starts
//! closed.

pub mod drop_logs;
pub(crate) mod interfaces;
pub mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knit_model::filter::rule::Verdict;
use knit_model::filter::{ElementData, ElementKey, Filter, TableFamily};
use knit_model::{Sandbox, SandboxId, Scope};
use knit_policy::{
    CLOSED, Decision, DropLogTarget, Element, Flow, InterfacePolicies, LocalPod, PodChains, PodKey,
    PodNetworks, Policy, PolicyId, PolicyIndex, PolicyKind, PolicyNamespace, PolicyPod, PolicyTables,
    dispatch, is_pod_element, is_policy_name,
};
use serde::{Deserialize, Serialize};

use self::drop_logs::DropLogEvent;
use crate::cluster;
use crate::event::{Record, Unit};
use crate::packet_filter;
use crate::resolve::Resolved;
use crate::state::{BridgeKey, ObjectKey, State, UnitState};

/// A change of policies, or of what they refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PolicyEvent {
    /// All policies of a kind.
    PoliciesListed(PolicyKind, Vec<Policy>),
    /// A policy was created or changed.
    PolicyApplied(Box<Policy>),
    /// A policy was deleted.
    PolicyDeleted(PolicyId),
    /// All namespaces.
    NamespacesListed(BTreeMap<String, PolicyNamespace>),
    /// A namespace was created, changed or deleted.
    NamespaceChanged {
        /// Its name.
        name: String,
        /// What policies need of it.
        namespace: Option<PolicyNamespace>,
    },
    /// Whether there is a pod with an app label in the cluster: then all pods have to be known.
    AppPodsListed(bool),
    /// All pods of the cluster.
    PodsListed(Vec<(PodKey, PolicyPod)>),
    /// A pod of the cluster was created, changed or deleted.
    PodChanged {
        /// The pod.
        key: PodKey,
        /// What policies need of it.
        pod: Option<PolicyPod>,
    },
    /// Pods are no longer watched, because there is no policy and nothing is isolated.
    PodsForgotten,
    /// Whether policies about additional networks are enforced on this node: known before the first call.
    OnInterfaces(bool),
    /// The addresses of all pods on additional networks, each with the pod's uid.
    PodNetworksListed(Vec<(PodKey, (String, PodNetworks))>),
    /// The addresses of a pod on additional networks changed.
    PodNetworksChanged {
        /// The pod.
        key: PodKey,
        /// Its uid and addresses; `None`: it has none any more.
        networks: Option<(String, PodNetworks)>,
    },
    /// Addresses on additional networks are no longer watched, because there is no policy about them.
    PodNetworksForgotten,
    /// What requests logs of dropped packets.
    DropLogs(DropLogEvent),
}

/// Policies, and the rules compiled from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyState {
    index: PolicyIndex,
    /// Which of them have been listed.
    listed: BTreeSet<PolicyKind>,
    has_namespaces: bool,
    has_pods: bool,
    has_pod_networks: bool,
    /// Whether policies about additional networks are enforced, once that is known.
    on_interfaces: Option<bool>,
    /// Whether there are pods with app labels, once that is known.
    app_pods: Option<bool>,
    /// Whether something was not known since the rules were compiled last: pods may have been reconciled in the meantime, with
    /// the elements that they had.
    #[serde(default)]
    was_incomplete: bool,
    /// The chains of the pods of this node that have policies.
    #[serde(with = "knit_model::serde_pairs")]
    chains: BTreeMap<SandboxId, PodChains>,
    /// The tables of pods with policies about additional interfaces.
    #[serde(with = "knit_model::serde_pairs")]
    interfaces: BTreeMap<SandboxId, Arc<InterfacePolicies>>,
    tables: Arc<PolicyTables>,
    /// Ranges and ports in rules.
    constants: Vec<Element>,
    /// Elements of sets that no pod of this node owns.
    elements: Arc<[Element]>,
    /// What requests logs of dropped packets.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    drop_logs: BTreeSet<DropLogTarget>,
}

/// Rules for the tables of the packet filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompiledPolicies {
    pub(crate) tables: Arc<PolicyTables>,
    pub(crate) elements: Arc<[Element]>,
}

impl PolicyState {
    /// Whether everything is known that rules follow from.
    fn has_synced(&self) -> bool {
        let kinds = [PolicyKind::NetworkPolicy, PolicyKind::ClusterNetworkPolicy];
        let has_policies = kinds.iter().all(|kind| self.listed.contains(kind));
        let has_listed = has_policies && self.has_namespaces && self.app_pods.is_some();
        has_listed && (self.has_pods || !self.needs_pods())
    }

    /// Whether everything is known that rules about additional networks follow from.
    fn has_synced_on_interfaces(&self) -> bool {
        let has_inputs = self.has_namespaces && self.has_pods && self.has_pod_networks;
        self.listed.contains(&PolicyKind::MultiNetworkPolicy) && (has_inputs || !self.needs_networks())
    }

    /// Whether the addresses of pods on additional networks have to be known.
    fn needs_networks(&self) -> bool {
        self.on_interfaces == Some(true) && self.index.has_policies_on(true)
    }

    /// Whether all pods of the cluster have to be known.
    fn needs_pods(&self) -> bool {
        self.index.has_policies_on(false)
            || self.index.has_isolated_namespaces()
            || self.app_pods == Some(true)
    }
}

impl State {
    /// Whether policies are enforced on this node.
    fn enforces_policies(&self) -> bool {
        let node_routes = self.cluster().and_then(|cluster| cluster.node_routes);
        node_routes.is_some_and(|node_routes| node_routes.network_policy)
    }

    /// Whether IP packets between the ports of a bridge have to pass the packet filter.
    pub(crate) fn filters_bridged_packets(&self, key: &BridgeKey) -> bool {
        let needs_filter = self.enforces_policies() || self.translates_services();
        needs_filter && self.cluster().is_some_and(|cluster| cluster.bridge_key() == *key)
    }

    /// Whether the rules in the kernel stay as they are, because not everything is known yet.
    pub(crate) fn holds_policies(&self) -> bool {
        self.enforces_policies() && !self.policies.has_synced()
    }

    /// Whether there is any policy or isolation in the cluster that is enforced: then all pods have to be known.
    pub fn has_policies(&self) -> bool {
        self.enforces_policies() && self.policies.needs_pods() || self.policies.needs_networks()
    }

    /// Whether there is any policy about additional networks: then the addresses of all pods there have to be known.
    pub fn has_policies_on_interfaces(&self) -> bool {
        self.policies.needs_networks()
    }

    /// Why policies are not enforced between pods of this node, for the status of the cluster network.
    pub(crate) fn policy_warning(&self, key: &ObjectKey) -> Option<String> {
        let is_bypassed =
            *key == cluster::key() && self.enforces_policies() && self.settings.lacks_bridge_filter;
        is_bypassed.then(|| {
            "NetworkPolicies are not enforced between pods of this node: the kernel module br_netfilter is not loaded"
                .to_owned()
        })
    }

    /// The verdict of policies on a connection.
    pub fn evaluate_policies(&self, flow: &Flow) -> Decision {
        self.policies.index.evaluate(flow)
    }

    /// The chains of a pod. While not everything is known, a new pod is closed.
    fn chains_of(&self, id: &SandboxId) -> PodChains {
        let closed = || Some(CLOSED.to_owned());
        match self.holds_policies() {
            true => PodChains { ingress: closed(), egress: closed(), ..PodChains::default() },
            false => self.policies.chains.get(id).cloned().unwrap_or_default(),
        }
    }

    /// The desired rules; `None` without any. Chains that pods still use stay until these pods use others.
    pub(crate) fn compiled_policies(&self, before: Option<&CompiledPolicies>) -> Option<CompiledPolicies> {
        if !self.enforces_policies() {
            return None;
        }
        let (used, is_used) = (used_chains(self), pod_elements(self).next().is_some());
        let PolicyState { tables, elements, chains, .. } = &self.policies;
        if self.holds_policies() {
            return Some(before.cloned().unwrap_or_default());
        }
        let unused = !is_used && chains.is_empty();
        let retained: BTreeSet<String> =
            used.into_iter().filter(|name| name != CLOSED && !tables.chains.contains_key(name)).collect();
        let compiled = || CompiledPolicies { tables: Arc::clone(tables), elements: Arc::clone(elements) };
        match before {
            _ if unused => None,
            Some(before) if !retained.is_empty() => {
                let mut all = PolicyTables::clone(tables);
                all.retain(retained, &before.tables);
                let is_retained = |(key, _): &&Element| {
                    all.sets.contains_key(&key.set) && !tables.sets.contains_key(&key.set)
                };
                let kept = before.elements.iter().filter(is_retained);
                let elements = elements.iter().chain(kept).cloned().collect();
                Some(CompiledPolicies { tables: Arc::new(all), elements })
            }
            _ => Some(compiled()),
        }
    }
}

/// The elements about the policies of this node's pods.
fn pod_elements(state: &State) -> impl Iterator<Item = (&ElementKey, &ElementData)> {
    let in_flight = state.in_flight.values().map(|change| &change.resolved.unit_state);
    let elements = state.units.values().chain(in_flight).flat_map(|unit_state| &unit_state.filter);
    elements.filter(|(key, _)| is_pod_element(key))
}

/// The chains that elements of pods lead to.
fn used_chains(state: &State) -> BTreeSet<String> {
    let chain = |(_, data): (&ElementKey, &ElementData)| match data {
        ElementData::Verdict(Verdict::Jump(chain)) => Some(chain.clone()),
        _ => None,
    };
    pod_elements(state).filter_map(chain).collect()
}

/// Handles a change.
pub(crate) fn handle(state: &mut State, event: PolicyEvent) {
    let policies = &mut state.policies;
    let index = &mut policies.index;
    match event {
        PolicyEvent::PoliciesListed(kind, all) => {
            index.set_policies(kind, all);
            policies.listed.insert(kind);
        }
        PolicyEvent::PolicyApplied(policy) => {
            if !index.apply_policy(*policy) {
                return;
            }
        }
        PolicyEvent::PolicyDeleted(id) => {
            if !index.remove_policy(&id) {
                return;
            }
        }
        PolicyEvent::NamespacesListed(all) => {
            index.set_namespaces(all);
            policies.has_namespaces = true;
        }
        PolicyEvent::NamespaceChanged { name, namespace } => {
            if !index.set_namespace(&name, namespace) {
                return;
            }
        }
        PolicyEvent::AppPodsListed(any) => policies.app_pods = Some(any),
        PolicyEvent::PodsListed(all) => {
            index.set_pods(all);
            policies.has_pods = true;
        }
        PolicyEvent::PodChanged { key, pod } => {
            let update = index.set_pod(&key, pod);
            let mut local = state.sandboxes.values();
            let is_local = local.any(|sandbox| sandbox.namespace == key.namespace && sandbox.pod == key.name);
            if update.changed && (update.is_network_peer || is_local) {
                interfaces::update(state);
            }
            if update.changed && (update.is_of_app || is_local) {
                compile_cluster(state);
            } else if update.is_peer {
                update_elements(state);
            }
            return;
        }
        PolicyEvent::PodsForgotten => {
            index.forget_pods();
            policies.has_pods = false;
        }
        PolicyEvent::OnInterfaces(enforced) => {
            policies.on_interfaces = Some(enforced);
            return interfaces::on_setting(state);
        }
        PolicyEvent::PodNetworksListed(all) => {
            index.set_all_pod_networks(all);
            policies.has_pod_networks = true;
            return interfaces::compile(state);
        }
        PolicyEvent::PodNetworksChanged { key, networks } => {
            if index.set_pod_networks(&key, networks).is_network_peer {
                interfaces::update(state);
            }
            return;
        }
        PolicyEvent::PodNetworksForgotten => {
            index.set_all_pod_networks([]);
            policies.has_pod_networks = false;
            return;
        }
        PolicyEvent::DropLogs(event) => {
            if !drop_logs::handle(&mut policies.drop_logs, event) {
                return;
            }
        }
    }
    compile(state);
}

/// A record was applied: pods may have appeared or disappeared.
pub(crate) fn on_record(state: &mut State, record: &Record) {
    match record {
        Record::SandboxUpdated(_) if state.has_policies() => compile(state),
        Record::SandboxRemoved { id, .. } => {
            state.policies.interfaces.remove(id);
            if state.has_policies() {
                compile_cluster(state);
            }
        }
        _ => {}
    }
}

/// Compiles all rules again.
fn compile(state: &mut State) {
    interfaces::compile(state);
    compile_cluster(state);
}

/// Compiles the rules about the cluster network, and queues the pods that use other chains.
fn compile_cluster(state: &mut State) {
    if !state.policies.has_synced() {
        state.policies.was_incomplete = true;
        return;
    }
    let policies = &mut state.policies;
    let local = state.sandboxes.values().map(|sandbox| LocalPod {
        namespace: &sandbox.namespace,
        name: &sandbox.pod,
        uid: &sandbox.uid,
    });
    let compiled = policies.index.compile(local);
    let chains = state.sandboxes.keys().cloned().zip(compiled.pods).filter(|(_, chains)| !chains.is_empty());
    let chains: BTreeMap<SandboxId, PodChains> = chains.collect();
    let before = std::mem::replace(&mut policies.chains, chains);
    policies.constants = compiled.elements;
    let mut tables = compiled.tables;
    drop_logs::add_rules(state, &mut tables);
    if *state.policies.tables != tables {
        state.policies.tables = Arc::new(tables);
    }
    let was_incomplete = std::mem::take(&mut state.policies.was_incomplete);
    let now = &state.policies.chains;
    let is_affected =
        |id: &&SandboxId| before.get(id) != now.get(id) || (was_incomplete && now.contains_key(id));
    let affected = state.sandboxes.keys().filter(is_affected);
    let affected: Vec<Unit> = affected.map(|id| Unit::Sandbox(id.clone())).collect();
    state.dirty.extend(affected.into_iter().filter(|unit| state.units.contains_key(unit)));
    if was_incomplete {
        requeue_restricted(state);
    }
    requeue_closed(state);
    update_elements(state);
}

/// Queues pods that have elements of policies, which may no longer be about them.
fn requeue_restricted(state: &mut State) {
    let restricted = state.units.iter().filter(|(_, unit_state)| restricts(unit_state));
    let restricted: Vec<Unit> = restricted.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(restricted);
}

/// Queues pods that started closed while not everything was known.
fn requeue_closed(state: &mut State) {
    let leads_to_closed = |(key, data): (&ElementKey, &ElementData)| {
        is_pod_element(key) && matches!(data, ElementData::Verdict(Verdict::Jump(chain)) if chain == CLOSED)
    };
    let closed = state.units.iter().filter(|(_, unit_state)| unit_state.filter.iter().any(leads_to_closed));
    let closed: Vec<Unit> = closed.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(closed);
}

/// The addresses of pods that rules refer to may have changed.
fn update_elements(state: &mut State) {
    let policies = &mut state.policies;
    if !policies.has_synced() {
        return;
    }
    let elements = policies.constants.iter().cloned().chain(policies.index.peer_elements());
    let elements: Arc<[Element]> = elements.collect();
    if policies.elements != elements {
        policies.elements = elements;
    }
    packet_filter::on_policy_change(state);
}

/// The elements that lead from the addresses of a pod to its policies.
pub(crate) fn elements_of(
    state: &State,
    id: &SandboxId,
    addresses: &[IpAddr],
    had: Option<&UnitState>,
) -> Vec<(ElementKey, ElementData)> {
    if !state.enforces_policies() {
        return Vec::new();
    }
    let before = had.into_iter().flat_map(|had| &had.filter).filter(|(key, _)| is_pod_element(key));
    let is_own = |key: &ElementKey| addresses.iter().any(|address| key.key.contains(&(*address).into()));
    let held: Vec<_> =
        before.filter(|(key, _)| is_own(key)).map(|(key, data)| (key.clone(), data.clone())).collect();
    // A pod from before the restart keeps what it had, also if that was nothing.
    if state.holds_policies() && had.is_some_and(|had| !had.interfaces.is_empty()) {
        return held;
    }
    let chains = state.chains_of(id);
    addresses.iter().flat_map(|address| chains.elements(*address)).collect()
}

/// Whether a policy restricts the pod of a unit: its packets have to pass the packet filter.
pub(crate) fn restricts(unit_state: &UnitState) -> bool {
    unit_state.filter.keys().any(is_pod_element)
}

/// While not everything is known, the rules in the kernel stay. If another program removed them, pods with policies are
/// closed.
pub(crate) fn hold(state: &State, resolved: &mut Resolved, observed: &Filter) {
    if !state.holds_policies() {
        return;
    }
    let key = TableFamily::Inet.table();
    let tables = &mut resolved.desired.state.scope(&Scope::Host).filter.tables;
    let Some(table) = tables.get_mut(&key) else { return };
    if let Some(found) = observed.tables.get(&key) {
        let chains = found.chains.iter().filter(|(name, _)| is_policy_name(name));
        table.chains.extend(chains.map(|(name, chain)| (name.clone(), chain.clone())));
        let sets = found.sets.iter().filter(|(name, _)| is_policy_name(name));
        table.sets.extend(sets.map(|(name, set)| (name.clone(), set.clone())));
    }
    let missing = used_chains(state).into_iter().filter(|name| !table.chains.contains_key(name));
    let missing: Vec<String> = missing.collect();
    if !missing.is_empty() {
        dispatch(table, &PolicyTables::closed(missing));
    }
}

fn key_of(sandbox: &Sandbox) -> PodKey {
    PodKey { namespace: sandbox.namespace.clone(), name: sandbox.pod.clone() }
}
