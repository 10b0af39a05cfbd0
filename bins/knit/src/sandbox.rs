//! `knit sandbox`: pods as network namespaces.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use knit_agent::sandboxes;
use knit_kernel::Netns;
use knit_kni::v1;
use serde::Serialize;

use crate::cli::Format;
use crate::desk::{Desk, tell_repairs};
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
    interfaces: &'a [String],
}

/// Does what was typed.
pub fn run(place: &Place, task: Task) -> Result<ExitCode> {
    match task {
        Task::Hold => sandboxes::hold()?,
        Task::Add { name, labels, pid } => add(place, &name, labels, pid)?,
        Task::List { output } => list(&mut place.desk()?, output)?,
        Task::Label { name, changes } => label(place, &name, &changes)?,
        Task::Delete { name } => {
            let answer = place.desk()?.end_sandbox(v1::EndSandboxRequest { sandbox: Some(name.asked()) })?;
            tell_repairs(&answer.repairs);
            println!("sandbox/{} deleted", name.name);
        }
        Task::Exec { name, command } => {
            let netns = {
                let asked = v1::ListSandboxesRequest { sandbox: Some(name.asked()) };
                let found = place.desk()?.list_sandboxes(asked)?.sandboxes;
                let sandbox = found.first().context("the agent does not say where the sandbox is")?;
                Netns::open(sandbox.netns.as_ref())?
                // The state is given free here: the command may take long, and may itself be knit.
            };
            return Err(sandboxes::exec(&netns, &command).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Name {
    fn asked(&self) -> v1::SandboxName {
        v1::SandboxName { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// Whoever has the node only takes note of the namespace: its holder is this process's child, so that it lives on when an
/// agent ends.
fn add(place: &Place, name: &Name, labels: Vec<(String, String)>, pid: Option<u32>) -> Result<()> {
    let mut desk = place.desk()?;
    let program = std::env::current_exe().context("cannot find this program on disk")?;
    let holder = match pid {
        Some(pid) => pid,
        None => sandboxes::start_holder(&program, &name.name)?,
    };
    let labels = labels.into_iter().collect();
    let asked = v1::AddSandboxRequest { sandbox: Some(name.asked()), labels, pid: holder };
    let added = desk.add_sandbox(asked);
    if added.is_err() && pid.is_none() {
        let netns = Netns::open(sandboxes::netns_of(holder).as_ref())?;
        sandboxes::stop_holder(holder, &sandboxes::instance_of(&netns)?)?;
    }
    tell_repairs(&added?.repairs);
    println!("sandbox/{} created (pid {holder})", name.name);
    Ok(())
}

fn label(place: &Place, name: &Name, changes: &[String]) -> Result<()> {
    let changes = changes.iter().map(|change| match (change.strip_suffix('-'), change.split_once('=')) {
        (_, Some((key, value))) if !key.is_empty() => {
            Ok(v1::LabelChange { key: key.to_owned(), value: Some(value.to_owned()) })
        }
        (Some(key), None) if !key.is_empty() => Ok(v1::LabelChange { key: key.to_owned(), value: None }),
        _ => bail!("`{change}`: expected KEY=VALUE, or KEY- to take a label away"),
    });
    let changes = changes.collect::<Result<_>>()?;
    let asked = v1::LabelSandboxRequest { sandbox: Some(name.asked()), changes };
    tell_repairs(&place.desk()?.label_sandbox(asked)?.repairs);
    println!("sandbox/{} labeled", name.name);
    Ok(())
}

fn list(desk: &mut Desk, format: Format) -> Result<()> {
    let answer = desk.list_sandboxes(v1::ListSandboxesRequest { sandbox: None })?;
    let rows: Vec<Row<'_>> = answer.sandboxes.iter().map(row).collect();
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

fn row(answered: &v1::StandaloneSandbox) -> Row<'_> {
    let name = answered.sandbox.as_ref();
    Row {
        namespace: name.map(|name| name.namespace.as_str()).unwrap_or_default(),
        name: name.map(|name| name.name.as_str()).unwrap_or_default(),
        pid: answered.pid,
        netns: &answered.netns,
        labels: &answered.labels,
        interfaces: &answered.interfaces,
    }
}

/// `KEY=VALUE`, as labels are given.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
