//! `knit status`: what Knit has configured on this node, problems and drift.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result};
use knit_engine::Unit;
use knit_engine::state::UnitState;
use knit_kni::v1;
use knit_model::Plan;
use serde_json::json;

use crate::node_args::NodeArgs;
use crate::objects::{object_title, plan_of};
use crate::output;

/// The applied state of each unit.
type UnitStates = Vec<(Unit, UnitState)>;

/// Prints the applied state, problems, drift and orphaned links.
pub fn status(node: &NodeArgs, as_json: bool) -> Result<ExitCode> {
    let response = node.local_api()?.get_status(v1::GetStatusRequest {})?;
    let (drift, orphaned) = (plan_of(response.differences.as_ref())?, plan_of(response.strays.as_ref())?);
    let units: UnitStates =
        serde_json::from_str(&response.made).context("unknown state: the agent has another version")?;
    let problems: BTreeSet<(String, &str)> = response
        .problems
        .iter()
        .map(|problem| (object_title(problem.object.as_ref()), problem.message.as_str()))
        .collect();
    if as_json {
        output::json(&json!({
            "objects": response.objects,
            "sandboxes": response.sandboxes,
            "units": units.iter().map(|(unit, state)| json!({"unit": unit, "state": state})).collect::<Vec<_>>(),
            "problems": problems,
            "drift": drift,
            "orphaned": orphaned,
        }))?;
    } else {
        let mut text = overview(&response, &units);
        for (object, problem) in &problems {
            text += &format!("error: {object}: {problem}\n");
        }
        text += &section("drift; the next apply repairs it:", &drift);
        text += &section(
            "orphaned: created by Knit and no longer required; the next apply removes it:",
            &orphaned,
        );
        output::text(&text)?;
    }
    let applied = problems.is_empty() && drift.is_empty() && orphaned.is_empty();
    Ok(if applied { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn section(title: &str, plan: &Plan) -> String {
    if plan.is_empty() { String::new() } else { format!("{title}\n{plan}\n") }
}

fn overview(response: &v1::GetStatusResponse, units: &UnitStates) -> String {
    let mut rows = Vec::new();
    for (unit, state) in units {
        if let Some(bridge) = &state.bridge {
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
        for (object, interface) in &state.interfaces {
            let master = interface.master.as_ref().map(ToString::to_string).unwrap_or_default();
            let (name, addresses) = (interface.name.to_string(), joined(&interface.addresses));
            let object = v1::ObjectName {
                kind: object.kind.clone(),
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            };
            rows.push([
                id.0.clone(),
                name,
                interface.kind.clone(),
                addresses,
                master,
                object_title(Some(&object)),
            ]);
        }
    }
    let (objects, sandboxes) = (response.objects, response.sandboxes);
    let mut text = format!("{}, {}\n", counted(objects, "object", "s"), counted(sandboxes, "sandbox", "es"));
    if !rows.is_empty() {
        text += &output::table(&["NETNS", "LINK", "KIND", "ADDRESSES", "MASTER", "OBJECT"], rows);
    }
    text
}

fn joined(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn counted(count: u32, noun: &str, plural: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}{plural}") }
}
