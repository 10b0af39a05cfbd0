//! The rules of policies in the kernel: chains, the sets that they refer to, and elements that no single pod owns, such as the
//! addresses of peers.
//!
//! A change of a policy, a namespace or a pod names what may differ ([`PolicyChanges`]). The unit [`Unit::Policies`] compares only
//! that. Everything is compared as part of [`Unit::PacketFilter`]: after a start, after a list, on resync, after a failure, and when
//! another program changed the tables, because then tables, chains and the elements of all pods have to return in one
//! transaction. Nothing is recorded by [`Unit::Policies`]: each of its changes is one transaction of nftables, which the kernel
//! applies completely or not at all, and after a start everything is compared.
//!
//! A pod is never without its policies, nor with more than they allow, between two transactions:
//!
//! - New chains, their sets and the elements of these sets come in one transaction. The elements that lead from the address of a pod
//!   to its chain belong to the pod's sandbox, which waits until the chain is there ([`is_awaited`]). Until then the pod has its
//!   previous chain. A new pod has no link before its elements are there.
//! - A chain that no policy needs any more stays as it is while an element of a pod leads to it, applied or in flight, and so do
//!   the sets that it refers to. The members of such sets are not kept up to date: the pods leave the chain with the next
//!   transactions of their sandboxes, which are queued already. A set that is needed again before it was removed is compared as
//!   a whole.
//! - The rules of a chain are replaced together with the sets that only the new rules refer to, and all elements that one event
//!   changes are in one transaction. So a pod that moves from a set of peers that is allowed to one that is denied is never in
//!   both or neither of them, and the order of adding and removing elements does not matter.
//! - Elements of isolated pods of other nodes lead to the chain of their segment; both come and go in one transaction.
//!
//! While not everything is listed after a start, nothing is compared, and the kernel's rules stay ([`super::hold`]).

use std::collections::{BTreeMap, BTreeSet};

use knit_model::filter::field::IpFamily;
use knit_model::filter::rule::{Expression, FilterRule, Verdict};
use knit_model::filter::{ElementKey, Filter, FilterChain, FilterSet, FilterTable, TableFamily};
use knit_model::provenance::{Dialect, Provenance};
use knit_model::{NetState, SandboxId, Scope};
use knit_policy::{CLOSED, Element, PolicyChanges, PolicyTables, is_peer_set, is_rule_name};
use serde::{Deserialize, Serialize};

use super::used_chains;
use crate::cluster;
use crate::event::Unit;
use crate::packet_filter;
use crate::resolve::Resolved;
use crate::state::State;

/// The rules in the kernel, and what of them may differ from what is desired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PolicyRules {
    pending: Pending,
    /// Chains that are not desired any more, but used by pods, and their sets.
    retained: Pending,
    /// Whether everything is compared with the next change of the tables.
    compares_all: bool,
    /// The chains and sets in the kernel, once everything was compared.
    applied: Option<PolicyTables>,
    /// The change of everything in flight.
    #[serde(skip)]
    applying_all: Option<PolicyTables>,
    /// The change in flight.
    #[serde(skip)]
    applying: Option<Applying>,
}

/// What may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pending {
    chains: BTreeSet<String>,
    sets: BTreeSet<String>,
    elements: BTreeSet<ElementKey>,
}

/// What chains and sets become; `None`: they are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Applying {
    chains: BTreeMap<String, Option<Vec<FilterRule>>>,
    sets: BTreeMap<String, Option<FilterSet>>,
    /// The sets that only get other elements.
    unchanged_sets: BTreeMap<String, FilterSet>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.sets.is_empty() && self.elements.is_empty()
    }

    fn has_structure(&self) -> bool {
        !self.chains.is_empty() || !self.sets.is_empty()
    }
}

impl PolicyRules {
    /// Whether there may be rules in the kernel.
    pub(super) fn has_applied(&self) -> bool {
        let has_chains = |tables: &PolicyTables| !tables.chains.is_empty() || !tables.sets.is_empty();
        self.applied.as_ref().is_some_and(has_chains)
    }
}

/// Queues what changed.
pub(super) fn queue(state: &mut State, changes: PolicyChanges) {
    let rules = &mut state.policies.rules;
    if changes.everything || rules.compares_all || rules.applied.is_none() {
        return compare_all(state);
    }
    rules.pending.chains.extend(changes.chains);
    rules.pending.sets.extend(changes.sets);
    rules.pending.elements.extend(changes.elements);
    if !rules.pending.is_empty() {
        state.dirty.insert(Unit::Policies);
    }
}

/// Compares everything with the next change of the tables.
pub(crate) fn compare_all(state: &mut State) {
    let rules = &mut state.policies.rules;
    rules.compares_all = true;
    rules.pending = Pending::default();
    state.dirty.remove(&Unit::Policies);
    state.dirty.insert(Unit::PacketFilter);
}

/// The tables are about to be compared.
pub(crate) fn on_resync(state: &mut State) {
    state.policies.rules.compares_all = true;
}

/// Policies are not enforced any more, or from now on: what is in the kernel is compared.
pub(super) fn reset(state: &mut State) {
    state.policies.rules = PolicyRules { compares_all: true, ..PolicyRules::default() };
    state.dirty.remove(&Unit::Policies);
}

/// Whether a change of the tables compares all rules.
pub(crate) fn is_complete(state: &State) -> bool {
    let rules = &state.policies.rules;
    rules.compares_all || rules.applied.is_none()
}

/// Whether the change of the tables in flight compares all rules.
pub(super) fn is_applying_all(state: &State) -> bool {
    state.policies.rules.applying_all.is_some()
}

/// Whether [`Unit::Policies`] can be compared: it needs the tables.
pub(crate) fn can_start(state: &State) -> bool {
    let is_busy =
        state.dirty.contains(&Unit::PacketFilter) || state.in_flight.contains_key(&Unit::PacketFilter);
    !is_busy && !packet_filter::is_awaited(state)
}

/// Whether a sandbox has to wait until the chains of its pod are in the kernel.
pub(crate) fn is_awaited(state: &State, id: &SandboxId) -> bool {
    if !state.enforces_policies() || state.holds_policies() {
        return false;
    }
    let is_busy = |unit: &Unit| state.dirty.contains(unit) || state.in_flight.contains_key(unit);
    let rules = &state.policies.rules;
    let compares_all = is_busy(&Unit::PacketFilter) && (is_complete(state) || rules.applying_all.is_some());
    let changes = rules.applying.is_some() || rules.pending.has_structure();
    let changes_chains = changes && is_busy(&Unit::Policies);
    if !(compares_all || changes_chains) {
        return false;
    }
    let chains = state.chains_of(id);
    let names = [chains.ingress, chains.egress, chains.segment].into_iter().flatten();
    let is_missing = |name: &String| {
        let is_there = rules.applied.as_ref().is_some_and(|applied| applied.chains.contains_key(name));
        let is_removed = rules.applying.as_ref().is_some_and(|one| one.chains.get(name) == Some(&None));
        compares_all || !is_there || is_removed
    };
    names.filter(|name| name != CLOSED).any(|name| is_missing(&name))
}

/// The desired rules of what may differ.
pub(crate) fn resolve(state: &mut State) -> Resolved {
    let mut resolved = Resolved::default();
    resolved.requesters.insert(cluster::key());
    let field = "packet filter of policies".to_owned();
    resolved.desired.default_origin =
        Some(Provenance { dialect: Dialect::Knit, object: None, field, call: None }.into());
    if state.holds_policies() {
        return resolved;
    }
    let is_enforced = state.enforces_policies();
    let used = used_chains(state);
    let policies = &mut state.policies;
    let (index, rules) = (&policies.index, &mut policies.rules);
    let Some(applied) = &rules.applied else { return resolved };
    let Pending { mut chains, mut sets, elements } = std::mem::take(&mut rules.pending);
    let retained = std::mem::take(&mut rules.retained);
    chains.extend(retained.chains);
    sets.extend(retained.sets);
    let is_desired = |name: &str| is_enforced && index.chain(name).is_some();
    let held = held_chains(applied, &used, is_desired);
    let held_sets: BTreeSet<&String> =
        held.iter().filter_map(|name| applied.chains.get(name)).flat_map(|rules| sets_of(rules)).collect();
    let mut applying = Applying::default();
    for name in chains {
        if held.contains(&name) {
            rules.retained.chains.insert(name);
        } else {
            let desired = index.chain(&name).filter(|_| is_enforced).map(<[FilterRule]>::to_vec);
            applying.chains.insert(name, desired);
        }
    }
    let table = TableFamily::Inet.table();
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    for name in sets {
        let desired = index.set(&name).filter(|_| is_enforced);
        if desired.is_none() && held_sets.contains(&name) {
            rules.retained.sets.insert(name);
            continue;
        }
        if desired.is_some() {
            filter.elements.extend(index.elements_of_set(&name));
            // It was to be removed, so its elements are not known.
            if applied.sets.contains_key(&name) {
                resolved.observe.filter_sets.insert((table.clone(), name.clone()));
            }
        }
        applying.sets.insert(name, desired);
    }
    for key in elements {
        let is_whole = applying.sets.contains_key(&key.set) || rules.retained.sets.contains(&key.set);
        let is_there = !is_rule_name(&key.set) || applied.sets.contains_key(&key.set);
        if is_whole || !is_there {
            continue;
        }
        let data = index.element(&key).filter(|_| is_enforced);
        let set = applied.sets.get(&key.set).cloned().or_else(|| set_of_segments(&key.set));
        applying.unchanged_sets.extend(set.map(|set| (key.set.clone(), set)));
        filter.elements.extend(data.map(|data| (key.clone(), data)));
        resolved.observe.filter_elements.insert(key);
    }
    let mut desired = FilterTable::default();
    for (name, rules) in &applying.chains {
        let rules = rules.clone();
        desired.chains.extend(rules.map(|rules| (name.clone(), FilterChain { base: None, rules })));
    }
    for (name, set) in &applying.sets {
        desired.sets.extend(set.clone().map(|set| (name.clone(), set)));
    }
    desired.sets.extend(applying.unchanged_sets.clone());
    filter.tables.insert(table, desired);
    rules.applying = Some(applying);
    resolved
}

/// Adds the chains and sets that are to change as they are in the kernel.
pub(crate) fn add_applied(state: &State, observed: &mut NetState) {
    let rules = &state.policies.rules;
    let (Some(applied), Some(applying)) = (&rules.applied, &rules.applying) else { return };
    let mut table = FilterTable::default();
    for name in applying.chains.keys() {
        let rules = applied.chains.get(name).cloned();
        table.chains.extend(rules.map(|rules| (name.clone(), FilterChain { base: None, rules })));
    }
    for name in applying.sets.keys() {
        table.sets.extend(applied.sets.get(name).map(|set| (name.clone(), set.clone())));
    }
    table.sets.extend(applying.unchanged_sets.clone());
    observed.scope(&Scope::Host).filter.tables.insert(TableFamily::Inet.table(), table);
}

/// A change has ended successfully.
pub(crate) fn on_change_end(state: &mut State) {
    let rules = &mut state.policies.rules;
    let (Some(applied), Some(applying)) = (&mut rules.applied, rules.applying.take()) else { return };
    for (name, rules) in applying.chains {
        match rules {
            Some(rules) => drop(applied.chains.insert(name, rules)),
            None => drop(applied.chains.remove(&name)),
        }
    }
    for (name, set) in applying.sets {
        match set {
            Some(set) => drop(applied.sets.insert(name, set)),
            None => drop(applied.sets.remove(&name)),
        }
    }
    packet_filter::on_policy_change(state);
}

/// A change failed, or the tables are gone: everything is compared.
pub(crate) fn on_failure(state: &mut State) {
    state.policies.rules.applying = None;
    compare_all(state);
}

/// Elements of a pod that lead to chains have changed: chains that it used may be removed.
pub(crate) fn on_pod_change(state: &mut State) {
    if state.policies.rules.retained.has_structure() {
        state.dirty.insert(Unit::Policies);
    }
}

/// Adds all rules to a change of the tables. What pods still use stays as it is in the kernel.
pub(crate) fn add_all(state: &mut State, resolved: &mut Resolved) {
    state.policies.rules.compares_all = false;
    state.policies.rules.pending = Pending::default();
    state.policies.rules.retained = Pending::default();
    let tables = match state.enforces_policies() {
        true => state.policies.index.tables(),
        false => PolicyTables::default(),
    };
    let key = TableFamily::Inet.table();
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    let Some(table) = filter.tables.get_mut(&key) else {
        state.policies.rules.applying_all = Some(PolicyTables::default());
        return;
    };
    add_to(table, &tables);
    let index = &state.policies.index;
    let is_constant = |name: &&String| !is_peer_set(name);
    let constants = tables.sets.keys().filter(is_constant).flat_map(|name| index.elements_of_set(name));
    let all: Vec<Element> = constants.chain(index.peer_elements()).collect();
    filter.elements.extend(all.into_iter().filter(|_| state.enforces_policies()));
    let of_segments = table.sets.keys().filter(|name| is_peer_set(name)).cloned();
    let sets: BTreeSet<String> = tables.sets.keys().cloned().chain(of_segments).collect();
    resolved.observe.filter_sets.extend(sets.into_iter().map(|name| (key.clone(), name)));
    state.policies.rules.applying_all = Some(tables);
}

/// Keeps what pods still use, as it is in the kernel, in a change of all rules.
pub(crate) fn retain(state: &mut State, resolved: &mut Resolved, observed: &Filter) {
    let Some(mut tables) = state.policies.rules.applying_all.take() else { return };
    let key = TableFamily::Inet.table();
    let filter = &mut resolved.desired.state.scope(&Scope::Host).filter;
    if let (Some(table), Some(found)) = (filter.tables.get_mut(&key), observed.tables.get(&key)) {
        let rules = found.chains.iter().filter(|(name, _)| is_rule_name(name));
        let found = PolicyTables {
            chains: rules.map(|(name, chain)| (name.clone(), chain.rules.clone())).collect(),
            sets: found.sets.clone(),
        };
        let used = used_chains(state).into_iter().filter(|name| !tables.chains.contains_key(name));
        let (chains, sets) = (tables.chains.clone(), tables.sets.clone());
        tables.retain(used.collect::<Vec<_>>(), &found);
        let retained = &mut state.policies.rules.retained;
        retained.chains.extend(tables.chains.keys().filter(|name| !chains.contains_key(*name)).cloned());
        retained.sets.extend(tables.sets.keys().filter(|name| !sets.contains_key(*name)).cloned());
        add_to(table, &tables);
    }
    state.policies.rules.applying_all = Some(tables);
}

fn add_to(table: &mut FilterTable, tables: &PolicyTables) {
    for (name, rules) in &tables.chains {
        table.chains.insert(name.clone(), FilterChain { base: None, rules: rules.clone() });
    }
    table.sets.extend(tables.sets.iter().map(|(name, set)| (name.clone(), set.clone())));
}

/// A change of the tables has ended successfully.
pub(crate) fn on_tables_applied(state: &mut State) {
    if let Some(tables) = state.policies.rules.applying_all.take() {
        state.policies.rules.applied = Some(tables);
        on_pod_change(state);
        packet_filter::on_policy_change(state);
    }
    if !state.policies.rules.pending.is_empty() {
        state.dirty.insert(Unit::Policies);
    }
}

/// A change of the tables failed.
pub(crate) fn on_tables_failed(state: &mut State) {
    let rules = &mut state.policies.rules;
    if rules.applying_all.take().is_some() {
        rules.compares_all = true;
    }
}

/// Leaves out of a change of the tables what belongs to [`Unit::Policies`].
pub(crate) fn leave_out(observed: &mut Filter) {
    if let Some(table) = observed.tables.get_mut(&TableFamily::Inet.table()) {
        table.chains.retain(|name, _| !is_rule_name(name));
        table.sets.retain(|name, _| !is_rule_name(name));
    }
}

/// The chains that are not desired and that elements of pods lead to.
fn held_chains(
    applied: &PolicyTables,
    used: &BTreeSet<String>,
    is_desired: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    let mut queue: Vec<&String> = used.iter().collect();
    while let Some(name) = queue.pop() {
        let Some(rules) = applied.chains.get(name).filter(|_| !is_desired(name)) else { continue };
        if held.insert(name.clone()) {
            queue.extend(expressions(rules).filter_map(|expression| match expression {
                Expression::Verdict(Verdict::Goto(next)) => Some(next),
                _ => None,
            }));
        }
    }
    held
}

/// The declaration of the maps to the chains of segments, which belong to the tables.
fn set_of_segments(name: &str) -> Option<FilterSet> {
    let family = IpFamily::ALL.into_iter().find(|family| name.ends_with(&family.suffixed("")))?;
    (is_peer_set(name) && !is_rule_name(name)).then(|| FilterSet::verdicts(&[family.data_type()]))
}

fn sets_of(rules: &[FilterRule]) -> impl Iterator<Item = &String> {
    expressions(rules).filter_map(|expression| match expression {
        Expression::Lookup { set, .. } => Some(set),
        _ => None,
    })
}

fn expressions(rules: &[FilterRule]) -> impl Iterator<Item = &Expression> {
    rules.iter().flat_map(|rule| &rule.expressions)
}
