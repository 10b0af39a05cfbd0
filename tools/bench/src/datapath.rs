//! `bench datapath`: ways for packets between two pods of one node, without a cluster.
//!
//! Each way has a scratch host and two pods of its own; all are measured in turn, in short slices, over and over.

mod ground;
mod program;

use anyhow::Result;
use clap::Args;

use super::attach::measure;
use super::wire::{KINDS, SLICE, median};
use ground::{Ground, Way};
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use knit_testcluster::bpffs;

/// What `bench datapath` takes.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// How many slices of each way to measure
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..))]
    slices: u32,
}

impl Options {
    /// Whether rows are for programs.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// Measures every way that this kernel has.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Build, Purpose::Netns])?;
    let _ebpf = bpffs::ensure()?;
    let mut report = Report::default();
    report.note_machine("at the start")?;
    let mut grounds = Vec::new();
    for way in Way::ALL {
        match Ground::lay(way) {
            Ok(ground) => grounds.push(ground),
            // Whoever lacks the compiler or the helper can still compare the others.
            Err(why) if way.is_optional() => report.note(format!("not measured: {}: {why:#}", way.name())),
            Err(why) => return Err(why.context(way.name())),
        }
    }
    for (kind, unit, rate) in KINDS {
        measure(kind, || {
            let mut rates = vec![Vec::new(); grounds.len()];
            for slice in 0..options.slices as usize {
                for turn in 0..grounds.len() {
                    // Another one first each time.
                    let place = (turn + slice) % grounds.len();
                    rates[place].push(rate(grounds[place].wire(), SLICE)?);
                }
            }
            for (ground, rates) in grounds.iter().zip(rates) {
                report.add_once(&row(ground.way(), kind), median(rates), unit, None);
            }
            for ground in grounds.iter().skip(1) {
                report.compare_once(&row(ground.way(), kind), &row(Way::Bridge, kind), None)?;
            }
            Ok(())
        })?;
    }
    grounds.iter().try_for_each(Ground::check)?;
    report.note_machine("at the end")?;
    Ok(report)
}

fn row(way: Way, kind: &str) -> String {
    format!("{}: {kind}", way.name())
}
