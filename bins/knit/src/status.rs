//! `knit status`: what Knit has made on this node, what is in the way, and what is not as it was made.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use knit_agent::Standalone;
use knit_engine::Unit;
use knit_model::Plan;
use serde_json::json;

use crate::objects::{merged, title};
use crate::output;
use crate::place::Place;

/// Prints what the node has, what is in the way of what, and what differs from the kernel.
pub fn status(place: &Place, as_json: bool) -> Result<ExitCode> {
    let mut node = place.open()?;
    let differences = merged(&node.differences()?);
    let strays = node.node().strays()?;
    let state = node.state();
    // Said once, however many sandboxes it stands in the way of.
    let problems: BTreeSet<(String, String)> = state
        .problems
        .values()
        .flatten()
        .map(|(object, problem)| (title(object), problem.to_string()))
        .collect();
    if as_json {
        output::json(&json!({
            "objects": state.objects.len(),
            "sandboxes": state.sandboxes.len(),
            "units": state.made.iter().map(|(unit, made)| json!({"unit": unit, "made": made})).collect::<Vec<_>>(),
            "problems": problems,
            "differences": differences,
            "strays": strays,
        }))?;
    } else {
        let mut text = overview(&node);
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

fn overview(node: &Standalone) -> String {
    let state = node.state();
    let mut rows = Vec::new();
    for (unit, made) in &state.made {
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
            rows.push([id.0.clone(), name, interface.kind.clone(), addresses, on, title(object)]);
        }
    }
    let (objects, sandboxes) = (state.objects.len(), state.sandboxes.len());
    let mut text = format!("{}, {}\n", counted(objects, "object", "s"), counted(sandboxes, "sandbox", "es"));
    if !rows.is_empty() {
        text += &output::table(&["WHERE", "LINK", "KIND", "ADDRESSES", "ON", "ASKED BY"], rows);
    }
    text
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn counted(count: usize, noun: &str, plural: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}{plural}") }
}
