//! Network policies on the pods of this node.
//!
//! Policies, namespaces and pods come from the API server and are not persistent: the kernel has what was compiled from
//! them. Until everything has been listed after a start, the rules in the kernel stay as they are, and a new pod starts
//! closed. From then on a change computes only what it affects, and only that is compared with the kernel ([`rules`]).

pub mod drop_logs;
pub(crate) mod interfaces;
pub mod report;
pub(crate) mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knit_model::filter::rule::Verdict;
use knit_model::filter::{ElementData, ElementKey, Filter, TableFamily};
use knit_model::{Sandbox, SandboxId, Scope};
use knit_policy::{
    CLOSED, Decision, Flow, InterfacePolicies, LocalPod, PodChains, PodKey, PodNetworks, Policy, PolicyId,
    PolicyIndex, PolicyKind, PolicyNamespace, PolicyPod, PolicyTables, dispatch, is_pod_element,
    is_policy_name,
};
use serde::{Deserialize, Serialize};

use self::drop_logs::DropLogEvent;
use self::rules::PolicyRules;
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
    /// The pods of this node, as the index knows them.
    local: LocalPods,
    /// The tables of pods with policies about additional interfaces.
    #[serde(with = "knit_model::serde_pairs")]
    interfaces: BTreeMap<SandboxId, Arc<InterfacePolicies>>,
    /// What of the rules is in the kernel.
    rules: PolicyRules,
    /// Whether policies were enforced when that changed last.
    was_enforced: bool,
}

/// The pods of this node, each with its name and uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LocalPods {
    #[serde(with = "knit_model::serde_pairs")]
    by_sandbox: BTreeMap<SandboxId, (PodKey, String)>,
    #[serde(with = "knit_model::serde_pairs")]
    by_pod: BTreeMap<PodKey, BTreeSet<SandboxId>>,
}

impl LocalPods {
    fn insert(&mut self, id: &SandboxId, key: PodKey, uid: String) {
        self.by_pod.entry(key.clone()).or_default().insert(id.clone());
        self.by_sandbox.insert(id.clone(), (key, uid));
    }

    fn remove(&mut self, id: &SandboxId) -> Option<(PodKey, String)> {
        let (key, uid) = self.by_sandbox.remove(id)?;
        if let Some(sandboxes) = self.by_pod.get_mut(&key) {
            sandboxes.remove(id);
            if sandboxes.is_empty() {
                self.by_pod.remove(&key);
            }
        }
        Some((key, uid))
    }
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
    pub(crate) fn enforces_policies(&self) -> bool {
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
        if self.holds_policies() {
            return PodChains { ingress: closed(), egress: closed(), ..PodChains::default() };
        }
        let sandbox = self.sandboxes.get(id);
        sandbox.map(|sandbox| self.policies.index.local_chains(local_pod(sandbox))).unwrap_or_default()
    }

    /// Whether the tables need what leads to the chains of policies. Isolation needs them also on a node without pods: elements
    /// lead from the addresses of all isolated pods to the chains of their segments.
    pub(crate) fn needs_policy_tables(&self) -> bool {
        let policies = &self.policies;
        let is_restricted = || policies.index.all_local_chains().any(|(_, chains)| !chains.is_empty());
        self.enforces_policies()
            && (self.holds_policies()
                || policies.rules.has_applied()
                || policies.index.has_chains()
                || is_restricted()
                || pod_elements(self).next().is_some())
    }
}

fn local_pod(sandbox: &Sandbox) -> LocalPod<'_> {
    LocalPod { namespace: &sandbox.namespace, name: &sandbox.pod, uid: &sandbox.uid }
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
            let is_on_interfaces = policy.networks.is_some();
            if !index.apply_policy(*policy) {
                return;
            }
            if !is_on_interfaces {
                return on_change(state);
            }
        }
        PolicyEvent::PolicyDeleted(id) => {
            if !index.remove_policy(&id) {
                return;
            }
            if id.kind != PolicyKind::MultiNetworkPolicy {
                return on_change(state);
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
            if !update.changed {
                return;
            }
            if update.is_network_peer || policies.local.by_pod.contains_key(&key) {
                interfaces::update(state);
            }
            return on_change(state);
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
            let targets = drop_logs::changed(index.drop_logs(), event);
            index.set_drop_logs(targets);
            return on_change(state);
        }
    }
    interfaces::compile(state);
    on_change(state);
}

/// A record was applied: pods may have appeared or disappeared.
pub(crate) fn on_record(state: &mut State, record: &Record) {
    match record {
        Record::SandboxUpdated(sandbox) => {
            if state.has_policies() {
                interfaces::compile(state);
            }
            update_local(state, &sandbox.id);
        }
        Record::SandboxRemoved { id, .. } => {
            state.policies.interfaces.remove(id);
            update_local(state, id);
        }
        _ => return,
    }
    on_change(state);
}

/// After a start: the pods of this node are known from the journal.
pub(crate) fn rebuild(state: &mut State) {
    let ids: BTreeSet<SandboxId> =
        state.sandboxes.keys().chain(state.policies.local.by_sandbox.keys()).cloned().collect();
    ids.iter().for_each(|id| update_local(state, id));
}

/// Policies may be enforced from now on, or no longer.
pub(crate) fn on_setting_change(state: &mut State) {
    let is_on = state.enforces_policies();
    if is_on != state.policies.was_enforced {
        state.policies.was_enforced = is_on;
        state.policies.was_incomplete = true;
        rules::reset(state);
        requeue_restricted(state);
        on_change(state);
        packet_filter::on_policy_change(state);
    }
}

/// A sandbox appeared, changed or disappeared.
fn update_local(state: &mut State, id: &SandboxId) {
    let now = state.sandboxes.get(id).map(|sandbox| (key_of(sandbox), sandbox.uid.clone()));
    let State { policies: PolicyState { index, local, .. }, .. } = state;
    if local.by_sandbox.get(id) == now.as_ref() {
        return;
    }
    let before = local.remove(id);
    if let Some((key, uid)) = now {
        index.add_local(LocalPod { namespace: &key.namespace, name: &key.name, uid: &uid });
        local.insert(id, key, uid);
    }
    if let Some((key, uid)) = before {
        index.remove_local(LocalPod { namespace: &key.namespace, name: &key.name, uid: &uid });
    }
}

/// Something changed: queues the rules that may differ, and the pods that use other chains.
fn on_change(state: &mut State) {
    if !state.enforces_policies() || !state.policies.has_synced() {
        state.policies.was_incomplete = true;
        // New pods are closed from now on.
        packet_filter::on_policy_change(state);
        return;
    }
    let was_incomplete = std::mem::take(&mut state.policies.was_incomplete);
    let mut changes = state.policies.index.take_changes();
    changes.everything |= was_incomplete;
    let State { policies: PolicyState { index, local, .. }, .. } = state;
    let is_restricted = |id: &SandboxId| {
        let sandbox = state.sandboxes.get(id);
        sandbox.is_some_and(|sandbox| !index.local_chains(local_pod(sandbox)).is_empty())
    };
    let changed = changes.pods.iter().filter_map(|key| local.by_pod.get(key)).flatten().cloned();
    let mut affected: BTreeSet<SandboxId> = changed.collect();
    if was_incomplete {
        affected.extend(local.by_sandbox.keys().filter(|id| is_restricted(id)).cloned());
    }
    let (units, in_flight) = (&state.units, &state.in_flight);
    // One that is in flight may have been resolved before.
    let is_known = |unit: &Unit| units.contains_key(unit) || in_flight.contains_key(unit);
    let affected = affected.into_iter().map(Unit::Sandbox).filter(is_known);
    state.dirty.extend(affected.collect::<Vec<_>>());
    if was_incomplete {
        requeue_restricted(state);
    }
    rules::queue(state, changes);
    packet_filter::on_policy_change(state);
}

/// Queues pods that have elements of policies, which may no longer be about them.
fn requeue_restricted(state: &mut State) {
    let restricted = state.units.iter().filter(|(_, unit_state)| restricts(unit_state));
    let restricted: Vec<Unit> = restricted.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(restricted);
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

/// Adds to a change of the tables what it needs of policies: what is held, all rules, or none of them.
pub(crate) fn add_to_tables(state: &mut State, resolved: &mut Resolved, observed: &mut Filter) {
    let key = TableFamily::Inet.table();
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    let is_gone = filter.tables.contains_key(&key) && !observed.tables.contains_key(&key);
    if state.holds_policies() {
        return hold(state, resolved, observed);
    }
    if is_gone && !rules::is_applying_all(state) {
        rules::add_all(state, resolved);
    }
    if rules::is_applying_all(state) {
        rules::retain(state, resolved, observed);
    } else if filter_has_policies(resolved) {
        rules::leave_out(observed);
    }
}

/// Whether the tables lead to rules of policies.
fn filter_has_policies(resolved: &Resolved) -> bool {
    let host = resolved.desired.state.scopes.get(&Scope::Host);
    let table = host.and_then(|host| host.filter.tables.get(&TableFamily::Inet.table()));
    table.is_some_and(|table| table.chains.contains_key(CLOSED))
}
