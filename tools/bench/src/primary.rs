//! `bench primary`: Knit as the cluster's network compared with the reference network.
//!
//! Two clusters of the same size run at the same time, and all measurements alternate between them, so that both see the same
//! load of the machine. kube-proxy runs on both; the kubelets and the controller managers are stopped, because pods are started
//! directly through the container runtimes, as by a kubelet.

mod cluster;
mod conflist;
mod full_node;
pub mod node;
mod plugins;
pub mod pods;
mod sandboxes;
mod traffic;

use anyhow::Result;
use clap::Args;

use super::attach::{measure, raise_descriptor_limit};
use super::cleanup::Cleanup;
use cluster::BenchCluster;
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_testcluster::binaries;
use knit_testcluster::{Network, Profile};

/// Arguments of `bench primary`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of rounds; a p99 of fewer than 200 is not meaningful
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
    /// Number of pods on a full node
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=220))]
    pods: u16,
    /// A short trial run: few rounds, few pods, medians only
    #[arg(long, conflicts_with_all = ["rounds", "pods"])]
    quick: bool,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    fn scale(&self) -> Scale {
        if self.quick {
            return Scale { rounds: 20, concurrent: 10, pods: 20, slices: 3 };
        }
        Scale { rounds: self.rounds as usize, concurrent: 50, pods: self.pods.into(), slices: 10 }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The number of rounds of each operation.
    rounds: usize,
    /// The number of concurrent operations.
    concurrent: usize,
    /// The number of pods on a full node.
    pods: usize,
    /// The number of traffic measurements per path.
    slices: usize,
}

/// Both clusters.
struct Clusters {
    knit: BenchCluster,
    reference: BenchCluster,
}

/// Starts both clusters, measures and removes them, also after an error or signal.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let scale = options.scale();
    let cleanup = Cleanup::new()?;
    binaries::build(Profile::Release)?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let clusters = Clusters {
        reference: BenchCluster::start("benchref", "reference", Network::Reference, &cleanup)?,
        knit: BenchCluster::start("benchkni", "Knit", Network::Knit, &cleanup)?,
    };
    measure("ADD and DEL, sequential and concurrent", || plugins::run(&mut report, &clusters, scale))?;
    measure("sandboxes through containerd, sequential and concurrent", || {
        sandboxes::run(&mut report, &clusters, scale)
    })?;
    measure("TCP between pods and between nodes", || traffic::run(&mut report, &clusters, scale))?;
    measure(&format!("nodes with {} pods", scale.pods), || full_node::run(&mut report, &clusters, scale))?;
    report.note_machine("at the end")?;
    Ok(report)
}
