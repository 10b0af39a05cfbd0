//! `knit apply`, `delete`, `plan`, `undo`: changing objects.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use knit_agent::Standalone;
use knit_agent::standalone::{Change, Verb, read_objects};
use knit_crds::Object;
use knit_engine::{ObjectKey, Unit};
use knit_model::{Plan, Scope};

use crate::output;
use crate::place::Place;

/// The exit code of `knit plan` when something would change.
const WOULD_CHANGE: u8 = 2;

/// Applies the objects of files.
pub fn apply(place: &Place, files: &[PathBuf], dry_run: bool) -> Result<ExitCode> {
    let objects = read(files)?;
    if dry_run {
        let (changes, _) = place.open()?.plan(objects)?;
        show(&changes, " (dry run)")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut node = place.change()?;
    let changes = node.apply(objects, &format!("apply {}", names(files)))?;
    show(&changes, "")?;
    problems(&node, changes.iter().map(|change| &change.key))
}

/// Shows what applying the objects of files would change.
pub fn plan(place: &Place, files: &[PathBuf], as_json: bool) -> Result<ExitCode> {
    let objects = read(files)?;
    let (changes, plans) = place.open()?.plan(objects)?;
    if as_json {
        output::json(&plans)?;
    } else {
        for warning in changes.iter().flat_map(|change| &change.warnings) {
            eprintln!("warning: {warning}");
        }
        show_plans(&plans)?;
    }
    Ok(if plans.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(WOULD_CHANGE) })
}

/// Deletes the objects of files, or one by kind and name.
pub fn delete(place: &Place, files: &[PathBuf], named: Option<ObjectKey>, dry_run: bool) -> Result<ExitCode> {
    let mut keys: Vec<ObjectKey> = read(files)?.iter().map(key_of).collect();
    let what = if files.is_empty() { "delete".to_owned() } else { format!("delete {}", names(files)) };
    keys.extend(named);
    if dry_run {
        show_plans(&place.open()?.plan_delete(&keys)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut node = place.change()?;
    let changes = node.delete(&keys, &what)?;
    show(&changes, "")?;
    let missing = changes.iter().any(|change| change.verb == Verb::NotFound);
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Takes the newest change back.
pub fn undo(place: &Place) -> Result<ExitCode> {
    let mut node = place.change()?;
    let (what, changes) = node.undo()?;
    output::text(&format!("undone: {what}\n"))?;
    show(&changes, "")?;
    problems(&node, changes.iter().filter(|change| change.verb != Verb::Deleted).map(|change| &change.key))
}

fn read(files: &[PathBuf]) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for file in files {
        objects.extend(read_objects(file)?);
    }
    Ok(objects)
}

fn key_of(object: &Object) -> ObjectKey {
    let reference = object.object_ref();
    ObjectKey { kind: reference.kind, namespace: reference.namespace, name: reference.name }
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
}

fn show(changes: &[Change], remark: &str) -> Result<()> {
    let mut text = String::new();
    for change in changes {
        let verb = match change.verb {
            Verb::Created => "created",
            Verb::Configured => "configured",
            Verb::Unchanged => "unchanged",
            Verb::Deleted => "deleted",
            Verb::NotFound => "not found",
        };
        text += &format!("{} {verb}{remark}\n", title(&change.key));
        for warning in &change.warnings {
            eprintln!("warning: {}: {warning}", title(&change.key));
        }
    }
    output::text(&text)
}

/// What stands in the way of these objects, on standard error; then the command has failed.
fn problems<'a>(node: &Standalone, keys: impl Iterator<Item = &'a ObjectKey>) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for key in keys {
        let Some(report) = node.state().report(key) else { continue };
        for problem in &report.problems {
            eprintln!("error: {}: {problem}", title(key));
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

fn show_plans(plans: &[(Unit, Arc<Plan>)]) -> Result<()> {
    output::text(&format!("{}\n", merged(plans)))
}

/// Plans as one, for people.
pub fn merged(plans: &[(Unit, Arc<Plan>)]) -> Plan {
    let mut whole = Plan::default();
    for (_, plan) in plans {
        whole.steps.extend(plan.steps.iter().cloned());
        whole.problems.extend(plan.problems.iter().cloned());
    }
    // A link that goes takes some things with it: those steps are the kernel's, and only noise to a reader.
    whole.steps.retain(|planned| !planned.implied || planned.scope == Scope::Host);
    whole
}

/// `podconfig.podconfig.opdev.io/name`, as kubectl writes it.
pub fn title(key: &ObjectKey) -> String {
    match Object::find_kind(&key.kind) {
        Some(kind) => format!("{}.{}/{}", kind.singular, kind.group, key.name),
        None => format!("{}/{}", key.kind.to_lowercase(), key.name),
    }
}
