//! Knit's agents as plain processes on the nodes, without Kubernetes: the container runtime calls them through the CNI shim
//! or notifies them through NRI.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::api::NodeSummary;
use super::daemon::{self, Daemon, Readiness};
use super::layout::node_name;
use super::state::Cluster;
use super::{node, reference};
use crate::binaries::{self, Binaries};
use knit_image::Profile;

/// The component name of a node's agent.
pub fn agent_component(node: u8) -> String {
    format!("knit-agent-{}", node_name(node))
}

/// Builds the binaries that the nodes run.
pub fn build(profile: Profile) -> Result<Binaries> {
    binaries::build(profile)
}

/// Copies the binaries to a path that every node sees, so that a later build does not change them.
pub fn copy(cluster: &Cluster, built: &Binaries) -> Result<()> {
    let folder = folder(cluster);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (from, to) in [(&built.knit, program(cluster)), (&built.shim, folder.join("knit-cni"))] {
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The directory of the copies.
pub fn folder(cluster: &Cluster) -> PathBuf {
    cluster.folder("bin")
}

fn program(cluster: &Cluster) -> PathBuf {
    folder(cluster).join("knit")
}

/// Starts an agent on each node, which installs the CNI shim; then routes between the nodes and kube-proxy.
pub fn install(cluster: &Cluster, nodes: &[NodeSummary]) -> Result<()> {
    for number in cluster.node_numbers() {
        start(cluster, number, reference::pod_ranges(nodes, number)?)?;
    }
    for number in cluster.node_numbers() {
        wait_for_shim(cluster, number)?;
    }
    reference::install_routes_and_proxy(cluster, nodes)
}

/// Waits until a node's agent has installed its shim.
pub fn wait_for_shim(cluster: &Cluster, number: u8) -> Result<()> {
    let installed = cluster.node_folder(number, "etc/cni/net.d").join("10-knit.conflist");
    let components = [agent_component(number)];
    daemon::wait(cluster, "the agent installs its shim", Duration::from_secs(60), &components, || {
        let is_installed = installed.exists();
        Ok(if is_installed {
            Readiness::Ready(())
        } else {
            Readiness::NotYet(format!("no {}", installed.display()))
        })
    })
}

/// Starts a node's agent for additional networks, without waiting for it: the runtime notifies it of pods (NRI) before their
/// containers start, and it adds the interfaces of these objects.
pub fn start_additional(cluster: &Cluster, number: u8, objects: &str) -> Result<()> {
    let folder = cluster.node_folder(number, "var/lib/knit/objects");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::write(folder.join("objects.yaml"), objects)?;
    Daemon::new(agent_component(number), program(cluster))
        .arg("agent")
        .flag("node-name", node_name(number))
        .flag("state-dir", Path::new("/var/lib/knit/agent"))
        .flag("standalone", Path::new("/var/lib/knit/objects"))
        .flag("nri-socket", Path::new("/run/nri/nri.sock"))
        .in_node(node::init(cluster, number)?)
        .start(cluster)?;
    Ok(())
}

/// Starts a node's agent, without waiting for it.
pub fn start(cluster: &Cluster, number: u8, ranges: &[String]) -> Result<()> {
    Daemon::new(agent_component(number), program(cluster))
        .arg("agent")
        .flag("node-name", node_name(number))
        .flag("state-dir", Path::new("/var/lib/knit/agent"))
        .flag("cluster-ranges", ranges.join(","))
        .arg("--cni-install")
        .in_node(node::init(cluster, number)?)
        .start(cluster)?;
    Ok(())
}
