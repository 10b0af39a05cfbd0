//! Messages between the benchmark and the fleet process, one JSON object per line.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The label of pods that an object selects; its value is the object's name.
pub const SELECTED: &str = "podnetwork.opdev.io/veth";

/// A pod for the fleet process to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetPod {
    /// The number of its node's agent.
    pub agent: usize,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid in the API server.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl FleetPod {
    /// Whether an object selects it.
    pub fn is_selected(&self) -> bool {
        self.labels.contains_key(SELECTED)
    }
}

/// A command for the fleet process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Start agents for these nodes. The reply is [`Reply::Synced`].
    Start(Vec<String>),
    /// Create sandboxes for pods and attach them to the cluster network. The replies are [`Reply::PodStarted`].
    StartPods(Vec<FleetPod>),
    /// Detach these pods and remove their sandboxes, by uid. The replies are [`Reply::PodStopped`].
    StopPods(Vec<String>),
    /// Report the CPU time of the simulated kernels: [`Reply::KernelTime`].
    ReportKernelTime,
}

/// A message of the fleet process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// All agents have synced.
    Synced,
    /// A pod is attached to the cluster network, with these addresses.
    PodStarted { uid: String, addresses: Vec<String> },
    /// A pod is removed.
    PodStopped { uid: String },
    /// A plan for a pod's sandbox was applied, at this time in nanoseconds since 1970.
    Applied { uid: String, at: u64 },
    /// The CPU time of all simulated kernels so far, in nanoseconds.
    KernelTime(u64),
    /// A command failed.
    Failed(String),
}

/// Writes a message.
pub fn write(out: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line).and_then(|()| out.flush()).context("the other process has ended")
}

/// Reads messages until the other side ends.
pub fn read<T: DeserializeOwned>(input: impl BufRead) -> impl Iterator<Item = Result<T>> {
    input.lines().map(|line| {
        let line = line.context("cannot read from the other process")?;
        serde_json::from_str(&line).with_context(|| format!("not a message: {line}"))
    })
}

/// The time in nanoseconds since 1970, which both processes share.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines() {
        let mut text = Vec::new();
        write(&mut text, &Reply::Synced).unwrap();
        write(&mut text, &Reply::Applied { uid: "u".to_owned(), at: 7 }).unwrap();
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 2);
        let read: Vec<Reply> = read(&text[..]).collect::<Result<_>>().unwrap();
        assert!(matches!(&read[..], [Reply::Synced, Reply::Applied { at: 7, .. }]), "{read:?}");
    }
}
