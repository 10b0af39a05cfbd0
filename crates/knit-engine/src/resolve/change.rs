//! Changes of interfaces that others made, and old values that come back.

use std::collections::BTreeMap;

use knit_model::intent::{IntentSpec, LinkChangeIntent};
use knit_model::link::{Attrs, Kind, Link};
use knit_model::plan::Item;
use knit_model::problem::Reason;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::{Sandbox, SandboxId, Scope};

use super::Resolved;
use super::interface::sysctl_path;
use crate::state::{ObjectKey, State};

/// Every change that objects ask for in a sandbox, the first object first.
pub(super) fn all(state: &State, sandbox: &Sandbox, resolved: &mut Resolved) {
    for (object, stored) in state.in_order() {
        for intent in &stored.intents {
            if let IntentSpec::LinkChange(want) = &intent.spec
                && want.pods.matches(&object.namespace, sandbox)
            {
                resolved.askers.insert(object.clone());
                change(sandbox, object, &intent.origin, want, resolved);
            }
        }
    }
}

/// A change of someone else's interface: only the stated fields, and the first object that states one keeps it.
fn change(
    sandbox: &Sandbox,
    object: &ObjectKey,
    why: &Provenance,
    want: &LinkChangeIntent,
    resolved: &mut Resolved,
) {
    let scope = Scope::Sandbox(sandbox.id.clone());
    let mut link = Link::new(want.name.clone(), Kind::Other { name: String::new() });
    if let Some(before) = resolved.desired.state.link(&scope, &want.name) {
        if before.owner.is_some() {
            let message = format!(
                "interface {} of pod {} is Knit's own: change the object that asks for it",
                want.name,
                sandbox.title()
            );
            resolved.problem(object, why.field.clone(), Reason::Conflict, message);
            return;
        }
        link = before.clone();
    }
    let taken = link.fields();
    let asked =
        Link { attrs: want.attrs.clone(), ..Link::new(want.name.clone(), link.kind.clone()) }.fields();
    for field in asked.keys().filter(|field| taken.contains_key(*field)) {
        let message = format!("{field} of {} is changed by another object already", want.name);
        resolved.problem(object, format!("{}.{field}", why.field), Reason::Conflict, message);
    }
    link.attrs = link.attrs.or(&want.attrs);
    resolved.because(&scope, Item::Link(want.name.clone()), why);
    for route in want.routes.iter().map(|route| route.on(&want.name)) {
        resolved.claim_route(&scope, object, why, route);
    }
    for (key, value) in &want.sysctls {
        let path = sysctl_path(key, &want.name);
        match resolved.desired.state.scope(&scope).sysctls.get(&path) {
            Some(taken) if taken != value => {
                let message = format!("{key} of {} is set by another object already", want.name);
                resolved.problem(object, format!("{}.sysctls", why.field), Reason::Conflict, message);
            }
            _ => {
                resolved.because(&scope, Item::Sysctl(path.clone()), why);
                resolved.desired.state.scope(&scope).sysctls.insert(path, value.clone());
            }
        }
    }
    let report = InterfaceReport {
        field: why.field.clone(),
        name: want.name.clone(),
        kind: String::new(),
        addresses: Vec::new(),
        mac: link.attrs.mac,
        mtu: link.attrs.mtu,
        peer: None,
        master: None,
        shown: Vec::new(),
        vlans: None,
        vrf: None,
        limited: false,
        ready: true,
    };
    resolved.made.interfaces.push((object.clone(), report));
    resolved.desired.state.scope(&scope).add_link(link);
}

/// Old values of fields that nobody asks for any more are asked for once more, by Knit itself.
pub(super) fn give_back(state: &State, id: &SandboxId, resolved: &mut Resolved) {
    let scope = Scope::Sandbox(id.clone());
    for (key, value) in state.held.iter().filter(|(key, _)| key.scope == scope) {
        match &key.link {
            None => {
                let sysctls = &mut resolved.desired.state.scope(&scope).sysctls;
                if !sysctls.contains_key(&key.field) {
                    sysctls.insert(key.field.clone(), value.as_str().unwrap_or_default().to_owned());
                    resolved.returned.insert(key.field.clone());
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
