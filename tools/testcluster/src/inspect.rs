//! Inspects a running cluster: status, logs, a shell on a node.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};

use super::cgroups::Membership;
use super::layout::node_name;
use super::state::{Cluster, Network, ServiceProxy};
use super::{agents, api, control_plane, daemon, node, reference};
use crate::go_tools::Tool;
use knit_dev::process;

/// CoreDNS runs in pods: its log comes from the API server.
const DNS_COMPONENT: &str = "coredns";

/// The components of a cluster that have a log, in start order.
pub fn components(cluster: &Cluster) -> Vec<String> {
    let mut components: Vec<String> = control_plane::COMPONENTS.iter().map(ToString::to_string).collect();
    for number in cluster.node_numbers() {
        components.extend([
            node::init_component(number),
            node::containerd_component(number),
            node::kubelet_component(number),
        ]);
        if cluster.network.has_services() && cluster.service_proxy == ServiceProxy::KubeProxy {
            components.push(reference::proxy_component(number));
        }
        if cluster.network.has_agents() {
            components.push(agents::agent_component(number));
        }
    }
    components
}

/// Prints components with their PIDs, and the nodes as Kubernetes reports them. Fails if something is unhealthy.
pub fn status(cluster: &Cluster) -> Result<ExitCode> {
    let mut text = String::new();
    let healthy = describe(cluster, &mut text)?;
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot print the status")?,
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes the cluster; returns whether it is healthy.
fn describe(cluster: &Cluster, out: &mut String) -> Result<bool> {
    let mut healthy = cluster.complete;
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
    let mut table = table(["COMPONENT", "PID", "STATE"]);
    for component in components(cluster) {
        let (pid, state) = match daemon::find(cluster, &component) {
            Some(running) if running.is_alive() => (running.pid.to_string(), "running"),
            Some(running) => (running.pid.to_string(), "ended"),
            None => (String::new(), "not started"),
        };
        healthy &= state == "running";
        table.add_row([component, pid, state.to_owned()]);
    }
    writeln!(out, "{}\n", table.trim_fmt())?;
    match api::nodes(cluster) {
        Ok(nodes) => {
            let mut table = self::table(["NODE", "STATE", "ADDRESSES", "PODS", "KUBELET", "RUNTIME"]);
            healthy &= nodes.len() == usize::from(cluster.nodes);
            let reasons: Vec<String> = nodes
                .iter()
                .filter(|node| !node.ready)
                .map(|node| format!("{} is not Ready: {}", node.name, node.reason))
                .collect();
            for node in nodes {
                // Without a network a node cannot be Ready.
                healthy &= node.ready || cluster.network == Network::None;
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
            healthy = false;
            writeln!(out, "nodes: the API server does not answer: {error:#}")?;
        }
    }
    Ok(healthy)
}

/// The version is part of the path of the cached program.
fn version_of(cluster: &Cluster, tool: Tool) -> String {
    let module = format!("{}-", tool.module().folder());
    let folder = cluster.tool(tool).ok().and_then(|path| path.parent()).and_then(|folder| folder.file_name());
    let folder = folder.unwrap_or_default().to_string_lossy().into_owned();
    let version = folder.strip_prefix(&module).and_then(|rest| rest.rsplit_once('-'));
    version.map_or("unknown version".to_owned(), |(version, _)| version.to_owned())
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Prints the log of a component.
pub fn logs(cluster: &Cluster, component: &str, follow: bool) -> Result<()> {
    if component == DNS_COMPONENT && cluster.network.has_services() {
        let mut logs = cluster.kubectl()?;
        logs.args(["logs", "--namespace=kube-system", "--selector=k8s-app=kube-dns", "--tail=-1"]);
        if follow {
            logs.arg("--follow");
        }
        return process::run(&mut logs);
    }
    let mut known = components(cluster);
    if !known.iter().any(|name| name == component) {
        if cluster.network.has_services() {
            known.push(DNS_COMPONENT.to_owned());
        }
        bail!(
            "cluster {} has no component {component}; it has: {}",
            cluster.names().name(),
            known.join(", ")
        );
    }
    let mut show = Command::new("tail");
    show.args(["--lines=+1"]);
    if follow {
        show.arg("--follow=name");
    }
    process::run(show.arg(daemon::log(cluster, component)))
}

/// Runs a command, or a shell, in the namespaces of a node.
pub fn shell(cluster: &Cluster, name: &str, command: &[String]) -> Result<ExitCode> {
    let number = cluster.node_numbers().find(|number| node_name(*number) == name).with_context(|| {
        let known: Vec<String> = cluster.node_numbers().map(node_name).collect();
        format!("cluster {} has no node {name}; it has: {}", cluster.names().name(), known.join(", "))
    })?;
    let mut enter = daemon::enter(node::init(cluster, number)?);
    if command.is_empty() {
        enter.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    } else {
        enter.args(command);
    }
    // `crictl` and `ctr` find containerd by themselves; kubectl is the cluster's admin here too.
    enter.env("KUBECONFIG", cluster.kubeconfig());
    enter.env("PATH", path_with_tools(cluster)?);
    // A shell holds the node's namespaces open: `down` must find it.
    let _membership = Membership::enter(&cluster.names().cgroup())?;
    code(&mut enter)
}

fn path_with_tools(cluster: &Cluster) -> Result<String> {
    let mut folders = Vec::new();
    for tool in [Tool::Kubectl, Tool::Ctr, Tool::Cnitool] {
        // A cluster of an older checkout has fewer tools.
        let folder = cluster.tool(tool).ok().and_then(|program| program.parent());
        folders.extend(folder.map(|folder| folder.display().to_string()));
    }
    folders.push(std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()));
    Ok(folders.join(":"))
}

/// Runs kubectl as the cluster's admin on this terminal.
pub fn kubectl(cluster: &Cluster, args: &[String]) -> Result<ExitCode> {
    let mut kubectl = cluster.kubectl()?;
    kubectl.args(args).stdin(Stdio::inherit());
    code(&mut kubectl)
}

/// Runs the command on this terminal and passes on its exit code.
fn code(command: &mut Command) -> Result<ExitCode> {
    let status = process::status(command)?;
    // A command that was ended by a signal has no exit code; shells report 128 plus the signal.
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0);
    let code = status.code().unwrap_or(128 + signal);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
