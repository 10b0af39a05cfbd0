//! Knit: pod networking. `knit help` lists the commands.

mod agent;
#[cfg(feature = "cluster")]
mod api_server;
mod cli;
mod client;
mod cni;
mod completion;
#[cfg(feature = "cluster")]
mod controller;
mod doctor;
mod fault;
mod get;
mod local_api;
mod man;
mod node_args;
mod objects;
mod output;
#[cfg(feature = "cluster")]
mod preflight;
mod replay;
mod sandbox;
mod status;
mod support_bundle;
#[cfg(feature = "cluster")]
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
