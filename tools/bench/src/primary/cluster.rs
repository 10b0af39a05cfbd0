//! One of the two clusters: started, left to its container runtimes, and removed in any case.

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::node::Node;
use crate::cleanup::Cleanup;
use knit_dev::{places, process};
use knit_soak::harness::programs::{self, Program};
use knit_testcluster::{self, Cluster, Network, down, node_name};

/// A cluster with two nodes.
pub struct BenchCluster {
    /// The prefix of its rows.
    pub label: &'static str,
    cluster: Cluster,
    /// Its nodes.
    pub nodes: [Node; 2],
}

impl BenchCluster {
    /// Starts a cluster, and stops the kubelets, which would remove pods that only the runtime has.
    pub fn start(
        name: &'static str,
        label: &'static str,
        network: Network,
        cleanup: &Cleanup,
    ) -> Result<Self> {
        eprintln!("cluster with the network {label}");
        // An earlier run that was killed may have left a cluster.
        down(name)?;
        start_cluster(name, network, cleanup)?;
        let cluster = Cluster::named(name)?;
        knit_testcluster::stop_kubelets(&cluster)?;
        let nodes = [Node::open(&cluster, 1)?, Node::open(&cluster, 2)?];
        for node in &nodes {
            // The reference plugin creates its bridge with the first pod.
            let first = node.cri.run("first").with_context(|| format!("{label}: no pod can be started"))?;
            node.cri.remove(&first.id)?;
        }
        Ok(Self { label, cluster, nodes })
    }

    /// The node where pods are started.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// The name of a row of this cluster.
    pub fn row(&self, what: &str) -> String {
        format!("{}: {what}", self.label)
    }

    /// The agent on the node where pods are started; the reference network has none.
    pub fn agent(&self) -> Result<Option<Program>> {
        if self.cluster.network != Network::Knit {
            return Ok(None);
        }
        let is_agent = |program: &Program| program.role == "agent" && program.instance == node_name(1);
        let agent = programs::find(&self.cluster)?.into_iter().find(is_agent);
        Ok(Some(agent.with_context(|| format!("{}: no agent runs on the node", self.label))?))
    }
}

/// Starts the cluster in another process, which can be killed on a signal; what it had created is then removed.
fn start_cluster(name: &'static str, network: Network, cleanup: &Cleanup) -> Result<()> {
    let child = Arc::new(Mutex::new(None::<Child>));
    let to_kill = Arc::clone(&child);
    cleanup.defer(move || {
        if let Some(mut child) = lock(&to_kill).take() {
            // It may have ended already.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
        if let Err(error) = down(name) {
            eprintln!("{error:#}; `cargo xtask cluster down --name {name}` retries");
        }
    });
    let network = network.to_possible_value().context("every network has a name")?;
    let mut up = process::cargo();
    up.current_dir(places::workspace());
    up.args(["run", "--quiet", "--locked", "--release", "--package", "knit-testcluster", "--"]);
    up.args(["up", "--name", name, "--network", network.get_name()]);
    // Standard output has the rows only.
    up.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    *lock(&child) = Some(up.spawn().context("cannot start `cluster up`")?);
    loop {
        let Some(exited) = lock(&child).as_mut().map(Child::try_wait).transpose()? else {
            bail!("interrupted by a signal");
        };
        if let Some(status) = exited {
            *lock(&child) = None;
            ensure!(status.success(), "the cluster {name} did not start");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn lock(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
