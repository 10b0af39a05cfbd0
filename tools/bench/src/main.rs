//! Benchmarks.
//!
//! Every benchmark warms up, measures many rounds, and measures everything it compares in the same run on the same machine;
//! results of other runs or machines are never compared.

mod attach;
mod cleanup;
mod cluster_process;
mod cni;
mod create;
mod cri;
mod datapath;
mod fleet;
mod floor;
mod hotplug;
mod kinds;
mod kni;
mod messages;
mod netlink_host;
mod policy;
mod primary;
mod reference;
mod scale;
mod services;
mod tcp;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use knit_dev::process;

/// The benchmarks.
#[derive(Subcommand)]
enum Bench {
    /// Kernel operations that Knit uses, and the reference CNI plugin (needs root)
    Floor(Options),
    /// One attach and one detach through Knit, compared with bare netlink and the reference CNI plugin, and how the cost grows
    /// up to 1,000 pods (needs root)
    Attach(Options),
    /// Calls through the agent's socket compared with bare netlink and the reference CNI plugin; 200 concurrent calls; memory
    /// (needs root)
    Kni(Options),
    /// The CNI shim's own cost; ADD and DEL through shim and agent compared with the reference CNI plugin, on bare namespaces
    /// and through containerd by CRI; the cost of an extension (needs root)
    Cni(Options),
    /// The cost of 1, 4 and 16 additional networks at a pod's start: attached by Knit before the containers start (NRI),
    /// compared with Multus and the reference plugins; through containerd by CRI (needs root)
    Create(create::Options),
    /// Creating, changing and removing a link of each kind through Knit, compared with bare netlink (needs root)
    Kinds(Options),
    /// From an object to usable interfaces of running pods, on a separate cluster; API requests, memory, CPU (needs root)
    Hotplug {
        /// Common arguments
        #[command(flatten)]
        options: Options,
        /// An image of Knit [default: built from this checkout]
        #[arg(long, value_name = "FILE")]
        image: Option<PathBuf>,
    },
    /// Datapaths between two pods of a node: bridge, routes, eBPF (needs root)
    Datapath(datapath::Options),
    /// Knit as the cluster's network compared with the reference network, on two separate clusters: a pod's start, TCP on one
    /// node and across two, full nodes, memory, CPU (needs root)
    Primary(primary::Options),
    /// The cost of one agent in a large cluster: an API server with thousands of nodes, pods and objects of Knit, of which
    /// one node runs; memory, CPU, start, received bytes, CNI ADD (needs root)
    Scale(scale::Options),
    /// Services translated by Knit's agent compared with kube-proxy in nftables mode, from 10 to 30,000: changes, programming,
    /// connections, requests, memory; on a separate cluster (needs root)
    Services(services::Options),
    /// NetworkPolicies on a node with 500 pods and 1,000 policies: changes until packets show them, connections, requests, a pod's
    /// start, a flood; without an API server (needs root)
    Policy(policy::Options),
    /// Many agents in one process against a real API server, with simulated kernels: API requests and bytes, memory, CPU, from an
    /// object to its effect; ways to watch all pods; hollow kube-proxies as a peer (needs root)
    Fleet(fleet::Options),
    /// The agents of `fleet`, which starts this process
    #[command(hide = true)]
    FleetProcess(fleet::process::Options),
    /// A watch of all pods for `fleet`, which starts this process
    #[command(hide = true)]
    WatchPods(fleet::pod_watch::Options),
}

/// Common arguments.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of rounds; a p99 of fewer than 200 is not meaningful
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
}

/// Compare Knit with the bare kernel and with other plugins, in one run
#[derive(Parser)]
#[command(name = "bench", bin_name = "cargo xtask bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

impl Bench {
    /// Whether it only shows that the benchmark works, also with an unoptimised build.
    fn is_trial(&self) -> bool {
        match self {
            Self::Services(options) => options.is_trial(),
            Self::Policy(options) => options.is_trial(),
            _ => false,
        }
    }
}

fn main() -> Result<()> {
    let bench = Cli::parse().bench;
    process::require_root("a benchmark")?;
    ensure!(
        !cfg!(debug_assertions) || bench.is_trial(),
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
        Bench::Scale(options) => scale::run(&options)?.print(options.is_json()),
        Bench::Services(options) => services::run(&options)?.print(options.is_json()),
        Bench::Policy(options) => policy::run(&options)?.print(options.is_json()),
        Bench::Fleet(options) => fleet::run(&options)?.print(options.is_json()),
        Bench::FleetProcess(options) => fleet::process::serve(&options),
        Bench::WatchPods(options) => fleet::pod_watch::serve(&options),
    }
}
