//! `cargo xtask vm`.

use anyhow::Result;
use clap::Parser;

/// Run programs in a QEMU guest with Debian's cloud kernel, for features that this machine's kernel lacks
#[derive(Parser)]
#[command(name = "vm", bin_name = "cargo xtask vm", version)]
struct Cli {
    #[command(subcommand)]
    command: knit_guest::GuestCommand,
}

fn main() -> Result<()> {
    knit_guest::command(Cli::parse().command)
}
