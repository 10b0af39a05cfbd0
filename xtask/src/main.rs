//! Knit's workshop. `cargo xtask help` lists what it can do.

mod deps;
mod image;
mod places;
mod process;
mod progress;
mod vm;

use std::path::PathBuf;

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
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Deps { install } => deps::command(install),
        Task::Vm(task) => vm::command(task),
        Task::Image { output, check } => image::command(output, check),
    }
}
