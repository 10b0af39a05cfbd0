//! Changes of foreign interfaces, and the restoration of original values.

use std::collections::BTreeMap;

use knit_model::intent::{IntentSpec, LinkChangeIntent};
use knit_model::link::{Attrs, Kind, Link};
use knit_model::plan::ItemKey;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::{Sandbox, SandboxId, Scope, sysctl};

use super::Resolved;
use crate::state::{ObjectKey, State};

/// All changes that objects request in a sandbox, the oldest object first.
pub(super) fn all(state: &State, sandbox: &Sandbox, resolved: &mut Resolved) {
    for (object, stored) in state.objects.of_namespace_by_age(&sandbox.namespace) {
        for intent in &stored.intents {
            if let IntentSpec::LinkChange(spec) = &intent.spec
                && spec.pods.matches(&object.namespace, sandbox)
            {
                resolved.requesters.insert(object.clone());
                change(sandbox, object, &intent.origin, spec, resolved);
            }
        }
    }
}

/// A change of a foreign interface: only explicit fields, and the first object to set a field wins.
fn change(
    sandbox: &Sandbox,
    object: &ObjectKey,
    origin: &Provenance,
    spec: &LinkChangeIntent,
    resolved: &mut Resolved,
) {
    let scope = Scope::Sandbox(sandbox.id.clone());
    let mut link = Link::new(spec.name.clone(), Kind::Other { name: String::new() });
    if let Some(before) = resolved.desired.state.link(&scope, &spec.name) {
        if before.owner.is_some() {
            let message = format!(
                "interface {} of pod {} is Knit's own: change the object that requests it",
                spec.name,
                sandbox.title()
            );
            resolved.problem(object, origin.field.clone(), Reason::Conflict, message);
            return;
        }
        link = before.clone();
    }
    let taken = link.fields();
    let requested =
        Link { attrs: spec.attrs.clone(), ..Link::new(spec.name.clone(), link.kind.clone()) }.fields();
    for field in requested.keys().filter(|field| taken.contains_key(*field)) {
        let message = format!("{field} of {} is changed by another object already", spec.name);
        resolved.problem(object, format!("{}.{field}", origin.field), Reason::Conflict, message);
    }
    link.attrs = link.attrs.or(&spec.attrs);
    resolved.add_origin(&scope, ItemKey::Link(spec.name.clone()), origin);
    for route in spec.routes.iter().map(|route| route.to_route(&spec.name)) {
        resolved.claim_route(&scope, object, origin, route);
    }
    for (key, value) in &spec.sysctls {
        let path = sysctl::link_path(&spec.name, key);
        match resolved.desired.state.scope(&scope).sysctls.get(&path) {
            Some(taken) if taken != value => {
                let message = format!("{key} of {} is set by another object already", spec.name);
                resolved.problem(object, format!("{}.sysctls", origin.field), Reason::Conflict, message);
            }
            _ => {
                resolved.add_origin(&scope, ItemKey::Sysctl(path.clone()), origin);
                resolved.desired.state.scope(&scope).sysctls.insert(path, value.clone());
            }
        }
    }
    let report = InterfaceReport {
        field: origin.field.clone(),
        name: spec.name.clone(),
        kind: String::new(),
        addresses: Vec::new(),
        mac: link.attrs.mac,
        mtu: link.attrs.mtu,
        peer: None,
        master: None,
        details: Vec::new(),
        vlans: None,
        vrf: None,
        limited: false,
        networks: Vec::new(),
        ready: true,
    };
    resolved.unit_state.interfaces.push((object.clone(), report));
    resolved.desired.state.scope(&scope).add_link(link);
}

/// Adds original values to the desired state for fields that no object sets any more.
pub(super) fn restore(state: &State, id: &SandboxId, resolved: &mut Resolved) {
    let scope = Scope::Sandbox(id.clone());
    for (key, value) in state.original_values.iter().filter(|(key, _)| key.scope == scope) {
        match &key.link {
            None => {
                let sysctls = &mut resolved.desired.state.scope(&scope).sysctls;
                if !sysctls.contains_key(&key.field) {
                    sysctls.insert(key.field.clone(), value.as_str().unwrap_or_default().to_owned());
                    resolved.restored_sysctls.insert(key.field.clone());
                }
            }
            Some(name) => {
                let old = BTreeMap::from([(key.field.clone(), value.clone())]);
                let Ok(old) = serde_json::to_value(old).and_then(serde_json::from_value::<Attrs>) else {
                    continue;
                };
                let links = &mut resolved.desired.state.scope(&scope).links;
                let link = links
                    .entry(name.clone())
                    .or_insert_with(|| Link::new(name.clone(), Kind::Other { name: String::new() }));
                link.attrs = std::mem::take(&mut link.attrs).or(&old);
            }
        }
    }
}
