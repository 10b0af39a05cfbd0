//! Old values of what is not Knit's: what a plan is about to change, and what is back after it.

use std::collections::BTreeMap;

use knit_model::intent::default_of;
use knit_model::{NetState, Plan, Scope, Step};
use serde_json::Value;

use crate::event::Unit;
use crate::resolve::{self, Resolved};
use crate::state::{HeldKey, Made, State};

/// The first values of what a plan changes on links that are not Knit's, and of the sysctls that someone asked for.
pub(super) fn held(
    state: &State,
    plan: &Plan,
    had: &Made,
    resolved: &Resolved,
    seen: &NetState,
) -> BTreeMap<HeldKey, Value> {
    let mut held = BTreeMap::new();
    for planned in &plan.steps {
        match &planned.step {
            Step::ChangeLink { name, changes, .. } => {
                let foreign = resolved
                    .desired
                    .state
                    .link(&planned.scope, name)
                    .is_some_and(|link| link.owner.is_none());
                for change in changes.iter().filter(|_| foreign) {
                    let key = HeldKey {
                        scope: planned.scope.clone(),
                        link: Some(name.clone()),
                        field: change.field.clone(),
                    };
                    held.insert(key, change.from.clone());
                }
            }
            // What the unit had set before is no first value, and what Knit sets by itself it keeps until the link goes.
            Step::SetSysctl { key, from, .. }
                if !planned.implied && !had.sysctls.contains(key) && !resolved.habits.contains(key) =>
            {
                // A new link begins with the default of the pod.
                let born_with = || {
                    let there = seen.scopes.get(&planned.scope)?;
                    there.sysctls.get(&default_of(key)?).cloned()
                };
                let first = Some(from.clone()).filter(|from| !from.is_empty()).or_else(born_with);
                let key = HeldKey { scope: planned.scope.clone(), link: None, field: key.clone() };
                held.extend(first.map(|first| (key, Value::String(first))));
            }
            _ => {}
        }
    }
    held.retain(|key, _| !state.held.contains_key(key));
    held
}

/// Held values that nobody overrides any more: after this change they are back.
pub(super) fn given_back(state: &State, unit: &Unit, resolved: &Resolved) -> Vec<HeldKey> {
    let scope = match unit {
        Unit::Sandbox(id) => Scope::Sandbox(id.clone()),
        Unit::NodeRoutes => return resolve::given_back(state, resolved),
        Unit::Bridge(_) => return Vec::new(),
    };
    let mine = state.held.iter().filter(|(key, _)| key.scope == scope);
    let is_back = |key: &HeldKey, value: &Value| match &key.link {
        Some(name) => resolved
            .desired
            .state
            .link(&scope, name)
            .is_none_or(|link| link.fields().get(&key.field) == Some(value)),
        None => {
            let wanted =
                resolved.desired.state.scopes.get(&scope).and_then(|state| state.sysctls.get(&key.field));
            wanted.is_none_or(|wanted| Some(wanted.as_str()) == value.as_str())
        }
    };
    mine.filter(|(key, value)| is_back(key, value)).map(|(key, _)| key.clone()).collect()
}
