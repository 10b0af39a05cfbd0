//! `knit status`: what Knit has made on this node, what is in the way, and what is not as it was made.

use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{Table, presets};
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
    let problems: Vec<(String, String)> = state
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
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["WHERE", "LINK", "KIND", "ADDRESSES", "ON", "ASKED BY"]);
    for (unit, made) in &state.made {
        if let Some(bridge) = &made.bridge {
            let addresses: Vec<String> = bridge.addresses.iter().map(ToString::to_string).collect();
            table.add_row(["host", bridge.name.as_str(), "bridge", &addresses.join(","), "", ""]);
        }
        let Unit::Sandbox(id) = unit else { continue };
        for (object, interface) in &made.interfaces {
            let addresses: Vec<String> = interface.addresses.iter().map(ToString::to_string).collect();
            let on = interface.master.as_ref().map(ToString::to_string).unwrap_or_default();
            table.add_row([
                &id.0,
                interface.name.as_str(),
                &interface.kind,
                &addresses.join(","),
                &on,
                &title(object),
            ]);
        }
    }
    let mut text = format!("{} objects, {} sandboxes\n", state.objects.len(), state.sandboxes.len());
    if !state.made.is_empty() {
        text += &output::table(&table);
    }
    text
}
