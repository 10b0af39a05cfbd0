//! Knit: pod networking. `knit help` lists the commands.

mod agent;
mod api_server;
mod ask;
mod cli;
mod cni;
mod completion;
mod controller;
mod desk;
mod doctor;
mod fault;
mod man;
mod objects;
mod output;
mod place;
mod preflight;
mod sandbox;
mod show;
mod status;
mod support;
mod uninstall;
mod version;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("knit: {error:#}");
            ExitCode::FAILURE
        }
    }
}
