//! Nodes that are full: what one more pod costs there, and what the agent keeps in memory.

use anyhow::{Context, Result};

use super::plugins::{self, ADD};
use super::sandboxes::{self, STARTED};
use super::side::Side;
use super::{Extent, Sides};
use knit_report::Report;

/// So many are started at once; a node is filled step by step.
const AT_ONCE: usize = 20;
/// A sandbox takes long on a full node: enough rounds for a median.
const ROUNDS: usize = 40;
/// What the agent of a full node may keep in memory, in MiB.
const MEMORY: f64 = 25.0;

/// Fills a node of each cluster, then measures one pod more.
pub fn run(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    memory(report, &sides.knit, 0, None)?;
    let mut there = 0;
    while there < extent.pods {
        let next = (there + AT_ONCE).min(extent.pods);
        for side in [&sides.knit, &sides.reference] {
            side.node().cri.run_all((there..next).map(|pod| format!("full-{pod}")).collect())?;
        }
        there = next;
    }
    memory(report, &sides.knit, there, Some(MEMORY))?;
    let with = format!(", with {there} pods on the node");
    plugins::one_by_one(report, sides, extent.rounds, &with)?;
    sandboxes::one_by_one(report, sides, extent.rounds.min(ROUNDS), &with)?;
    // How the cost grew with the pods.
    for side in [&sides.knit, &sides.reference] {
        for what in [ADD, STARTED] {
            report.compare(&side.row(&format!("{what}{with}")), &side.row(what), None)?;
        }
    }
    Ok(())
}

fn memory(report: &mut Report, knit: &Side, pods: usize, most: Option<f64>) -> Result<()> {
    let used = plugins::agent(knit)?.context("Knit has an agent")?;
    report.add_once(&format!("Knit: agent, RssAnon with {pods} pods"), used.anonymous, "MiB", most);
    Ok(())
}
