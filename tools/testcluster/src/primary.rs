//! Knit as the cluster's network, installed as people do: its image on every node, and `deploy/primary`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::api::NodeView;
use super::reference;
use super::state::Cluster;
use knit_dev::places;
use knit_dev::process;

/// Where Knit's own pods are.
const OPERATOR: &str = "pod-network-operator";
/// What has to run, in the order in which it comes: the controller is a pod of the network that the agents make.
const PARTS: [&str; 2] = ["daemonset/knit-agent", "deployment/knit-controller"];

/// The image of this checkout, in a file that goes with it.
pub struct Image {
    folder: TempDir,
}

impl Image {
    /// Builds it.
    pub fn build() -> Result<Self> {
        let image = Self { folder: tempfile::tempdir().context("no temporary folder")? };
        knit_image::write(&image.archive())?;
        Ok(image)
    }

    /// The file.
    pub fn archive(&self) -> PathBuf {
        self.folder.path().join("knit.tar")
    }
}

/// Hands Knit to the cluster, without waiting for it, and everything that a cluster has beside.
pub fn install(cluster: &Cluster, nodes: &[NodeView]) -> Result<()> {
    let deploy = places::workspace().join("deploy");
    apply(cluster, &["-f"], &deploy.join("beside/namespace.yaml"))?;
    // Nothing turns the address of the API server's service into its own for the agents, and nothing has to.
    let address = cluster.addresses().control();
    let mut tell = cluster.kubectl()?;
    tell.args(["-n", OPERATOR, "create", "configmap", "knit-api-server"])
        .arg(format!("--from-literal=KUBERNETES_SERVICE_HOST={address}"))
        .arg("--from-literal=KUBERNETES_SERVICE_PORT=6443")
        .stdout(Stdio::null());
    process::output(&mut tell).context("cannot tell the agents where the API server is")?;
    apply(cluster, &["--server-side", "-k"], &deploy.join("primary"))?;
    reference::install_services(cluster, nodes)
}

fn apply(cluster: &Cluster, how: &[&str], what: &Path) -> Result<()> {
    let mut apply = cluster.kubectl()?;
    apply.arg("apply").args(how).arg(what).stdout(Stdio::null());
    process::output(&mut apply).with_context(|| format!("cannot apply {}", what.display()))?;
    Ok(())
}

/// Waits until the agents and the controller run.
pub fn wait(cluster: &Cluster) -> Result<()> {
    for part in PARTS {
        let mut rollout = cluster.kubectl()?;
        rollout.args(["-n", OPERATOR, "rollout", "status", part, "--timeout=120s"]);
        if let Err(why) = process::output(&mut rollout) {
            let mut pods = cluster.kubectl()?;
            let pods = process::output(pods.args(["-n", OPERATOR, "get", "pods", "-o", "wide"]));
            return Err(why.context(format!("{part} does not come up:\n{}", pods.unwrap_or_default())));
        }
    }
    Ok(())
}
