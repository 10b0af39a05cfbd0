//! One of the two clusters: started, left to its container runtimes, and removed in any case.

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::node::Node;
use crate::cleanup::Cleanup;
use crate::cluster_process;
use knit_soak::harness::programs::{self, Program};
use knit_testcluster::{self, Cluster, Network, node_name};

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
        let value = network.to_possible_value().context("every network has a name")?;
        cluster_process::start(name, &["--network", value.get_name()], cleanup)?;
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
