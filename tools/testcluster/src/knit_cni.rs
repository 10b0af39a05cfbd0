//! Knit's agents as processes of the nodes: each is asked by the container runtime through its CNI shim alone, and knows
//! nothing of Kubernetes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::api::NodeView;
use super::daemon::{self, Daemon, Look};
use super::layout::node_name;
use super::state::Cluster;
use super::{node, reference};
use crate::programs::{self, Binaries};

/// The part that makes the network of a node.
pub fn agent_part(node: u8) -> String {
    format!("knit-agent-{}", node_name(node))
}

/// Builds what the nodes run.
pub fn build() -> Result<Binaries> {
    programs::build()
}

/// Puts it where every node sees it, and where a later build does not change it.
pub fn copy(cluster: &Cluster, built: &Binaries) -> Result<()> {
    let folder = cluster.folder("bin");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (from, to) in [(&built.knit, program(cluster)), (&built.shim, folder.join("knit-cni"))] {
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn program(cluster: &Cluster) -> PathBuf {
    cluster.folder("bin").join("knit")
}

/// Starts an agent on each node; it installs the shim. Then everything that a cluster has beside.
pub fn install(cluster: &Cluster, nodes: &[NodeView]) -> Result<()> {
    for number in cluster.node_numbers() {
        start(cluster, number, reference::pod_ranges(nodes, number)?)?;
    }
    for number in cluster.node_numbers() {
        wait_for_shim(cluster, number)?;
    }
    reference::install_services(cluster, nodes)
}

/// Waits until a node's agent has installed its shim.
pub fn wait_for_shim(cluster: &Cluster, number: u8) -> Result<()> {
    let installed = cluster.node_folder(number, "etc/cni/net.d").join("10-knit.conflist");
    let parts = [agent_part(number)];
    daemon::wait(cluster, "the agent installs its shim", Duration::from_secs(60), &parts, || {
        let there = installed.exists();
        Ok(if there { Look::Done(()) } else { Look::NotYet(format!("no {}", installed.display())) })
    })
}

/// Starts a node's agent beside another network, without waiting for it: the runtime tells it of pods before their containers
/// start, and it adds what these objects say.
pub fn start_beside(cluster: &Cluster, number: u8, objects: &str) -> Result<()> {
    let folder = cluster.node_folder(number, "var/lib/knit/objects");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(folder.join("objects.yaml"), objects)?;
    Daemon::new(agent_part(number), program(cluster))
        .arg("agent")
        .flag("node-name", node_name(number))
        .flag("state-dir", Path::new("/var/lib/knit/agent"))
        .flag("standalone", Path::new("/var/lib/knit/objects"))
        .flag("nri-socket", Path::new("/run/nri/nri.sock"))
        .inside(node::holder(cluster, number)?)
        .start(cluster)?;
    Ok(())
}

/// Starts a node's agent, without waiting for it.
pub fn start(cluster: &Cluster, number: u8, ranges: &[String]) -> Result<()> {
    Daemon::new(agent_part(number), program(cluster))
        .arg("agent")
        .flag("node-name", node_name(number))
        .flag("state-dir", Path::new("/var/lib/knit/agent"))
        .flag("cluster-ranges", ranges.join(","))
        .arg("--cni-install")
        .inside(node::holder(cluster, number)?)
        .start(cluster)?;
    Ok(())
}
