//! `knit apply`, `delete`, `plan`, `undo`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use knit_agent::standalone::local_api::merged;
use knit_agent::standalone::read_objects;
use knit_crds::Object;
use knit_engine::Unit;
use knit_kni::v1;
use knit_model::Plan;

use crate::local_api::print_repairs;
use crate::node_args::NodeArgs;
use crate::output;

/// The exit code of `knit plan` if something would change.
const EXIT_WOULD_CHANGE: u8 = 2;

/// Applies the objects in files.
pub fn apply(node: &NodeArgs, files: &[PathBuf], dry_run: bool) -> Result<ExitCode> {
    let request = apply_request(files, dry_run)?;
    let response = node.local_api()?.apply(request)?;
    print_repairs(&response.repairs);
    print_changes(&response.changes, if dry_run { " (dry run)" } else { "" })?;
    Ok(print_problems(&response.problems))
}

/// Prints what applying the objects in files would change.
pub fn plan(node: &NodeArgs, files: &[PathBuf], as_json: bool) -> Result<ExitCode> {
    let request = apply_request(files, true)?;
    let response = node.local_api()?.apply(request)?;
    let plans = plans(&response.plans)?;
    if as_json {
        output::json(&plans)?;
    } else {
        for warning in response.changes.iter().flat_map(|change| &change.warnings) {
            eprintln!("warning: {warning}");
        }
        print_plans(&plans)?;
    }
    Ok(if plans.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WOULD_CHANGE) })
}

/// Deletes the objects in files, or one by kind and name.
pub fn delete(
    node: &NodeArgs,
    files: &[PathBuf],
    object: Option<v1::ObjectName>,
    dry_run: bool,
) -> Result<ExitCode> {
    let mut objects: Vec<v1::ObjectName> = read(files)?.iter().map(name_of).collect();
    let what = if files.is_empty() { "delete".to_owned() } else { format!("delete {}", names(files)) };
    objects.extend(object);
    let response = node.local_api()?.delete_objects(v1::DeleteObjectsRequest { objects, what, dry_run })?;
    if dry_run {
        print_plans(&plans(&response.plans)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_repairs(&response.repairs);
    print_changes(&response.changes, "")?;
    let missing = response.changes.iter().any(|change| change.verb() == v1::ObjectVerb::NotFound);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Rolls back the last apply or delete.
pub fn undo(node: &NodeArgs) -> Result<ExitCode> {
    let response = node.local_api()?.undo(v1::UndoRequest {})?;
    print_repairs(&response.repairs);
    output::text(&format!("rolled back: {}\n", response.what))?;
    print_changes(&response.changes, "")?;
    Ok(print_problems(&response.problems))
}

fn apply_request(files: &[PathBuf], dry_run: bool) -> Result<v1::ApplyRequest> {
    let objects = read(files)?.iter().map(|object| object.to_value().to_string()).collect();
    Ok(v1::ApplyRequest { objects, what: format!("apply {}", names(files)), dry_run })
}

fn read(files: &[PathBuf]) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for file in files {
        objects.extend(read_objects(file)?);
    }
    Ok(objects)
}

fn name_of(object: &Object) -> v1::ObjectName {
    let reference = object.object_ref();
    v1::ObjectName { kind: reference.kind, namespace: reference.namespace, name: reference.name }
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
}

fn print_changes(changes: &[v1::ObjectChange], suffix: &str) -> Result<()> {
    let mut text = String::new();
    for change in changes {
        let verb = match change.verb() {
            v1::ObjectVerb::Created => "created",
            v1::ObjectVerb::Configured => "configured",
            v1::ObjectVerb::Unchanged => "unchanged",
            v1::ObjectVerb::Deleted => "deleted",
            v1::ObjectVerb::NotFound => "not found",
            v1::ObjectVerb::Unspecified => "changed (unknown operation)",
        };
        let title = object_title(change.object.as_ref());
        text += &format!("{title} {verb}{suffix}\n");
        for warning in &change.warnings {
            eprintln!("warning: {title}: {warning}");
        }
    }
    output::text(&text)
}

/// Prints problems to standard error. The exit code is a failure if there are any.
fn print_problems(problems: &[v1::ObjectProblem]) -> ExitCode {
    for problem in problems {
        eprintln!("error: {}: {}", object_title(problem.object.as_ref()), problem.message);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plans(response: &[v1::UnitPlan]) -> Result<Vec<(Unit, Arc<Plan>)>> {
    let plans = response.iter().map(|plan| {
        let unit = serde_json::from_str(&plan.unit).context("unknown unit: the agent has another version")?;
        Ok((unit, Arc::new(plan_of(plan.plan.as_ref())?)))
    });
    plans.collect()
}

/// Decodes the plan in a response.
pub fn plan_of(plan: Option<&v1::Plan>) -> Result<Plan> {
    let Some(plan) = plan else { return Ok(Plan::default()) };
    serde_json::from_str(&plan.json).context("unknown plan step: the agent has another version")
}

fn print_plans(plans: &[(Unit, Arc<Plan>)]) -> Result<()> {
    output::text(&format!("{}\n", merged(plans)))
}

/// `podconfig.podconfig.opdev.io/name`, as kubectl prints it.
pub fn object_title(object: Option<&v1::ObjectName>) -> String {
    let Some(v1::ObjectName { kind, name, .. }) = object else { return String::new() };
    match Object::find_kind(kind) {
        Some(kind) => format!("{}.{}/{name}", kind.singular, kind.group),
        None => format!("{}/{name}", kind.to_lowercase()),
    }
}
