//! `cargo xtask cluster`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Run a real Kubernetes on this machine, for tests
#[derive(Parser)]
#[command(name = "cluster", bin_name = "cargo xtask cluster", version)]
struct Cli {
    #[command(flatten)]
    which: knit_testcluster::Which,
    #[command(subcommand)]
    command: knit_testcluster::Task,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    knit_testcluster::command(&cli.which, cli.command)
}
