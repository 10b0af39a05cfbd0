//! `cargo xtask test`, `ci`, `fresh` and `suite`.

mod ci;
mod python;
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
    /// Run everything that must hold before a change lands: format, lints, licences, generated files, tests
    Ci,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Test(request) => test::command(&request),
        Command::Ci => ci::command(),
    }
}
