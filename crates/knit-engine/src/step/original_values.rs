//! Original values of foreign fields: saved before a plan changes them, restored when no object sets them any more.

use std::collections::BTreeMap;

use knit_model::sysctl;
use knit_model::{NetState, Plan, Scope, Step};
use serde_json::Value;

use crate::event::Unit;
use crate::resolve::{self, Resolved};
use crate::state::{OriginalValueKey, State, UnitState};

/// The original values of fields that a plan changes on foreign links, and of requested sysctls.
pub(super) fn original_values(
    state: &State,
    plan: &Plan,
    had: &UnitState,
    resolved: &Resolved,
    observed: &NetState,
) -> BTreeMap<OriginalValueKey, Value> {
    let mut original_values = BTreeMap::new();
    for planned in &plan.steps {
        match &planned.step {
            Step::ChangeLink { name, changes, .. } => {
                let foreign = resolved
                    .desired
                    .state
                    .link(&planned.scope, name)
                    .is_some_and(|link| link.owner.is_none());
                for change in changes.iter().filter(|_| foreign) {
                    let key = OriginalValueKey {
                        scope: planned.scope.clone(),
                        link: Some(name.clone()),
                        field: change.field.clone(),
                    };
                    original_values.insert(key, change.from.clone());
                }
            }
            // A value that the unit set before is not original, and Knit's defaults stay until the link is removed.
            Step::SetSysctl { key, from, .. }
                if !planned.implied
                    && !had.sysctls.contains(key)
                    && !resolved.default_sysctls.contains(key) =>
            {
                // A new link starts with the pod's default.
                let born_with = || {
                    let there = observed.scopes.get(&planned.scope)?;
                    there.sysctls.get(&sysctl::default_path(key)?).cloned()
                };
                let first = Some(from.clone()).filter(|from| !from.is_empty()).or_else(born_with);
                let key = OriginalValueKey { scope: planned.scope.clone(), link: None, field: key.clone() };
                original_values.extend(first.map(|first| (key, Value::String(first))));
            }
            _ => {}
        }
    }
    original_values.retain(|key, _| !state.original_values.contains_key(key));
    original_values
}

/// Original values that no object overrides any more: this change restores them.
pub(super) fn restored(state: &State, unit: &Unit, resolved: &Resolved) -> Vec<OriginalValueKey> {
    let scope = match unit {
        Unit::Sandbox(id) => Scope::Sandbox(id.clone()),
        Unit::NodeRoutes => return resolve::restored(state, resolved),
        Unit::Bridge(_) | Unit::PacketFilter | Unit::Services | Unit::Policies => return Vec::new(),
    };
    let mine = state.original_values.iter().filter(|(key, _)| key.scope == scope);
    let is_back = |key: &OriginalValueKey, value: &Value| match &key.link {
        Some(name) => resolved
            .desired
            .state
            .link(&scope, name)
            .is_none_or(|link| link.fields().get(&key.field) == Some(value)),
        None => {
            let desired =
                resolved.desired.state.scopes.get(&scope).and_then(|state| state.sysctls.get(&key.field));
            desired.is_none_or(|desired| Some(desired.as_str()) == value.as_str())
        }
    };
    mine.filter(|(key, value)| is_back(key, value)).map(|(key, _)| key.clone()).collect()
}
