//! `knit sandbox`: network namespaces that represent pods.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use knit_agent::sandboxes;
use knit_kernel::Netns;
use knit_kni::v1;
use serde::Serialize;

use crate::local_api::{LocalApi, print_repairs};
use crate::node_args::{DEFAULT_NAMESPACE, NodeArgs};
use crate::output;
use crate::output::Format;

/// The subcommands of `knit sandbox`.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Add a sandbox: a new network namespace, held by a background process
    Add {
        #[command(flatten)]
        name: SandboxArgs,
        /// Label of the pod; may be repeated
        #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
        labels: Vec<(String, String)>,
        /// Use the network namespace of this process instead of a new one
        #[arg(long, value_name = "PID")]
        pid: Option<u32>,
    },
    /// List the sandboxes
    List {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Set labels, or remove them with `KEY-`
    Label {
        #[command(flatten)]
        name: SandboxArgs,
        /// Label changes
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        changes: Vec<String>,
    },
    /// Run a command in a sandbox
    Exec {
        #[command(flatten)]
        name: SandboxArgs,
        /// Command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Delete a sandbox with its interfaces
    Delete {
        #[command(flatten)]
        name: SandboxArgs,
    },
    /// Hold a new network namespace until a signal is received
    #[command(hide = true)]
    Hold,
}

/// A sandbox by the name of its pod.
#[derive(Debug, Args)]
pub struct SandboxArgs {
    /// Name of the pod
    name: String,
    /// Namespace of the pod
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

/// Runs `knit sandbox`.
pub fn run(node: &NodeArgs, command: SandboxCommand) -> Result<ExitCode> {
    match command {
        SandboxCommand::Hold => sandboxes::hold()?,
        SandboxCommand::Add { name, labels, pid } => add(node, &name, labels, pid)?,
        SandboxCommand::List { output } => list(&mut node.local_api()?, output)?,
        SandboxCommand::Label { name, changes } => label(node, &name, &changes)?,
        SandboxCommand::Delete { name } => {
            let response =
                node.local_api()?.end_sandbox(v1::EndSandboxRequest { sandbox: Some(name.to_request()) })?;
            print_repairs(&response.repairs);
            println!("sandbox/{} deleted", name.name);
        }
        SandboxCommand::Exec { name, command } => {
            let netns = {
                let request = v1::ListSandboxesRequest { sandbox: Some(name.to_request()) };
                let found = node.local_api()?.list_sandboxes(request)?.sandboxes;
                let sandbox = found.first().context("the agent returned no sandbox")?;
                Netns::open(sandbox.netns.as_ref())?
                // The lock of the state directory is released here: the command may run long, or run knit.
            };
            return Err(sandboxes::exec(&netns, &command).into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SandboxArgs {
    fn to_request(&self) -> v1::SandboxName {
        v1::SandboxName { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// This process, not the agent, starts the holder of the network namespace, so that it outlives the agent.
fn add(node: &NodeArgs, name: &SandboxArgs, labels: Vec<(String, String)>, pid: Option<u32>) -> Result<()> {
    let mut api = node.local_api()?;
    let program = std::env::current_exe().context("cannot find this program on disk")?;
    let holder = match pid {
        Some(pid) => pid,
        None => sandboxes::start_holder(&program, &name.name)?,
    };
    let labels = labels.into_iter().collect();
    let request = v1::AddSandboxRequest { sandbox: Some(name.to_request()), labels, pid: holder };
    let added = api.add_sandbox(request);
    if added.is_err() && pid.is_none() {
        let netns = Netns::open(sandboxes::netns_of(holder).as_ref())?;
        sandboxes::stop_holder(holder, &sandboxes::instance_of(&netns)?)?;
    }
    print_repairs(&added?.repairs);
    println!("sandbox/{} created (pid {holder})", name.name);
    Ok(())
}

fn label(node: &NodeArgs, name: &SandboxArgs, changes: &[String]) -> Result<()> {
    let changes = changes.iter().map(|change| match (change.strip_suffix('-'), change.split_once('=')) {
        (_, Some((key, value))) if !key.is_empty() => {
            Ok(v1::LabelChange { key: key.to_owned(), value: Some(value.to_owned()) })
        }
        (Some(key), None) if !key.is_empty() => Ok(v1::LabelChange { key: key.to_owned(), value: None }),
        _ => bail!("`{change}`: expected KEY=VALUE, or KEY- to remove a label"),
    });
    let changes = changes.collect::<Result<_>>()?;
    let request = v1::LabelSandboxRequest { sandbox: Some(name.to_request()), changes };
    print_repairs(&node.local_api()?.label_sandbox(request)?.repairs);
    println!("sandbox/{} labeled", name.name);
    Ok(())
}

fn list(api: &mut LocalApi, format: Format) -> Result<()> {
    let response = api.list_sandboxes(v1::ListSandboxesRequest { sandbox: None })?;
    let rows: Vec<Row<'_>> = response.sandboxes.iter().map(row).collect();
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

fn row(sandbox: &v1::StandaloneSandbox) -> Row<'_> {
    let name = sandbox.sandbox.as_ref();
    Row {
        namespace: name.map(|name| name.namespace.as_str()).unwrap_or_default(),
        name: name.map(|name| name.name.as_str()).unwrap_or_default(),
        pid: sandbox.pid,
        netns: &sandbox.netns,
        labels: &sandbox.labels,
        interfaces: &sandbox.interfaces,
    }
}

/// Parses `KEY=VALUE`.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
