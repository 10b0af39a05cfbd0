//! `knit apply`, `delete`, `plan`, `undo`: changing objects.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use knit_agent::standalone::desk::merged;
use knit_agent::standalone::read_objects;
use knit_crds::Object;
use knit_engine::Unit;
use knit_kni::v1;
use knit_model::Plan;

use crate::desk::tell_repairs;
use crate::output;
use crate::place::Place;

/// The exit code of `knit plan` when something would change.
const WOULD_CHANGE: u8 = 2;

/// Applies the objects of files.
pub fn apply(place: &Place, files: &[PathBuf], dry_run: bool) -> Result<ExitCode> {
    let request = asked(files, dry_run)?;
    let answer = place.desk()?.apply(request)?;
    tell_repairs(&answer.repairs);
    show(&answer.changes, if dry_run { " (dry run)" } else { "" })?;
    Ok(complain(&answer.problems))
}

/// Shows what applying the objects of files would change.
pub fn plan(place: &Place, files: &[PathBuf], as_json: bool) -> Result<ExitCode> {
    let request = asked(files, true)?;
    let answer = place.desk()?.apply(request)?;
    let plans = plans(&answer.plans)?;
    if as_json {
        output::json(&plans)?;
    } else {
        for warning in answer.changes.iter().flat_map(|change| &change.warnings) {
            eprintln!("warning: {warning}");
        }
        show_plans(&plans)?;
    }
    Ok(if plans.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WOULD_CHANGE) })
}

/// Deletes the objects of files, or one by kind and name.
pub fn delete(
    place: &Place,
    files: &[PathBuf],
    named: Option<v1::ObjectName>,
    dry_run: bool,
) -> Result<ExitCode> {
    let mut objects: Vec<v1::ObjectName> = read(files)?.iter().map(name_of).collect();
    let what = if files.is_empty() { "delete".to_owned() } else { format!("delete {}", names(files)) };
    objects.extend(named);
    let answer = place.desk()?.delete_objects(v1::DeleteObjectsRequest { objects, what, dry_run })?;
    if dry_run {
        show_plans(&plans(&answer.plans)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    tell_repairs(&answer.repairs);
    show(&answer.changes, "")?;
    let missing = answer.changes.iter().any(|change| change.verb() == v1::ObjectVerb::NotFound);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Takes the newest change back.
pub fn undo(place: &Place) -> Result<ExitCode> {
    let answer = place.desk()?.undo(v1::UndoRequest {})?;
    tell_repairs(&answer.repairs);
    output::text(&format!("undone: {}\n", answer.what))?;
    show(&answer.changes, "")?;
    Ok(complain(&answer.problems))
}

fn asked(files: &[PathBuf], dry_run: bool) -> Result<v1::ApplyRequest> {
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

fn show(changes: &[v1::ObjectChange], remark: &str) -> Result<()> {
    let mut text = String::new();
    for change in changes {
        let verb = match change.verb() {
            v1::ObjectVerb::Created => "created",
            v1::ObjectVerb::Configured => "configured",
            v1::ObjectVerb::Unchanged => "unchanged",
            v1::ObjectVerb::Deleted => "deleted",
            v1::ObjectVerb::NotFound => "not found",
            v1::ObjectVerb::Unspecified => "changed in a way that this knit does not know",
        };
        let title = title(change.object.as_ref());
        text += &format!("{title} {verb}{remark}\n");
        for warning in &change.warnings {
            eprintln!("warning: {title}: {warning}");
        }
    }
    output::text(&text)
}

/// What stands in the way of objects, on standard error; then the command has failed.
fn complain(problems: &[v1::ObjectProblem]) -> ExitCode {
    for problem in problems {
        eprintln!("error: {}: {}", title(problem.object.as_ref()), problem.message);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plans(answered: &[v1::UnitPlan]) -> Result<Vec<(Unit, Arc<Plan>)>> {
    let each = answered.iter().map(|one| {
        let unit =
            serde_json::from_str(&one.unit).context("the agent names a unit that this knit does not know")?;
        Ok((unit, Arc::new(plan_of(one.plan.as_ref())?)))
    });
    each.collect()
}

/// A plan as it was answered.
pub fn plan_of(plan: Option<&v1::Plan>) -> Result<Plan> {
    let Some(plan) = plan else { return Ok(Plan::default()) };
    serde_json::from_str(&plan.json).context("the agent's plan has steps that this knit does not know")
}

fn show_plans(plans: &[(Unit, Arc<Plan>)]) -> Result<()> {
    output::text(&format!("{}\n", merged(plans)))
}

/// `podconfig.podconfig.opdev.io/name`, as kubectl writes it.
pub fn title(object: Option<&v1::ObjectName>) -> String {
    let Some(v1::ObjectName { kind, name, .. }) = object else { return String::new() };
    match Object::find_kind(kind) {
        Some(kind) => format!("{}.{}/{name}", kind.singular, kind.group),
        None => format!("{}/{name}", kind.to_lowercase()),
    }
}
