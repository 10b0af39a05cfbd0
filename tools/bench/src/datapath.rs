//! `bench datapath`: compares datapaths between two pods of one node, without a cluster.
//!
//! Each topology has its own host namespace and two pods; all are measured alternately in short slices.

pub mod program;
mod topology;

use anyhow::Result;
use clap::Args;

use super::attach::measure;
use super::tcp::{METRICS, SLICE, median};
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_testcluster::bpffs;
use topology::{Topology, TopologyKind};

/// Arguments of `bench datapath`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of slices per topology
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..))]
    slices: u32,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// Measures every topology that this kernel supports.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Build, Purpose::Netns])?;
    let _ebpf = bpffs::ensure()?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let mut topologies = Vec::new();
    for kind in TopologyKind::ALL {
        match Topology::create(kind) {
            Ok(topology) => topologies.push(topology),
            // Without the compiler or the eBPF helper the others can still be compared.
            Err(error) if kind.is_optional() => {
                report.note(format!("not measured: {}: {error:#}", kind.name()))
            }
            Err(error) => return Err(error.context(kind.name())),
        }
    }
    for (metric, unit, rate) in METRICS {
        measure(metric, || {
            let mut rates = vec![Vec::new(); topologies.len()];
            for slice in 0..options.slices as usize {
                for turn in 0..topologies.len() {
                    // Each slice starts with another one.
                    let index = (turn + slice) % topologies.len();
                    rates[index].push(rate(topologies[index].tcp(), SLICE)?);
                }
            }
            for (topology, rates) in topologies.iter().zip(rates) {
                report.add_value(&row(topology.kind(), metric), median(rates), unit, None);
            }
            for topology in topologies.iter().skip(1) {
                report.compare_value(
                    &row(topology.kind(), metric),
                    &row(TopologyKind::Bridge, metric),
                    None,
                )?;
            }
            Ok(())
        })?;
    }
    topologies.iter().try_for_each(Topology::check)?;
    report.note_machine("at the end")?;
    Ok(report)
}

fn row(kind: TopologyKind, metric: &str) -> String {
    format!("{}: {metric}", kind.name())
}
