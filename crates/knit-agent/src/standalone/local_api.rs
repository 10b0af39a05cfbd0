//! The local API: requests and responses of `knit.v1.Standalone`.
//!
//! A command with the node in its own process calls these functions directly; an agent calls them for its clients.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_crds::Object;
use knit_engine::{ObjectKey, State, Unit};
use knit_kni::v1;
use knit_model::filter::{ElementKey, FilterStep};
use knit_model::{Plan, Sandbox, Scope, Step};
use serde::Serialize;

use super::{Action, NodeAccess, ObjectOutcome, Standalone, find_any, with_status};
use crate::error::{Error, Result};
use crate::node::Plans;

/// The namespace of requests without one, as with kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// Applies objects.
pub fn apply<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::ApplyRequest,
) -> Result<v1::ApplyResponse> {
    let v1::ApplyRequest { objects, what, dry_run } = request;
    let objects = objects.iter().enumerate().map(|(index, text)| parse(index, text));
    let objects = objects.collect::<Result<Vec<Object>>>()?;
    if dry_run {
        let (changed, planned) = node.plan(objects)?;
        let (changes, plans) = (changes(&changed), plans(&planned));
        return Ok(v1::ApplyResponse { changes, plans, ..Default::default() });
    }
    let repairs = repair(node)?;
    let changed = node.apply(objects, &what)?;
    let problems = problems(node, changed.iter())?;
    Ok(v1::ApplyResponse { changes: changes(&changed), problems, repairs, plans: Vec::new() })
}

/// Deletes objects and their configuration.
pub fn delete_objects<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::DeleteObjectsRequest,
) -> Result<v1::DeleteObjectsResponse> {
    let v1::DeleteObjectsRequest { objects, what, dry_run } = request;
    let keys: Vec<ObjectKey> = objects.into_iter().map(key).collect();
    if dry_run {
        let plans = plans(&node.plan_delete(&keys)?);
        return Ok(v1::DeleteObjectsResponse { plans, ..Default::default() });
    }
    let repairs = repair(node)?;
    let changes = changes(&node.delete(&keys, &what)?);
    Ok(v1::DeleteObjectsResponse { changes, repairs, plans: Vec::new() })
}

/// Undoes the last change of objects.
pub fn undo<H: NodeAccess>(node: &mut Standalone<H>, _request: v1::UndoRequest) -> Result<v1::UndoResponse> {
    let repairs = repair(node)?;
    let (what, changed) = node.undo()?;
    let problems = problems(node, changed.iter().filter(|change| change.action != Action::Deleted))?;
    Ok(v1::UndoResponse { what, changes: changes(&changed), problems, repairs })
}

/// Lists objects with their status.
pub fn list_objects<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::ListObjectsRequest,
) -> Result<v1::ListObjectsResponse> {
    let v1::ListObjectsRequest { kind, namespace, name } = request;
    node.host.query(move |node| {
        let state = node.state();
        let selected = |key: &&ObjectKey| {
            (kind.is_empty() || kind == key.kind)
                && (name.is_empty() || name == key.name)
                && (namespace.is_empty() || key.namespace.is_empty() || namespace == key.namespace)
        };
        let objects = state.objects.keys().filter(selected).filter_map(|key| object(state, key));
        Ok(v1::ListObjectsResponse { objects: objects.collect() })
    })
}

/// The node's configuration, its problems and its drift.
pub fn get_status<H: NodeAccess>(
    node: &mut Standalone<H>,
    _request: v1::GetStatusRequest,
) -> Result<v1::GetStatusResponse> {
    let differences = plan(&merged(&node.differences()?));
    let strays = plan(&node.host.query_idle(|node| node.strays())?);
    node.host.query(move |node| {
        let state = node.state();
        // Once, however many sandboxes are affected.
        let problems: BTreeSet<(&ObjectKey, String)> = state
            .problems
            .values()
            .flatten()
            .map(|(object, problem)| (object, problem.to_string()))
            .collect();
        let problems = problems.into_iter().map(|(key, message)| problem(key, message)).collect();
        let unit_states: Vec<_> = state.units.iter().collect();
        Ok(v1::GetStatusResponse {
            objects: count(state.objects.len()),
            sandboxes: count(state.sandboxes.len()),
            made: json(&unit_states),
            problems,
            differences: Some(differences),
            strays: Some(strays),
        })
    })
}

/// Adds a sandbox.
pub fn add_sandbox<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::AddSandboxRequest,
) -> Result<v1::AddSandboxResponse> {
    let v1::AddSandboxRequest { sandbox, labels, pid } = request;
    let (namespace, name) = named(sandbox)?;
    let repairs = repair(node)?;
    node.add_sandbox(&namespace, &name, labels, pid)?;
    Ok(v1::AddSandboxResponse { repairs })
}

/// Changes a sandbox's labels.
pub fn label_sandbox<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::LabelSandboxRequest,
) -> Result<v1::LabelSandboxResponse> {
    let v1::LabelSandboxRequest { sandbox, changes } = request;
    let (namespace, name) = named(sandbox)?;
    let repairs = repair(node)?;
    let change = move |labels: &mut BTreeMap<String, String>| {
        for v1::LabelChange { key, value } in changes {
            match value {
                Some(value) => labels.insert(key, value),
                None => labels.remove(&key),
            };
        }
    };
    node.label_sandbox(&namespace, &name, change)?;
    Ok(v1::LabelSandboxResponse { repairs })
}

/// Removes a sandbox's configuration and stops its holder.
pub fn end_sandbox<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::EndSandboxRequest,
) -> Result<v1::EndSandboxResponse> {
    let (namespace, name) = named(request.sandbox)?;
    let repairs = repair(node)?;
    node.delete_sandbox(&namespace, &name)?;
    Ok(v1::EndSandboxResponse { repairs })
}

/// Lists sandboxes with their interfaces.
pub fn list_sandboxes<H: NodeAccess>(
    node: &mut Standalone<H>,
    request: v1::ListSandboxesRequest,
) -> Result<v1::ListSandboxesResponse> {
    let one = request.sandbox.map(|sandbox| named(Some(sandbox))).transpose()?;
    node.host.query(move |node| {
        let state = node.state();
        let selected: Vec<&Sandbox> = match one {
            Some((namespace, name)) => vec![find_any(state, &namespace, &name)?],
            None => state.sandboxes.values().collect(),
        };
        let sandboxes = selected.into_iter().map(|sandbox| with_interfaces(state, sandbox)).collect();
        Ok(v1::ListSandboxesResponse { sandboxes })
    })
}

fn repair<H: NodeAccess>(node: &mut Standalone<H>) -> Result<Vec<String>> {
    Ok(node.repair()?.iter().map(ToString::to_string).collect())
}

/// Parses an object of a request. Errors of files are reported earlier, with file and line.
fn parse(index: usize, text: &str) -> Result<Object> {
    let failed = |why: knit_crds::ParseErrors| Error::Request {
        field: format!("objects[{index}]"),
        why: why.to_string(),
    };
    Object::parse(text).map_err(failed)
}

fn object(state: &State, key: &ObjectKey) -> Option<v1::StandaloneObject> {
    let report = state.report(key)?;
    Some(v1::StandaloneObject {
        object: Some(name(key)),
        manifest: json(&with_status(state, key)?),
        problems: report.problems.iter().map(ToString::to_string).collect(),
        warnings: report.warnings,
        file: state.objects.get(key)?.file.clone().unwrap_or_default(),
    })
}

/// The problems of changed objects.
fn problems<'a, H: NodeAccess>(
    node: &mut Standalone<H>,
    changes: impl Iterator<Item = &'a ObjectOutcome>,
) -> Result<Vec<v1::ObjectProblem>> {
    let keys: Vec<ObjectKey> = changes.map(|change| change.key.clone()).collect();
    node.host.query(move |node| {
        let reports = keys.iter().filter_map(|key| Some((key, node.state().report(key)?)));
        let problems = reports.flat_map(|(key, report)| {
            let each = report.problems.into_iter();
            each.map(move |what| problem(key, what.to_string()))
        });
        Ok(problems.collect())
    })
}

fn problem(key: &ObjectKey, message: String) -> v1::ObjectProblem {
    v1::ObjectProblem { object: Some(name(key)), message }
}

fn changes(changes: &[ObjectOutcome]) -> Vec<v1::ObjectChange> {
    let verb = |action| match action {
        Action::Created => v1::ObjectVerb::Created,
        Action::Configured => v1::ObjectVerb::Configured,
        Action::Unchanged => v1::ObjectVerb::Unchanged,
        Action::Deleted => v1::ObjectVerb::Deleted,
        Action::NotFound => v1::ObjectVerb::NotFound,
    };
    let each = changes.iter().map(|change| v1::ObjectChange {
        object: Some(name(&change.key)),
        verb: verb(change.action).into(),
        warnings: change.warnings.clone(),
    });
    each.collect()
}

fn with_interfaces(state: &State, sandbox: &Sandbox) -> v1::StandaloneSandbox {
    let unit_state = state.units.get(&Unit::Sandbox(sandbox.id.clone()));
    let interfaces = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
    let Sandbox { namespace, pod, .. } = sandbox;
    v1::StandaloneSandbox {
        sandbox: Some(v1::SandboxName { namespace: namespace.clone(), name: pod.clone() }),
        pid: sandbox.number,
        netns: sandbox.netns.clone(),
        labels: sandbox.labels.clone(),
        interfaces: interfaces.map(|(_, interface)| interface.name.to_string()).collect(),
    }
}

/// Merges plans into one, for display. Missing tables are restored with the elements of all units, and without them each unit
/// also plans its own: such an element is shown once.
pub fn merged(plans: &[(Unit, Arc<Plan>)]) -> Plan {
    let mut merged_plan = Plan::default();
    let mut elements: BTreeMap<(&Scope, &ElementKey), usize> = BTreeMap::new();
    for planned in plans.iter().flat_map(|(_, plan)| &plan.steps) {
        if let Step::Filter(FilterStep::AddElement(key, _)) = &planned.step {
            match elements.entry((&planned.scope, key)) {
                Entry::Occupied(first) => {
                    merged_plan.steps[*first.get()].origins.extend(planned.origins.iter().cloned());
                    continue;
                }
                Entry::Vacant(new) => drop(new.insert(merged_plan.steps.len())),
            }
        }
        merged_plan.steps.push(planned.clone());
    }
    merged_plan.problems.extend(plans.iter().flat_map(|(_, plan)| plan.problems.iter().cloned()));
    // Steps that the kernel implies when it deletes a link are noise for readers.
    merged_plan.steps.retain(|planned| !planned.implied || planned.scope == Scope::Host);
    merged_plan
}

/// Renders a plan.
pub(crate) fn plan(plan: &Plan) -> v1::Plan {
    v1::Plan {
        text: plan.to_string(),
        json: json(plan),
        steps: count(plan.steps.len()),
        step_texts: plan.step_texts(),
    }
}

fn plans(plans: &Plans) -> Vec<v1::UnitPlan> {
    let each = plans.iter().map(|(unit, one)| v1::UnitPlan { unit: json(unit), plan: Some(plan(one)) });
    each.collect()
}

fn key(object: v1::ObjectName) -> ObjectKey {
    let v1::ObjectName { kind, namespace, name } = object;
    ObjectKey { kind, namespace, name }
}

fn name(key: &ObjectKey) -> v1::ObjectName {
    let ObjectKey { kind, namespace, name } = key.clone();
    v1::ObjectName { kind, namespace, name }
}

fn named(sandbox: Option<v1::SandboxName>) -> Result<(String, String)> {
    let v1::SandboxName { namespace, name } = sandbox.unwrap_or_default();
    if name.is_empty() {
        return Err(Error::Request { field: "sandbox.name".to_owned(), why: "required".to_owned() });
    }
    let namespace = if namespace.is_empty() { DEFAULT_NAMESPACE.to_owned() } else { namespace };
    Ok((namespace, name))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the state serialises to JSON")
}
