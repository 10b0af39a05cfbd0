//! `knit status`: what Knit has made on this node, what is in the way, and what is not as it was made.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result};
use knit_engine::Unit;
use knit_engine::state::Made;
use knit_kni::v1;
use knit_model::Plan;
use serde_json::json;

use crate::objects::{plan_of, title};
use crate::output;
use crate::place::Place;

/// What each unit has.
type AllMade = Vec<(Unit, Made)>;

/// Prints what the node has, what is in the way of what, and what differs from the kernel.
pub fn status(place: &Place, as_json: bool) -> Result<ExitCode> {
    let answer = place.desk()?.get_status(v1::GetStatusRequest {})?;
    let (differences, strays) = (plan_of(answer.differences.as_ref())?, plan_of(answer.strays.as_ref())?);
    let made: AllMade =
        serde_json::from_str(&answer.made).context("the agent has made what this knit does not know")?;
    let problems: BTreeSet<(String, &str)> = answer
        .problems
        .iter()
        .map(|problem| (title(problem.object.as_ref()), problem.message.as_str()))
        .collect();
    if as_json {
        output::json(&json!({
            "objects": answer.objects,
            "sandboxes": answer.sandboxes,
            "units": made.iter().map(|(unit, made)| json!({"unit": unit, "made": made})).collect::<Vec<_>>(),
            "problems": problems,
            "differences": differences,
            "strays": strays,
        }))?;
    } else {
        let mut text = overview(&answer, &made);
        for (object, problem) in &problems {
            text += &format!("error: {object}: {problem}\n");
        }
        text += &to_do("not as asked for; the next apply repairs it:", &differences);
        text += &to_do("has Knit's mark and nobody asks for it; the next apply removes it:", &strays);
        output::text(&text)?;
    }
    let stands = problems.is_empty() && differences.is_empty() && strays.is_empty();
    Ok(if stands { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn to_do(title: &str, plan: &Plan) -> String {
    if plan.is_empty() { String::new() } else { format!("{title}\n{plan}\n") }
}

fn overview(answer: &v1::GetStatusResponse, made: &AllMade) -> String {
    let mut rows = Vec::new();
    for (unit, made) in made {
        if let Some(bridge) = &made.bridge {
            let (name, addresses) = (bridge.name.to_string(), joined(&bridge.addresses));
            rows.push([
                "host".to_owned(),
                name,
                "bridge".to_owned(),
                addresses,
                String::new(),
                String::new(),
            ]);
        }
        let Unit::Sandbox(id) = unit else { continue };
        for (object, interface) in &made.interfaces {
            let on = interface.master.as_ref().map(ToString::to_string).unwrap_or_default();
            let (name, addresses) = (interface.name.to_string(), joined(&interface.addresses));
            let asked_by = v1::ObjectName {
                kind: object.kind.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            };
            rows.push([id.0.clone(), name, interface.kind.clone(), addresses, on, title(Some(&asked_by))]);
        }
    }
    let (objects, sandboxes) = (answer.objects, answer.sandboxes);
    let mut text = format!("{}, {}\n", counted(objects, "object", "s"), counted(sandboxes, "sandbox", "es"));
    if !rows.is_empty() {
        text += &output::table(&["WHERE", "LINK", "KIND", "ADDRESSES", "ON", "ASKED BY"], rows);
    }
    text
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn counted(count: u32, noun: &str, plural: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}{plural}") }
}
