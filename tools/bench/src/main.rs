//! The home of benchmarks.
//!
//! Every benchmark warms up, measures many rounds, and measures whatever it compares in the same run on the same
//! machine; numbers of another day or machine are never compared with.

mod attach;
mod cleanup;
mod cni;
mod create;
mod cri;
mod datapath;
mod floor;
mod ground;
mod hotplug;
mod kinds;
mod kni;
mod messages;
mod primary;
mod reference;
mod wire;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use knit_dev::process;

/// The benchmarks, by name.
#[derive(Subcommand)]
enum Bench {
    /// What this machine's kernel takes for each operation that Knit is made of, and the reference CNI plugin (needs root)
    Floor(Options),
    /// One attach and one detach through Knit, against bare netlink and the reference CNI plugin, and how the cost grows
    /// up to 1,000 pods (needs root)
    Attach(Options),
    /// Calls through the agent's socket against bare netlink and the reference CNI plugin; 200 at once; memory; growth
    /// (needs root)
    Kni(Options),
    /// What the CNI shim itself costs; ADD and DEL through shim and agent against the reference CNI plugin's, on bare
    /// namespaces and through containerd by CRI, from a sandbox's start to ready; what an extension adds (needs root)
    Cni(Options),
    /// What additional networks add to a pod's start, with 1, 4 and 16 interfaces: attached by Knit before the containers start
    /// (NRI), against Multus that delegates to the reference plugins; through containerd by CRI (needs root)
    Create(create::Options),
    /// Making, changing and removing a link of each kind through Knit, against bare netlink (needs root)
    Kinds(Options),
    /// From an object to usable interfaces of running pods, on a cluster of its own; requests, memory, CPU (needs root)
    Hotplug {
        /// What every benchmark takes
        #[command(flatten)]
        options: Options,
        /// An image of Knit; by default that of this checkout is built
        #[arg(long, value_name = "FILE")]
        image: Option<PathBuf>,
    },
    /// Ways for packets between two pods of a node: bridge, routes, eBPF (needs root)
    Datapath(datapath::Options),
    /// Knit as the cluster's network against the reference network, on two clusters of its own: a pod's start, TCP on one
    /// node and across two, full nodes, memory, CPU (needs root)
    Primary(primary::Options),
}

/// What every benchmark takes.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// How many rounds to measure; fewer than 200 would make p99 a matter of luck
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
}

/// Measure Knit against the bare kernel and against peers, in one run
#[derive(Parser)]
#[command(name = "bench", bin_name = "cargo xtask bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

fn main() -> Result<()> {
    let bench = Cli::parse().bench;
    process::require_root("a benchmark")?;
    ensure!(
        !cfg!(debug_assertions),
        "benchmarks measure an optimised build: run them with `cargo xtask bench`"
    );
    match bench {
        Bench::Floor(options) => floor::run(options.rounds)?.print(options.json),
        Bench::Attach(options) => attach::run(options.rounds)?.print(options.json),
        Bench::Kni(options) => kni::run(options.rounds)?.print(options.json),
        Bench::Cni(options) => cni::run(options.rounds)?.print(options.json),
        Bench::Create(options) => create::run(&options)?.print(options.is_json()),
        Bench::Kinds(options) => kinds::run(options.rounds)?.print(options.json),
        Bench::Hotplug { options, image } => {
            hotplug::run(options.rounds, image.as_deref())?.print(options.json)
        }
        Bench::Datapath(options) => datapath::run(&options)?.print(options.is_json()),
        Bench::Primary(options) => primary::run(&options)?.print(options.is_json()),
    }
}
