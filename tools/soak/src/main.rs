//! `cargo xtask soak`.

use anyhow::Result;
use clap::Parser;

/// Apply random changes and failures to a real cluster, and check that nothing is left of them (needs root)
#[derive(Parser)]
#[command(name = "soak", bin_name = "cargo xtask soak", version)]
struct Cli {
    #[command(flatten)]
    options: knit_soak::soak::Options,
}

fn main() -> Result<()> {
    knit_soak::soak::command(&Cli::parse().options)
}
