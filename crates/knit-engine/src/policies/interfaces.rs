//! Policies about additional interfaces: each pod with such policies has a table in its own network namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use knit_model::filter::{FilterItem, TableFamily};
use knit_model::plan::ItemKey;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::report::InterfaceReport;
use knit_model::{IfName, Sandbox, SandboxId, Scope};
use knit_policy::{InterfacePolicies, LocalPod, PodInterface, PolicyIndex};

use crate::event::Unit;
use crate::resolve::Resolved;
use crate::state::{ObjectKey, State};

/// Adds the table of a pod to its desired state. It is in place before the interfaces are up.
pub(crate) fn add(state: &mut State, id: &SandboxId, resolved: &mut Resolved) {
    let had = state.units.get(&Unit::Sandbox(id.clone()));
    let had_policies = had.map(|had| had.policy_interfaces.clone()).unwrap_or_default();
    let interfaces = selectable(&resolved.unit_state.interfaces);
    let is_synced = state.policies.has_synced_on_interfaces();
    let policies = if interfaces.is_empty() || state.policies.on_interfaces == Some(false) {
        None
    } else if let Some(sandbox) = state.sandboxes.get(id).filter(|_| is_synced) {
        compile_one(&mut state.policies.index, sandbox, &interfaces)
    } else {
        let known: BTreeSet<&IfName> =
            had.into_iter().flat_map(|had| &had.interfaces).map(|(_, interface)| &interface.name).collect();
        let is_unchanged = interfaces.iter().all(|(name, _)| known.contains(name));
        if is_unchanged || state.policies.on_interfaces.is_none() {
            // The table stays as it is.
            resolved.unit_state.policy_interfaces = had_policies;
            return;
        }
        Some(Arc::new(InterfacePolicies::closed(interfaces.into_iter().map(|(name, _)| name))))
    };
    if policies.is_some() || !had_policies.is_empty() {
        resolved.observe.sandbox_tables.insert(TableFamily::Inet.table());
    }
    match &policies {
        Some(policies) => add_table(policies, id, resolved),
        None => return drop(state.policies.interfaces.remove(id)),
    }
    state.policies.interfaces.extend(policies.map(|policies| (id.clone(), policies)));
}

fn add_table(policies: &InterfacePolicies, id: &SandboxId, resolved: &mut Resolved) {
    let (scope, key) = (Scope::Sandbox(id.clone()), TableFamily::Inet.table());
    let field = format!("policies of {}", resolved.title);
    let origin = Provenance { dialect: Dialect::Knit, object: None, field, call: None };
    resolved.add_origin(&scope, ItemKey::Filter(FilterItem::Table(key.clone())), &origin);
    resolved.set_element_origin(&scope, &origin);
    let filter = &mut resolved.desired.state.scope(&scope).filter;
    filter.tables.insert(key, policies.table.clone());
    filter.elements.extend(policies.elements.iter().cloned());
    resolved.unit_state.policy_interfaces.extend(policies.interfaces.iter().cloned());
}

/// Nothing is enforced in the guest of a virtual machine.
pub(crate) fn warn_of_virtual_machine(state: &mut State, sandbox: &Sandbox, resolved: &mut Resolved) {
    let interfaces = selectable(&resolved.unit_state.interfaces);
    if !is_enforced(state) {
        return;
    }
    let Some(policies) = compile_one(&mut state.policies.index, sandbox, &interfaces) else { return };
    let restricted = resolved.unit_state.interfaces.iter();
    let restricted = restricted.filter(|(_, interface)| policies.interfaces.contains(&interface.name));
    let warnings = restricted.map(|(object, interface)| {
        let name = &interface.name;
        (object.clone(), format!("MultiNetworkPolicies are not enforced on {name} of a virtual machine"))
    });
    let warnings: Vec<(ObjectKey, String)> = warnings.collect();
    resolved.unit_state.warnings.extend(warnings);
}

/// Policies or namespaces changed: queues the pods whose tables change. Peers that no rule refers to any more are dropped.
pub(super) fn compile(state: &mut State) {
    state.policies.index.forget_network_peers();
    update(state);
}

/// Pods changed: queues the pods whose tables change.
pub(super) fn update(state: &mut State) {
    if !is_enforced(state) {
        return;
    }
    let mut changed = Vec::new();
    for (id, sandbox) in &state.sandboxes {
        let unit = Unit::Sandbox(id.clone());
        let Some(unit_state) = state.units.get(&unit) else { continue };
        let interfaces = selectable(&unit_state.interfaces);
        let policies = compile_one(&mut state.policies.index, sandbox, &interfaces);
        // After a restart the table is not known, only whether there is one.
        let is_unknown =
            !state.policies.interfaces.contains_key(id) && !unit_state.policy_interfaces.is_empty();
        if is_unknown || policies.as_ref() != state.policies.interfaces.get(id) {
            changed.push(unit);
        }
    }
    state.dirty.extend(changed);
}

/// The setting is known: tables from before are removed if policies are not enforced any more.
pub(super) fn on_setting(state: &mut State) {
    if state.policies.on_interfaces == Some(false) {
        let with_table =
            state.units.iter().filter(|(_, unit_state)| !unit_state.policy_interfaces.is_empty());
        let with_table: Vec<Unit> = with_table.map(|(unit, _)| unit.clone()).collect();
        state.dirty.extend(with_table);
    }
    update(state);
}

/// Whether policies about additional networks are enforced and known.
fn is_enforced(state: &State) -> bool {
    state.policies.on_interfaces == Some(true) && state.policies.has_synced_on_interfaces()
}

fn compile_one(
    index: &mut PolicyIndex,
    sandbox: &Sandbox,
    interfaces: &[PodInterface],
) -> Option<Arc<InterfacePolicies>> {
    let Sandbox { namespace, pod, uid, .. } = sandbox;
    index.compile_interfaces(LocalPod { namespace, name: pod, uid }, interfaces).map(Arc::new)
}

/// The interfaces that policies can select.
fn selectable(all: &[(ObjectKey, InterfaceReport)]) -> Vec<PodInterface> {
    let selectable = all.iter().filter(|(_, interface)| !interface.networks.is_empty());
    selectable.map(|(_, interface)| (interface.name.clone(), interface.networks.clone())).collect()
}
