//! Commands that call the node's agent over its gRPC socket.

mod extensions;
mod format;
mod gc;
mod networks;
mod pod;
mod pods;
mod policy;
mod ready;
mod stream;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use knit_kni::{Client, DEFAULT_SOCKET, Error, Reason};
use serde_json::Value;

use crate::output;
use crate::output::TableFormat;

/// The exit code if the agent is unreachable, distinct from a negative result.
const EXIT_AGENT_UNREACHABLE: u8 = 3;

/// A command that needs a running agent.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// List the pods on this node with their interfaces and addresses
    Pods(pods::PodsArgs),
    /// Show details of one pod: interfaces, addresses, routes, port mappings, bandwidth limits and their origin
    Pod(pod::PodArgs),
    /// List the networks on this node with their address usage
    Networks(networks::NetworksArgs),
    /// Show whether the node is ready, whether it accepts new pods, and which pods are not ready
    ///
    /// Exit code: 0 if the node is ready and accepts new pods (with a pod name: if that pod is ready), 1 if not, 3 if no
    /// agent responds.
    Ready(ready::ReadyArgs),
    /// Show how many addresses each network has left
    ///
    /// Exit code: 0 if the node accepts new pods, 1 if it has no free address for them, 3 if no agent responds.
    Capacity(networks::CapacityArgs),
    /// List, describe and remove extensions, or find the pods that were attached without one
    Extensions(extensions::ExtensionsArgs),
    /// List network policies with the pods that they restrict, and explain why a connection is allowed or denied
    Policy(policy::PolicyArgs),
    /// Remove the network resources of pods that no longer exist
    ///
    /// Without --keep or --all, removes only what is certainly garbage: pods whose network namespace is gone, and
    /// kernel objects with Knit's mark that no object or call requires.
    Gc(gc::GcArgs),
    /// Watch pods, networks and readiness
    ///
    /// Prints the current state first, then each change. The watch resumes after the agent restarts.
    Watch(stream::WatchArgs),
    /// Print the agent's log
    Logs(stream::LogsArgs),
}

/// How to reach the agent, and how to print its response.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// The agent's socket
    #[arg(long, env = "KNIT_KNI_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    kni_socket: PathBuf,
    /// Timeout of a call
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: TableFormat,
}

impl ClientArgs {
    async fn connect(&self) -> Result<Client, Error> {
        let client = Client::connect(&self.kni_socket).await?;
        Ok(client.with_deadline(Duration::from_secs(self.timeout)))
    }
}

/// Runs a command and prints the response or the error.
pub fn run(command: &ClientCommand) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let result = runtime.block_on(async {
        match command {
            ClientCommand::Pods(args) => pods::run(args).await,
            ClientCommand::Pod(args) => pod::run(args).await,
            ClientCommand::Networks(args) => networks::run(args).await,
            ClientCommand::Capacity(args) => networks::capacity(args).await,
            ClientCommand::Ready(args) => ready::run(args).await,
            ClientCommand::Extensions(args) => extensions::run(args).await,
            ClientCommand::Policy(args) => policy::run(args).await,
            ClientCommand::Gc(args) => gc::run(args).await,
            ClientCommand::Watch(args) => stream::watch(args).await,
            ClientCommand::Logs(args) => stream::logs(args).await,
        }
    });
    let failure_code = match command {
        ClientCommand::Policy(args) => args.failure_code(),
        _ => None,
    };
    match result.map_err(|error| error.downcast::<Error>()) {
        Ok(code) => Ok(code),
        Err(Ok(error)) => {
            eprintln!("knit: {}", error_text(&error));
            Ok(match failure_code {
                Some(code) => ExitCode::from(code),
                None if matches!(error, Error::Unavailable { .. }) => ExitCode::from(EXIT_AGENT_UNREACHABLE),
                None => ExitCode::FAILURE,
            })
        }
        Err(Err(error)) => match failure_code {
            Some(code) => {
                eprintln!("knit: {error:#}");
                Ok(ExitCode::from(code))
            }
            None => Err(error),
        },
    }
}

/// The agent's message with its reason and the call id to search for in the log.
fn error_text(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(reason) = error.reason() {
        text += &format!(" ({reason})");
    }
    if !error.call_id().is_empty() {
        text += &format!("; see `knit logs --call {}`", error.call_id());
    }
    if error.reason() == Some(Reason::Busy) {
        text += "; try again";
    }
    text
}

/// Prints a response in the given format.
fn print(
    format: TableFormat,
    value: impl FnOnce() -> serde_json::Result<Value>,
    text: impl FnOnce(bool) -> String,
) -> Result<()> {
    match format {
        TableFormat::Json => output::json(&value()?),
        TableFormat::Yaml => output::text(&yaml(value()?)?),
        TableFormat::Table | TableFormat::Wide => output::text(&text(format == TableFormat::Wide)),
    }
}

/// The value as YAML, without empty lists.
fn yaml(mut value: Value) -> Result<String> {
    remove_empty_lists(&mut value);
    serde_saphyr::to_string(&value).context("cannot write YAML")
}

fn remove_empty_lists(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(remove_empty_lists);
            fields.retain(|_, field| field.as_array().is_none_or(|items| !items.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(remove_empty_lists),
        _ => {}
    }
}
