//! `cargo xtask cluster`: a real Kubernetes cluster on this machine, which `down` removes without a trace.
//!
//! [`up`], [`down`] and [`Cluster`] are plain functions and data, so that tests can use them too.

mod agents;
mod api;
pub mod binaries;
pub mod bpffs;
mod cgroups;
pub mod conformance;
mod control_plane;
mod daemon;
mod down;
pub mod go_tools;
mod images;
mod inspect;
mod interrupt_test;
mod layout;
pub mod leftovers;
mod links;
mod node;
pub mod ownership;
mod pki;
mod primary;
mod reference;
mod restart;
mod rootfs;
pub mod runtime_nodes;
mod service_proxy;
mod state;
mod up;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

pub use down::{Outcome, down};
pub use layout::node_name;
pub use node::containerd_socket;
pub use primary::disable_fast_path;
pub use restart::{stop_controllers, stop_kubelets};
pub use state::{Cluster, Network, ServiceProxy};
pub use up::{Options, TOOLS, load_images, up, up_with_image};

pub use knit_image::Profile;

use knit_dev::process;
use knit_dev::progress::Step;
use layout::Names;

/// Selects a cluster on this machine.
#[derive(Args)]
pub struct ClusterArgs {
    /// The cluster's name; clusters with different names are isolated from each other
    #[arg(long, default_value = "knit", global = true)]
    name: String,
}

/// The subcommands of `cargo xtask cluster`.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Start a Kubernetes cluster
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// The pod network
        #[arg(long, value_enum, default_value = "none")]
        network: Network,
        /// What translates the addresses of Services
        #[arg(long, value_enum, default_value_t)]
        service_proxy: ServiceProxy,
        /// How Knit is built, if it is the network
        #[arg(long, value_enum, default_value = "release")]
        profile: Profile,
        /// An image of Knit, if it is the network [default: built from this checkout]
        #[arg(long, value_name = "FILE")]
        image: Option<PathBuf>,
    },
    /// Show components and nodes; fails if something is unhealthy
    Status,
    /// Show the log of a component: apiserver, kubelet-node1, ...
    Logs {
        /// The component; an unknown one lists them all
        component: String,
        /// Follow the log
        #[arg(short, long)]
        follow: bool,
    },
    /// Open a shell, or run a command, in a node's namespaces
    Shell {
        /// The node: node1, ...
        node: String,
        /// The command to run instead of a shell
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
        /// Arguments for kubectl
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run the upstream end-to-end tests
    Conformance {
        #[command(flatten)]
        #[allow(missing_docs, reason = "its fields have the help texts")]
        specs: conformance::SpecSelection,
        /// List the matching specs without running them; needs no cluster
        #[arg(long)]
        list: bool,
        /// Directory of the JUnit file and the log [default: target/conformance]
        #[arg(long)]
        report_dir: Option<PathBuf>,
    },
    /// Kill and restart a containerd, a kubelet or the API server: containerd-node1, apiserver, ...
    Restart {
        /// The component
        component: String,
    },
    /// Reboot a node: end everything on it and start it again with the same disk
    Reboot {
        /// The node: node1, ...
        node: String,
    },
    /// Remove the cluster
    Down,
    /// Move a running cluster with Knit as its network from kube-proxy to Knit, or back
    ServiceProxy {
        /// What translates the addresses of Services from now on
        to: ServiceProxy,
    },
    /// Kill `up` at many points in time and check that `down` leaves nothing
    #[command(hide = true)]
    InterruptTest {
        /// Number of interruptions, spread over the duration of a complete `up`
        #[arg(long, default_value_t = 10)]
        interruptions: u32,
    },
}

impl Cluster {
    /// The cluster of that name, or an error that says how to create it.
    pub fn named(name: &str) -> Result<Self> {
        Self::open(&Names::new(name)?)
    }
}

/// A command prefix that enters the namespaces of a node.
pub fn enter(cluster: &Cluster, node: u8) -> Result<Command> {
    Ok(daemon::enter(node::init(cluster, node)?))
}

/// The PID of the process whose namespaces are a node's.
pub fn node_process(cluster: &Cluster, node: u8) -> Result<i32> {
    Ok(node::init(cluster, node)?.pid)
}

/// Copies Knit's binaries to a directory that every node sees. Returns the directory.
pub fn copy_binaries(cluster: &Cluster, built: &binaries::Binaries) -> Result<PathBuf> {
    agents::copy(cluster, built)?;
    Ok(agents::folder(cluster))
}

/// Installs the CNI plugins of the reference network and their configuration on a node.
pub fn install_reference_plugins(cluster: &Cluster, node: u8) -> Result<()> {
    reference::install_plugins(cluster, node, reference::pod_ranges(&api::nodes(cluster)?, node)?)
}

/// All processes of a cluster, including those in pods.
pub fn processes(cluster: &Cluster) -> Result<Vec<i32>> {
    cgroups::processes(&cluster.names().cgroup())
}

/// Runs `cargo xtask cluster`.
pub fn command(args: &ClusterArgs, command: ClusterCommand) -> Result<ExitCode> {
    let open = || {
        process::require_root("inspecting a cluster")?;
        Cluster::open(&Names::new(&args.name)?)
    };
    match command {
        ClusterCommand::Up { nodes, network, service_proxy, profile, image } => {
            let options = Options { name: args.name.clone(), nodes, network, service_proxy, profile };
            let cluster = up_with_image(&options, image.as_deref())?;
            if network == Network::None {
                println!("cluster {} is up; its nodes stay NotReady until a network is installed", args.name);
            } else {
                println!("cluster {} is up", args.name);
            }
            println!("export KUBECONFIG={}", cluster.kubeconfig().display());
        }
        ClusterCommand::Status => return inspect::status(&open()?),
        ClusterCommand::Logs { component, follow } => inspect::logs(&open()?, &component, follow)?,
        ClusterCommand::Shell { node, command } => return inspect::shell(&open()?, &node, &command),
        ClusterCommand::ServiceProxy { to } => service_proxy::change(&mut open()?, to)?,
        ClusterCommand::LoadImage { tar } => {
            let cluster = open()?;
            let step = Step::start(format!("load {} into every node", tar.display()));
            load_images(&cluster, &tar)?;
            step.done();
        }
        ClusterCommand::Kubectl { args } => return inspect::kubectl(&open()?, &args),
        ClusterCommand::Conformance { specs, list: true, .. } => {
            let specs = conformance::list(&specs)?;
            specs.iter().for_each(|spec| println!("{spec}"));
            eprintln!("{} specs", specs.len());
        }
        ClusterCommand::Conformance { specs, report_dir, .. } => {
            let folder = report_dir.unwrap_or_else(conformance::default_folder);
            let results = conformance::conformance(&open()?, &specs, &folder)?;
            results.print();
            if results.count(conformance::State::Failed) > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        ClusterCommand::InterruptTest { interruptions } => {
            let problems = interrupt_test::interrupt_test(&args.name, interruptions)?;
            problems.iter().for_each(|line| println!("{line}"));
            println!("{interruptions} interruptions, {} items left behind", problems.len());
            if !problems.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        ClusterCommand::Restart { component } => restart::restart(&open()?, &component)?,
        ClusterCommand::Reboot { node } => {
            let cluster = open()?;
            let number = cluster.node_numbers().find(|number| node_name(*number) == node);
            restart::reboot(&cluster, number.with_context(|| format!("there is no node {node}"))?)?;
        }
        ClusterCommand::Down => match down(&args.name)? {
            Outcome::Removed => println!("cluster {} is removed, nothing is left of it", args.name),
            Outcome::NotFound => println!("there is no cluster {}", args.name),
        },
    }
    Ok(ExitCode::SUCCESS)
}
