//! Records what enters the agents' decisions during a soak, and replays it afterwards: the decisions must be the same.

use anyhow::{Context, Result};
use knit_dev::progress::Step;

use crate::harness::{KnitCluster, OPERATOR_NAMESPACE};

/// The recording of each node, in the agent's container and on the node.
const FILE: &str = "/var/lib/knit/soak-recording.jsonl";
/// The program in the image.
const KNIT: &str = "/usr/local/bin/knit";
/// The agents.
const AGENTS: &str = "daemonset/knit-agent";

/// Agents that record. Dropping this ends the recordings and deletes them.
pub struct Recording<'a> {
    knit: &'a KnitCluster,
}

impl<'a> Recording<'a> {
    /// Restarts the agents with a recording.
    pub fn start(knit: &'a KnitCluster) -> Result<Self> {
        let step = Step::start("restart the agents with a recording");
        let recording = Self { knit };
        recording.set(&format!("KNIT_RECORD={FILE}"))?;
        step.done();
        Ok(recording)
    }

    /// Replays the recording of every node.
    pub fn replay(&self) -> Result<()> {
        let selected = ["-n", OPERATOR_NAMESPACE, "get", "pods", "-l", "app=knit-agent", "-o", "name"];
        let agents = self.knit.kubectl(&selected)?;
        for agent in agents.lines() {
            let step = Step::start(format!("replay the recording of {agent}"));
            let replay = ["-n", OPERATOR_NAMESPACE, "exec", agent, "--", KNIT, "replay", FILE];
            let printed = self.knit.kubectl(&replay).with_context(|| format!("the recording of {agent}"))?;
            step.done();
            println!("{agent}: {}", printed.lines().last().unwrap_or_default());
        }
        Ok(())
    }

    fn set(&self, variable: &str) -> Result<()> {
        self.knit.kubectl(&["-n", OPERATOR_NAMESPACE, "set", "env", AGENTS, variable])?;
        let wait = ["-n", OPERATOR_NAMESPACE, "rollout", "status", AGENTS, "--timeout=180s"];
        self.knit.kubectl(&wait).map(drop)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.set("KNIT_RECORD-") {
            eprintln!("the agents may still record: {error:#}");
        }
        for node in 1..=2 {
            // The node may not be there any more.
            let _ = self.knit.on_node(node, &["rm", "-f", FILE]);
        }
    }
}
