//! Knit's workshop. `cargo xtask help` lists what it can do.

mod cluster;
mod deps;
mod gotools;
mod machine;
mod places;
mod process;
mod progress;

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
    /// A real Kubernetes on this machine: up, look inside, down (needs root)
    Cluster {
        #[command(flatten)]
        which: cluster::Which,
        #[command(subcommand)]
        task: cluster::Task,
    },
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Deps { install } => deps::command(install)?,
        Task::Cluster { which, task } => return cluster::command(&which, task),
    }
    Ok(ExitCode::SUCCESS)
}
