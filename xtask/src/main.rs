//! Knit's workshop. `cargo xtask help` lists what it can do.

mod bench;
mod beside;
mod bpffs;
mod ci;
mod cluster;
mod demo;
mod deps;
mod generate;
mod gotools;
mod image;
mod machine;
mod places;
mod process;
mod programs;
mod progress;
mod python;
mod sim;
mod soak;
mod test;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Build, test and look at Knit", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show which Debian packages are here and which are missing, by purpose
    Deps {
        /// Install what is missing (needs root)
        #[arg(long)]
        install: bool,
    },
    /// Show Knit's main job in under a minute: no cluster, and no root where user namespaces are allowed
    Demo {
        /// In the demo's own namespaces already
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Run every test, or some families; the last line is a plain count
    Test {
        /// Only these families
        families: Vec<test::Family>,
        /// Only tests whose name contains this
        #[arg(long, value_name = "TEXT")]
        filter: Option<String>,
        /// Run a test that failed once more, alone, and name it as unsteady if it passes then
        #[arg(long)]
        again: bool,
    },
    /// A real Kubernetes on this machine, for tests
    Cluster {
        #[command(flatten)]
        which: cluster::Which,
        #[command(subcommand)]
        task: cluster::Task,
    },
    /// Run programs in a guest with Debian's cloud kernel, for what this kernel was built without
    #[command(subcommand)]
    Vm(vm::VmTask),
    /// Make a container image of the product's binaries, without docker
    Image {
        /// The file to write; by default dist/knit-<version>.tar in the checkout
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Build once more in another folder, and fail unless that gives the same image
        #[arg(long)]
        check: bool,
    },
    /// Measure Knit, its floor and its peers
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Let everything happen at once on a real cluster, and check that nothing is left of it (needs root)
    Soak(soak::Options),
    /// Simulate a large cluster: the agents' and the controller's own decisions, without a kernel; a seed replays
    Sim(sim::Options),
    /// Write the files that follow from the code
    Generate {
        /// Only compare, and fail when one is out of date
        #[arg(long)]
        check: bool,
    },
    /// Check everything that has to hold before a change lands: format, lints, licences, generated files, tests
    Ci,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Deps { install } => deps::command(install)?,
        Task::Demo { inside } => demo::command(inside)?,
        Task::Test { families, filter, again } => {
            test::command(&test::Request { families, filter, again })?;
        }
        Task::Cluster { which, task } => return cluster::command(&which, task),
        Task::Vm(task) => vm::command(task)?,
        Task::Image { output, check } => image::command(output, check)?,
        Task::Bench(bench) => bench::command(bench)?,
        Task::Soak(options) => soak::command(&options)?,
        Task::Sim(options) => sim::command(&options)?,
        Task::Generate { check } => generate::command(check)?,
        Task::Ci => ci::command()?,
    }
    Ok(ExitCode::SUCCESS)
}
