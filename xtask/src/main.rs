//! Knit's workshop. `cargo xtask help` lists what it can do.

mod bench;
mod deps;
mod places;
mod process;
mod progress;

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
    /// Measure Knit, its floor and its peers
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Deps { install } => deps::command(install),
        Task::Bench(bench) => bench::command(bench),
    }
}
