//! `cargo xtask image`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Build the container image of the product's binaries, without docker
#[derive(Parser)]
#[command(name = "image", bin_name = "cargo xtask image", version)]
struct Cli {
    /// Write the image to this file [default: dist/knit-<version>.tar in the checkout]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Build a second time in another directory, and fail unless both images are identical
    #[arg(long)]
    check: bool,
    /// How the binaries are built
    #[arg(long, value_enum, default_value = "release")]
    profile: knit_image::Profile,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    knit_image::command(cli.output, cli.check, cli.profile)
}
