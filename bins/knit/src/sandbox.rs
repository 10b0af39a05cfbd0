//! `knit sandbox`: pods as network namespaces.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use knit_agent::{Standalone, sandboxes};
use knit_engine::Unit;
use knit_kernel::Netns;
use knit_model::Sandbox;
use serde::Serialize;

use crate::cli::Format;
use crate::output;
use crate::place::{DEFAULT_NAMESPACE, Place};

/// What can be done with sandboxes.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Add a sandbox: a new network namespace, held by a process of its own
    Add {
        #[command(flatten)]
        name: Name,
        /// A label of the pod; may be given many times
        #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
        labels: Vec<(String, String)>,
        /// Take the namespace of this process instead of a new one
        #[arg(long, value_name = "PID")]
        pid: Option<u32>,
    },
    /// List the sandboxes
    List {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Set labels, or take them away with `KEY-`
    Label {
        #[command(flatten)]
        name: Name,
        /// What to change
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        changes: Vec<String>,
    },
    /// Run a command inside a sandbox
    Exec {
        #[command(flatten)]
        name: Name,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Take everything of a sandbox back, and end it
    Delete {
        #[command(flatten)]
        name: Name,
    },
    /// Hold a new network namespace until a signal comes
    #[command(hide = true)]
    Hold,
}

/// A sandbox by its pod's name.
#[derive(Debug, Args)]
pub struct Name {
    /// The pod's name
    name: String,
    /// The pod's namespace
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
}

/// A sandbox in a list.
#[derive(Serialize)]
struct Row<'a> {
    namespace: &'a str,
    name: &'a str,
    pid: u32,
    netns: &'a str,
    labels: &'a BTreeMap<String, String>,
    interfaces: Vec<String>,
}

/// Does what was typed.
pub fn run(place: &Place, task: Task) -> Result<ExitCode> {
    match task {
        Task::Hold => sandboxes::hold()?,
        Task::Add { name, labels, pid } => add(place, &name, labels, pid)?,
        Task::List { output } => list(&place.open()?, output)?,
        Task::Label { name, changes } => label(&mut place.change()?, &name, &changes)?,
        Task::Delete { name } => {
            place.change()?.delete_sandbox(&name.namespace, &name.name)?;
            println!("sandbox/{} deleted", name.name);
        }
        Task::Exec { name, command } => {
            let netns = {
                let node = place.open()?;
                let sandbox = node.sandbox(&name.namespace, &name.name)?;
                Netns::open(sandbox.netns.as_ref())?
                // The state is given free here: the command may take long, and may itself be knit.
            };
            return Err(sandboxes::exec(&netns, &command).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(place: &Place, name: &Name, labels: Vec<(String, String)>, pid: Option<u32>) -> Result<()> {
    let mut node = place.change()?;
    if node.sandbox(&name.namespace, &name.name).is_ok() {
        bail!("there is a sandbox {} in namespace {} already", name.name, name.namespace);
    }
    let program = std::env::current_exe().context("cannot find this program on disk")?;
    let holder = match pid {
        Some(pid) => pid,
        None => sandboxes::start_holder(&program, &name.name)?,
    };
    let added = node.add_sandbox(&name.namespace, &name.name, labels.into_iter().collect(), holder);
    if added.is_err() && pid.is_none() {
        let netns = Netns::open(sandboxes::netns_of(holder).as_ref())?;
        sandboxes::stop_holder(holder, &sandboxes::instance_of(&netns)?)?;
    }
    added?;
    println!("sandbox/{} created (pid {holder})", name.name);
    Ok(())
}

fn label(node: &mut Standalone, name: &Name, changes: &[String]) -> Result<()> {
    let mut labels = node.sandbox(&name.namespace, &name.name)?.labels.clone();
    for change in changes {
        match (change.strip_suffix('-'), change.split_once('=')) {
            (_, Some((key, value))) if !key.is_empty() => {
                labels.insert(key.to_owned(), value.to_owned());
            }
            (Some(key), None) if !key.is_empty() => {
                labels.remove(key);
            }
            _ => bail!("`{change}`: expected KEY=VALUE, or KEY- to take a label away"),
        }
    }
    node.label_sandbox(&name.namespace, &name.name, labels)?;
    println!("sandbox/{} labeled", name.name);
    Ok(())
}

fn list(node: &Standalone, format: Format) -> Result<()> {
    let rows: Vec<Row<'_>> = node.state().sandboxes.values().map(|sandbox| row(node, sandbox)).collect();
    if matches!(format, Format::Json) {
        return output::json(&rows);
    }
    if rows.is_empty() {
        return output::text("no sandboxes; add one with `knit sandbox add NAME`\n");
    }
    let cells = rows.iter().map(|row| {
        let labels: Vec<String> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (labels, interfaces) = (labels.join(","), row.interfaces.join(","));
        [row.namespace.to_owned(), row.name.to_owned(), row.pid.to_string(), labels, interfaces]
    });
    output::text(&output::table(&["NAMESPACE", "NAME", "PID", "LABELS", "INTERFACES"], cells))
}

fn row<'a>(node: &'a Standalone, sandbox: &'a Sandbox) -> Row<'a> {
    let made = node.state().made.get(&Unit::Sandbox(sandbox.id.clone()));
    let interfaces =
        made.into_iter().flat_map(|made| &made.interfaces).map(|(_, interface)| interface.name.to_string());
    Row {
        namespace: &sandbox.namespace,
        name: &sandbox.pod,
        pid: sandbox.number,
        netns: &sandbox.netns,
        labels: &sandbox.labels,
        interfaces: interfaces.collect(),
    }
}

/// `KEY=VALUE`, as labels are given.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
