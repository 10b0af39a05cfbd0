//! `bench primary`: Knit as the cluster's network against the reference network.
//!
//! Two clusters of the same kind run at the same time, and every number is taken on both in turn, so that both meet the
//! machine in the same mood. On each, kube-proxy has made its rules; then the kubelets and the controllers end, because
//! pods are started through the container runtimes alone, as a kubelet would.

mod conflist;
mod full;
mod node;
mod plugins;
mod sandboxes;
mod side;
mod traffic;

use anyhow::Result;
use clap::Args;

use super::attach::{hold_many_namespaces, measure};
use super::cleanup::Cleanup;
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_testcluster::Network;
use knit_testcluster::programs;
use side::Side;

/// What `bench primary` takes.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// How many rounds to measure; fewer than 200 would make p99 a matter of luck
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
    /// How many pods a node has in the end
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=220))]
    pods: u16,
    /// A short run to try it: few rounds, few pods, medians alone
    #[arg(long, conflicts_with_all = ["rounds", "pods"])]
    quick: bool,
}

impl Options {
    /// Whether rows are for programs.
    pub fn is_json(&self) -> bool {
        self.json
    }

    fn extent(&self) -> Extent {
        if self.quick {
            return Extent { rounds: 20, together: 10, pods: 20, slices: 3 };
        }
        Extent { rounds: self.rounds as usize, together: 50, pods: self.pods.into(), slices: 10 }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// How often each thing is done, one by one or together.
    rounds: usize,
    /// How many are done at once.
    together: usize,
    /// How many pods a full node has.
    pods: usize,
    /// How often traffic is measured on each way.
    slices: usize,
}

/// Both clusters.
struct Sides {
    knit: Side,
    reference: Side,
}

/// Brings both clusters up, measures, and takes them away, also when it fails or is told to end.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    hold_many_namespaces()?;
    let extent = options.extent();
    let cleanup = Cleanup::new()?;
    programs::build()?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let sides = Sides {
        reference: Side::up("benchref", "reference", Network::Reference, &cleanup)?,
        knit: Side::up("benchkni", "Knit", Network::Knit, &cleanup)?,
    };
    measure("ADD and DEL, one by one and at once", || plugins::run(&mut report, &sides, extent))?;
    measure("sandboxes through containerd, one by one and at once", || {
        sandboxes::run(&mut report, &sides, extent)
    })?;
    measure("TCP between pods and between nodes", || traffic::run(&mut report, &sides, extent))?;
    measure(&format!("nodes with {} pods", extent.pods), || full::run(&mut report, &sides, extent))?;
    report.note_machine("at the end")?;
    Ok(report)
}
