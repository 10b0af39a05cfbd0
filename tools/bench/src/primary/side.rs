//! One of the two clusters: brought up, left to its container runtimes, and taken away whatever happens.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::node::Node;
use crate::cleanup::Cleanup;
use knit_soak::harness::programs::{self, Program};
use knit_testcluster::{self, Cluster, Network, down, node_name};

/// A cluster with two nodes.
pub struct Side {
    /// What its rows are called.
    pub label: &'static str,
    cluster: Cluster,
    /// Its nodes.
    pub nodes: [Node; 2],
}

impl Side {
    /// Brings a cluster up and ends whoever would take away pods that only a runtime knows.
    pub fn up(name: &'static str, label: &'static str, network: Network, cleanup: &Cleanup) -> Result<Self> {
        eprintln!("a cluster with the network {label}");
        // What an earlier run may have left when it was killed.
        down(name)?;
        bring_up(name, network, cleanup)?;
        let cluster = Cluster::named(name)?;
        knit_testcluster::leave_to_runtimes(&cluster)?;
        let nodes = [Node::open(&cluster, 1)?, Node::open(&cluster, 2)?];
        for node in &nodes {
            // The reference plugin makes its bridge with the first pod.
            let first = node.cri.run("first").with_context(|| format!("{label}: no pod can be started"))?;
            node.cri.remove(&first.id)?;
        }
        Ok(Self { label, cluster, nodes })
    }

    /// The node where pods are started.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// What a row of this side is called.
    pub fn row(&self, what: &str) -> String {
        format!("{}: {what}", self.label)
    }

    /// The agent on the node where pods are started; the reference network has none.
    pub fn agent(&self) -> Result<Option<Program>> {
        if self.cluster.network != Network::Knit {
            return Ok(None);
        }
        let is_there = |program: &Program| program.role == "agent" && program.place == node_name(1);
        let agent = programs::find(&self.cluster)?.into_iter().find(is_there);
        Ok(Some(agent.with_context(|| format!("{}: no agent runs on the node", self.label))?))
    }
}

/// Another process of this program makes the cluster: one that is told to end can be ended in the middle, and what it had
/// made is then taken away.
fn bring_up(name: &'static str, network: Network, cleanup: &Cleanup) -> Result<()> {
    let child = Arc::new(Mutex::new(None::<Child>));
    let left = Arc::clone(&child);
    cleanup.later(move || {
        if let Some(mut child) = hold(&left).take() {
            // It may have ended by itself.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
        if let Err(why) = down(name) {
            eprintln!("{why:#}; `cargo xtask cluster down --name {name}` tries again");
        }
    });
    let network = network.to_possible_value().context("every network has a name")?;
    let mut up = Command::new(std::env::current_exe().context("cannot find this program on disk")?);
    up.args(["cluster", "up", "--name", name, "--network", network.get_name()]);
    // Standard output is the rows alone.
    up.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    *hold(&child) = Some(up.spawn().context("cannot start this program once more")?);
    loop {
        let Some(ended) = hold(&child).as_mut().map(Child::try_wait).transpose()? else {
            bail!("told to end");
        };
        if let Some(status) = ended {
            *hold(&child) = None;
            ensure!(status.success(), "the cluster {name} did not come up");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn hold(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
