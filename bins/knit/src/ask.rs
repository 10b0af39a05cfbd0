//! The commands that ask the node's agent, over its socket.

mod extensions;
mod networks;
mod pod;
mod pods;
mod ready;
mod reap;
mod stream;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use knit_kni::{Client, DEFAULT_SOCKET, Error, Reason};
use serde_json::Value;

use crate::output;
use crate::show::Form;

/// The exit code when no agent answers, so that scripts can tell it from an answer they do not like.
const AWAY: u8 = 3;

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// List the node's pods with their interfaces and addresses
    Pods(pods::Which),
    /// Show all there is to say about one pod: interfaces, addresses, routes, ports, limits, and who asked for them
    Pod(pod::Which),
    /// List the networks of the node with their room
    Networks(networks::Which),
    /// Show whether the node's network stands, whether new pods may come, and which pods lack something
    ///
    /// Exit code: 0 when the node is ready and new pods may come (or, with a name, when the pod has what it asked for),
    /// 1 when not, 3 when no agent answers.
    Ready(ready::Which),
    /// Show how many addresses each network has left
    ///
    /// Exit code: 0 when new pods may come, 1 when the node has no address left for them, 3 when no agent answers.
    Capacity(networks::Room),
    /// List the extensions that take part in attaches; describe one, remove one, or find the pods attached without one
    Extensions(extensions::Which),
    /// Remove what belongs to pods that live no more
    ///
    /// Without a list of the living, only what is certainly dead goes: pods whose network namespace is gone, and what
    /// has Knit's mark in the kernel while nobody asks for it.
    Gc(reap::Which),
    /// Show every change of pods, networks and readiness as it happens
    ///
    /// First everything there is, then each change. When the agent is restarted, it goes on where it was.
    Watch(stream::Watch),
    /// Show what the agent logs
    Logs(stream::Logs),
}

/// How the agent is reached, and how its answer is printed.
#[derive(Debug, Args)]
pub struct Asking {
    /// The agent's socket
    #[arg(long, env = "KNIT_KNI_SOCKET", default_value = DEFAULT_SOCKET, value_name = "PATH")]
    kni_socket: PathBuf,
    /// How long the agent may take to answer
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Asking {
    async fn connect(&self) -> Result<Client, Error> {
        let client = Client::connect(&self.kni_socket).await?;
        Ok(client.with_deadline(Duration::from_secs(self.timeout)))
    }
}

/// Asks, prints the answer, and says in words what went wrong.
pub fn run(task: &Task) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime that talks to the agent")?;
    let done = runtime.block_on(async {
        match task {
            Task::Pods(which) => pods::run(which).await,
            Task::Pod(which) => pod::run(which).await,
            Task::Networks(which) => networks::run(which).await,
            Task::Capacity(which) => networks::room(which).await,
            Task::Ready(which) => ready::run(which).await,
            Task::Extensions(which) => extensions::run(which).await,
            Task::Gc(which) => reap::run(which).await,
            Task::Watch(which) => stream::watch(which).await,
            Task::Logs(which) => stream::logs(which).await,
        }
    });
    match done.map_err(|error| error.downcast::<Error>()) {
        Ok(code) => Ok(code),
        Err(Ok(error)) => {
            eprintln!("knit: {}", sentence(&error));
            Ok(if matches!(error, Error::Away { .. }) { ExitCode::from(AWAY) } else { ExitCode::FAILURE })
        }
        Err(Err(error)) => Err(error),
    }
}

/// The agent's sentence, with its stable word and the id to look for in its log.
fn sentence(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(reason) = error.reason() {
        text += &format!(" ({reason})");
    }
    if !error.call_id().is_empty() {
        text += &format!("; `knit logs --call {}` says more", error.call_id());
    }
    if error.reason() == Some(Reason::Busy) {
        text += "; try again";
    }
    text
}

/// Prints an answer: as it is for programs, as text for people.
fn print(
    form: Form,
    value: impl FnOnce() -> serde_json::Result<Value>,
    text: impl FnOnce(bool) -> String,
) -> Result<()> {
    match form {
        Form::Json => output::json(&value()?),
        Form::Yaml => output::text(&yaml(value()?)?),
        Form::Table | Form::Wide => output::text(&text(form == Form::Wide)),
    }
}

/// The value as YAML. It is for people, so empty lists are left out, too.
fn yaml(mut value: Value) -> Result<String> {
    leave_out_empty_lists(&mut value);
    serde_saphyr::to_string(&value).context("cannot write YAML")
}

fn leave_out_empty_lists(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(leave_out_empty_lists);
            fields.retain(|_, field| field.as_array().is_none_or(|items| !items.is_empty()));
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_empty_lists),
        _ => {}
    }
}
