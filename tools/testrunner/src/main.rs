//! `cargo xtask test`, `ci`, `fresh` and `suite`.

mod checks;
mod ci;
mod fresh;
mod metadata;
mod python;
mod suite;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "testrunner", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test that protects a change, or some families; the last line is a plain count
    Test(test::Request),
    /// Run a long suite and record its result in docs/conformance.md
    Suite(suite::Request),
    /// Run the README's commands in a fresh Debian root, to find missing install steps (needs root)
    Fresh(fresh::Options),
    /// Run what must hold before a change lands: format, lints, licences, generated files, the demo, unit and netns tests
    Ci {
        /// Also run the tests in the guest and on the cluster
        #[arg(long)]
        all: bool,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Test(request) => test::command(&request),
        Command::Suite(request) => suite::command(&request),
        Command::Fresh(options) => fresh::command(&options),
        Command::Ci { all } => ci::command(all),
    }
}
