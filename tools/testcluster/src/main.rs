//! `cargo xtask cluster`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Run a real Kubernetes cluster on this machine, for tests
#[derive(Parser)]
#[command(name = "cluster", bin_name = "cargo xtask cluster", version)]
struct Cli {
    #[command(flatten)]
    args: knit_testcluster::ClusterArgs,
    #[command(subcommand)]
    command: knit_testcluster::ClusterCommand,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    knit_testcluster::command(&cli.args, cli.command)
}
