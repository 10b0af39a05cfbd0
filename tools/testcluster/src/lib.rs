//! `cargo xtask cluster`: a real Kubernetes on this machine, and nothing left of it afterwards.
//!
//! [`up`], [`down`] and the [`Cluster`] they speak of are plain functions and data, so that tests can use them too.

mod api;
pub mod bare;
pub mod bpffs;
mod cgroups;
pub mod conformance;
mod control;
mod daemon;
mod down;
pub mod go_tools;
mod images;
mod keys;
mod killtest;
mod knit_cni;
mod layout;
pub mod leftovers;
mod links;
mod look;
pub mod marks;
mod node;
mod primary;
pub mod programs;
mod reference;
mod restart;
mod rootfs;
mod state;
mod up;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

pub use down::{Outcome, down};
pub use layout::node_name;
pub use node::containerd_socket;
pub use restart::leave_to_runtimes;
pub use state::{Cluster, Network};
pub use up::{Options, load_images, up};

use knit_dev::process;
use knit_dev::progress::Step;
use layout::Names;

/// Which of the clusters on this machine.
#[derive(Args)]
pub struct Which {
    /// The cluster's name; clusters with different names do not meet
    #[arg(long, default_value = "knit", global = true)]
    name: String,
}

/// What can be done with a cluster.
#[derive(Subcommand)]
pub enum Task {
    /// Bring a Kubernetes cluster up
    Up {
        /// How many nodes
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// Who connects pods
        #[arg(long, value_enum, default_value = "none")]
        network: Network,
    },
    /// Show its parts and nodes; fails when something is not well
    Status,
    /// Show the log of a part: apiserver, kubelet-node1, ...
    Logs {
        /// The part; an unknown one lists them all
        part: String,
        /// Go on showing what is added
        #[arg(short, long)]
        follow: bool,
    },
    /// Open a shell, or run a command, in a node's namespaces
    Shell {
        /// The node: node1, ...
        node: String,
        /// What to run instead of a shell
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Load an image archive into every node
    LoadImage {
        /// A docker or OCI archive
        tar: PathBuf,
    },
    /// Run kubectl as the cluster's admin
    Kubectl {
        /// What to hand to kubectl
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Run the upstream end-to-end tests against it
    Conformance {
        /// Which specs: a regular expression on their names
        #[arg(long, default_value = conformance::DEFAULT_FOCUS)]
        focus: String,
        /// List the specs that match, and run none; needs no cluster
        #[arg(long)]
        list: bool,
        /// Where the JUnit file and the log go [default: target/conformance]
        #[arg(long)]
        report_dir: Option<PathBuf>,
    },
    /// Kill a containerd or a kubelet and start it again: containerd-node1, ...
    Restart {
        /// The part
        part: String,
    },
    /// Have a node reboot: everything on it ends, and it comes up again with the same disk
    Reboot {
        /// The node: node1, ...
        node: String,
    },
    /// Take it all away
    Down,
    /// Kill `up` at many moments and check that `down` leaves nothing
    #[command(hide = true)]
    Killtest {
        /// How many moments, spread over the time that a whole up takes
        #[arg(long, default_value_t = 10)]
        moments: u32,
    },
}

impl Cluster {
    /// The cluster of that name, or an error that says how to get one.
    pub fn named(name: &str) -> Result<Self> {
        Self::open(&Names::new(name)?)
    }
}

/// A command that enters the namespaces of a node; what to run there is added to it.
pub fn enter(cluster: &Cluster, node: u8) -> Result<Command> {
    Ok(daemon::enter(node::holder(cluster, node)?))
}

/// The process whose namespaces are a node's.
pub fn node_process(cluster: &Cluster, node: u8) -> Result<i32> {
    Ok(node::holder(cluster, node)?.pid)
}

/// All processes of a cluster, those in pods too.
pub fn processes(cluster: &Cluster) -> Result<Vec<i32>> {
    cgroups::processes(&cluster.names().cgroup())
}

/// What `cargo xtask cluster` does.
pub fn command(which: &Which, task: Task) -> Result<ExitCode> {
    let open = || {
        process::require_root("looking into a cluster")?;
        Cluster::open(&Names::new(&which.name)?)
    };
    match task {
        Task::Up { nodes, network } => {
            let cluster = up(&Options { name: which.name.clone(), nodes, network })?;
            if network == Network::None {
                println!(
                    "cluster {} is up; its nodes stay NotReady until a network is installed",
                    which.name
                );
            } else {
                println!("cluster {} is up", which.name);
            }
            println!("export KUBECONFIG={}", cluster.kubeconfig().display());
        }
        Task::Status => return look::status(&open()?),
        Task::Logs { part, follow } => look::logs(&open()?, &part, follow)?,
        Task::Shell { node, command } => return look::shell(&open()?, &node, &command),
        Task::LoadImage { tar } => {
            let cluster = open()?;
            let step = Step::start(format!("load {} into every node", tar.display()));
            load_images(&cluster, &tar)?;
            step.done();
        }
        Task::Kubectl { words } => return look::kubectl(&open()?, &words),
        Task::Conformance { focus, list: true, .. } => {
            let specs = conformance::list(&focus)?;
            specs.iter().for_each(|spec| println!("{spec}"));
            eprintln!("{} specs", specs.len());
        }
        Task::Conformance { focus, report_dir, .. } => {
            let folder = report_dir.unwrap_or_else(conformance::default_folder);
            let results = conformance::conformance(&open()?, &focus, &folder)?;
            results.print();
            if results.count(conformance::State::Failed) > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Killtest { moments } => {
            let wrong = killtest::killtest(&which.name, moments)?;
            wrong.iter().for_each(|line| println!("{line}"));
            println!("{moments} moments, {} things left behind", wrong.len());
            if !wrong.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Task::Restart { part } => restart::restart(&open()?, &part)?,
        Task::Reboot { node } => {
            let cluster = open()?;
            let number = cluster.node_numbers().find(|number| node_name(*number) == node);
            restart::reboot(&cluster, number.with_context(|| format!("there is no node {node}"))?)?;
        }
        Task::Down => match down(&which.name)? {
            Outcome::Removed => println!("cluster {} is gone, nothing is left of it", which.name),
            Outcome::NothingThere => println!("there is nothing of a cluster {}", which.name),
        },
    }
    Ok(ExitCode::SUCCESS)
}
