//! Compares one pod with its desired configuration: everything missing, changed or left over. Changes nothing.

use std::collections::BTreeSet;

use knit_engine::{Event, State, Unit};
use knit_ipam::AttachmentId;
use knit_kni::{Reason, RpcError, v1};
use knit_model::plan::{PlannedStep, Step, StepEffect};
use knit_model::{IfName, Plan, Problem, SandboxId, Scope};

use super::request::Checked;
use crate::node::Node;

/// Compares a sandbox and its bridges with the kernel, and its addresses with their leases.
pub(super) fn differences(node: &mut Node, id: &SandboxId) -> Checked<Vec<v1::Difference>> {
    let unit = Unit::Sandbox(id.clone());
    let unit_state = node.state().units.get(&unit);
    let bridges =
        unit_state.into_iter().flat_map(|unit_state| &unit_state.used_bridges).cloned().map(Unit::Bridge);
    let units: BTreeSet<Unit> = bridges.chain([unit.clone()]).collect();
    if let Some(busy) = units.iter().find(|unit| node.state().is_in_flight(unit)) {
        return Err(RpcError::new(Reason::Busy, format!("{busy}: a change is in flight, try again")));
    }
    let mut found = leases(node.state(), &unit, id);
    let result = node.dry_run([Event::ResyncUnits(units)]);
    let (after, outcome) = result.map_err(|why| RpcError::new(Reason::Internal, why.to_string()))?;
    if !after.sandboxes.contains_key(id) {
        return Ok(vec![difference(
            v1::DifferenceKind::Missing,
            "host",
            "namespace",
            "its network namespace",
        )]);
    }
    for (_, plan) in &outcome.plans {
        found.extend(of_plan(plan));
    }
    // Problems of the plans are among the differences already.
    let planned: Vec<&Problem> =
        outcome.plans.iter().flat_map(|(_, plan)| &plan.problems).map(|(_, problem)| problem).collect();
    let mut reported: Vec<&Problem> = Vec::new();
    for (_, problem) in after.problems.get(&unit).into_iter().flatten() {
        // Several objects may have the same one.
        if !planned.contains(&problem) && !reported.contains(&problem) {
            found.push(difference(v1::DifferenceKind::Missing, "pod", "interface", problem.to_string()));
            reported.push(problem);
        }
    }
    Ok(found)
}

fn difference(kind: v1::DifferenceKind, place: &str, item: &str, what: impl Into<String>) -> v1::Difference {
    v1::Difference { kind: kind.into(), place: place.to_owned(), item: item.to_owned(), what: what.into() }
}

/// Addresses of interfaces without a live lease.
fn leases(state: &State, unit: &Unit, id: &SandboxId) -> Vec<v1::Difference> {
    let interfaces = state.units.get(unit).into_iter().flat_map(|unit_state| &unit_state.interfaces);
    let missing = interfaces.flat_map(|(_, report)| {
        let owner = AttachmentId { sandbox: id.clone(), interface: report.name.clone() };
        let held: BTreeSet<_> = state.leases.held_by(&owner).map(|key| key.address).collect();
        let lost = report.addresses.iter().filter(move |address| !held.contains(&address.addr()));
        lost.map(move |address| format!("lease of {address} for {}", report.name))
    });
    missing.map(|what| difference(v1::DifferenceKind::Missing, "host", "lease", what)).collect()
}

/// Every step of the plan is a difference.
fn of_plan(plan: &Plan) -> Vec<v1::Difference> {
    let born: BTreeSet<(&Scope, &IfName)> = plan
        .steps
        .iter()
        .filter_map(|planned| match &planned.step {
            Step::CreateLink { link, .. } => Some((&planned.scope, &link.name)),
            _ => None,
        })
        .collect();
    let far: BTreeSet<(&Scope, &IfName)> = plan
        .steps
        .iter()
        .filter_map(|planned| match &planned.step {
            Step::CreateLink { peer: Some((scope, link)), .. } => Some((scope, &link.name)),
            _ => None,
        })
        .collect();
    // State changes of a link that is missing itself are not reported.
    let is_reported = |planned: &&PlannedStep| match &planned.step {
        Step::ChangeLink { name, .. } => {
            !born.contains(&(&planned.scope, name)) && !far.contains(&(&planned.scope, name))
        }
        _ => !planned.implied,
    };
    let mut found: Vec<v1::Difference> = plan.steps.iter().filter(is_reported).flat_map(of_step).collect();
    found.extend(plan.problems.iter().map(|(scope, problem)| {
        difference(v1::DifferenceKind::Missing, place(scope), "link", problem.to_string())
    }));
    found
}

fn of_step(planned: &PlannedStep) -> Vec<v1::Difference> {
    let item = match &planned.step {
        Step::CreateLink { .. } | Step::DeleteLink { .. } | Step::ChangeLink { .. } => "link",
        Step::AddAddress(_) | Step::RemoveAddress(_) => "address",
        Step::AddRoute(_) | Step::RemoveRoute(_) | Step::ReplaceRoute { .. } => "route",
        Step::AddRule(_) | Step::RemoveRule(_) => "rule",
        Step::AddNeighbour(_) | Step::RemoveNeighbour(_) | Step::ReplaceNeighbour { .. } => "neighbour",
        Step::SetSysctl { .. } => "sysctl",
        Step::Filter(_) => "filter",
    };
    let kind = match planned.step.effect() {
        StepEffect::Add => v1::DifferenceKind::Missing,
        StepEffect::Remove => v1::DifferenceKind::LeftOver,
        StepEffect::Change => v1::DifferenceKind::Changed,
    };
    let at = place(&planned.scope);
    match &planned.step {
        Step::ChangeLink { name, changes, .. } => {
            let each = changes.iter().map(|change| format!("link {name}: {change}"));
            each.map(|what| difference(kind, at, item, what)).collect()
        }
        step => vec![difference(kind, at, item, step.to_string())],
    }
}

fn place(scope: &Scope) -> &'static str {
    if *scope == Scope::Host { "host" } else { "pod" }
}
