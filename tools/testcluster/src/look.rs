//! Looking into a running cluster: what lives, what it says, a shell on a node.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};

use super::cgroups::Membership;
use super::layout::node_name;
use super::state::{Cluster, Network};
use super::{api, control, daemon, knit_cni, node, reference};
use crate::go_tools::{Module, Tool};
use knit_dev::process;

/// CoreDNS is a pod: its log is Kubernetes' to give.
const DNS_PART: &str = "coredns";

/// The parts of a cluster that have a log, in the order in which they start.
pub fn parts(cluster: &Cluster) -> Vec<String> {
    let mut parts: Vec<String> = control::PARTS.iter().map(ToString::to_string).collect();
    for number in cluster.node_numbers() {
        parts.extend([node::holder_part(number), node::containerd_part(number), node::kubelet_part(number)]);
        if cluster.network.has_services() {
            parts.push(reference::proxy_part(number));
        }
        if cluster.network.has_agents() {
            parts.push(knit_cni::agent_part(number));
        }
    }
    parts
}

/// Prints the parts with their processes, and the nodes as Kubernetes sees them. Fails when something is not well.
pub fn status(cluster: &Cluster) -> Result<ExitCode> {
    let mut text = String::new();
    let well = describe(cluster, &mut text)?;
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever reads it has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot print the state of the cluster")?,
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says how the cluster is, and whether all is well.
fn describe(cluster: &Cluster, out: &mut String) -> Result<bool> {
    let mut well = cluster.complete;
    let state = if cluster.complete { "up" } else { "unfinished" };
    writeln!(out, "cluster {} is {state}", cluster.names().name())?;
    writeln!(out, "  KUBECONFIG {}", cluster.kubeconfig().display())?;
    writeln!(out, "  logs       {}", cluster.folder("logs").display())?;
    writeln!(
        out,
        "  Kubernetes {} at {}",
        version_of(cluster, Tool::KubeApiserver),
        cluster.addresses().api()
    )?;
    writeln!(out, "  containerd {}", version_of(cluster, Tool::Containerd))?;
    if cluster.network.has_services() {
        writeln!(out, "  CoreDNS    {}", version_of(cluster, Tool::Coredns))?;
    }
    writeln!(out)?;
    let mut table = table(["PART", "PID", "STATE"]);
    for part in parts(cluster) {
        let (pid, state) = match daemon::find(cluster, &part) {
            Some(running) if running.is_alive() => (running.pid.to_string(), "running"),
            Some(running) => (running.pid.to_string(), "ended"),
            None => (String::new(), "not started"),
        };
        well &= state == "running";
        table.add_row([part, pid, state.to_owned()]);
    }
    writeln!(out, "{}\n", table.trim_fmt())?;
    match api::nodes(cluster) {
        Ok(nodes) => {
            let mut table = self::table(["NODE", "STATE", "ADDRESSES", "PODS", "KUBELET", "RUNTIME"]);
            well &= nodes.len() == usize::from(cluster.nodes);
            let reasons: Vec<String> = nodes
                .iter()
                .filter(|node| !node.ready)
                .map(|node| format!("{} is not Ready: {}", node.name, node.reason))
                .collect();
            for node in nodes {
                // Without a network a node cannot be Ready, and that is as it should be.
                well &= node.ready || cluster.network == Network::None;
                table.add_row([
                    node.name,
                    if node.ready { "Ready".to_owned() } else { "NotReady".to_owned() },
                    node.addresses.join(" "),
                    node.pod_ranges.join(" "),
                    node.kubelet,
                    node.runtime,
                ]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
            reasons.iter().try_for_each(|reason| writeln!(out, "{reason}"))?;
        }
        Err(error) => {
            well = false;
            writeln!(out, "nodes: the API server does not answer: {error:#}")?;
        }
    }
    Ok(well)
}

/// The version is in the path: that is how the cache keeps several apart.
fn version_of(cluster: &Cluster, tool: Tool) -> String {
    let module = match tool.module() {
        Module::Kubernetes => "kubernetes-",
        Module::Containerd => "containerd-",
        Module::Coredns => "coredns-",
        Module::Cnitool => "cnitool-",
        Module::Helm => "helm-",
        Module::Multus => "multus-",
    };
    let folder = cluster.tool(tool).ok().and_then(|path| path.parent()).and_then(|folder| folder.file_name());
    let folder = folder.unwrap_or_default().to_string_lossy().into_owned();
    let version = folder.strip_prefix(module).and_then(|rest| rest.rsplit_once('-'));
    version.map_or("of unknown version".to_owned(), |(version, _)| version.to_owned())
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Prints the log of a part.
pub fn logs(cluster: &Cluster, part: &str, follow: bool) -> Result<()> {
    if part == DNS_PART && cluster.network.has_services() {
        let mut logs = cluster.kubectl()?;
        logs.args(["logs", "--namespace=kube-system", "--selector=k8s-app=kube-dns", "--tail=-1"]);
        if follow {
            logs.arg("--follow");
        }
        return process::run(&mut logs);
    }
    let mut known = parts(cluster);
    if !known.iter().any(|name| name == part) {
        if cluster.network.has_services() {
            known.push(DNS_PART.to_owned());
        }
        bail!("cluster {} has no part {part}; it has: {}", cluster.names().name(), known.join(", "));
    }
    let mut show = Command::new("tail");
    show.args(["--lines=+1"]);
    if follow {
        show.arg("--follow=name");
    }
    process::run(show.arg(daemon::log(cluster, part)))
}

/// Runs a command, or a shell, in the namespaces of a node.
pub fn shell(cluster: &Cluster, name: &str, command: &[String]) -> Result<ExitCode> {
    let number = cluster.node_numbers().find(|number| node_name(*number) == name).with_context(|| {
        let known: Vec<String> = cluster.node_numbers().map(node_name).collect();
        format!("cluster {} has no node {name}; it has: {}", cluster.names().name(), known.join(", "))
    })?;
    let mut enter = daemon::enter(node::holder(cluster, number)?);
    if command.is_empty() {
        enter.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    } else {
        enter.args(command);
    }
    // `crictl` and `ctr` find containerd by themselves; kubectl is the cluster's admin here too.
    enter.env("KUBECONFIG", cluster.kubeconfig());
    enter.env("PATH", path_with_tools(cluster)?);
    // Whoever sits in there holds the node's namespaces open: `down` must find them.
    let _membership = Membership::enter(&cluster.names().cgroup())?;
    code(&mut enter)
}

fn path_with_tools(cluster: &Cluster) -> Result<String> {
    let mut folders = Vec::new();
    for tool in [Tool::Kubectl, Tool::Ctr, Tool::Cnitool] {
        // A cluster of an older checkout has fewer.
        let folder = cluster.tool(tool).ok().and_then(|program| program.parent());
        folders.extend(folder.map(|folder| folder.display().to_string()));
    }
    folders.push(std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()));
    Ok(folders.join(":"))
}

/// Runs kubectl as the cluster's admin, with this terminal.
pub fn kubectl(cluster: &Cluster, words: &[String]) -> Result<ExitCode> {
    let mut kubectl = cluster.kubectl()?;
    kubectl.args(words).stdin(Stdio::inherit());
    code(&mut kubectl)
}

/// Runs the command with this terminal and passes its exit code on.
fn code(command: &mut Command) -> Result<ExitCode> {
    let status = process::status(command)?;
    // A command that a signal ended has no code; shells say 128 and the signal.
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0);
    let code = status.code().unwrap_or(128 + signal);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
