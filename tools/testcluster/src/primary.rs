//! Knit as the cluster's network: its image on every node, installed from `deploy/primary`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::api::NodeSummary;
use super::reference;
use super::state::{Cluster, ServiceProxy};
use knit_dev::places;
use knit_dev::process;
use knit_image::Profile;

/// The namespace of Knit's pods.
const OPERATOR: &str = "pod-network-operator";
/// Knit's workloads in start order: the controller's pods need the network that the agents provide.
const WORKLOADS: [&str; 2] = ["daemonset/knit-agent", "deployment/knit-controller"];

/// The image of this checkout, in a temporary file.
pub struct Image {
    folder: TempDir,
}

impl Image {
    /// Builds the image.
    pub fn build(profile: Profile) -> Result<Self> {
        let image = Self { folder: tempfile::tempdir().context("cannot create a temporary directory")? };
        knit_image::write(&image.archive(), profile)?;
        Ok(image)
    }

    /// The archive file.
    pub fn archive(&self) -> PathBuf {
        self.folder.path().join("knit.tar")
    }
}

/// Installs Knit and kube-proxy, without waiting for them.
pub fn install(cluster: &Cluster, nodes: &[NodeSummary]) -> Result<()> {
    let deploy = places::workspace().join("deploy");
    apply(cluster, &["-f"], &deploy.join("beside/namespace.yaml"))?;
    // Agents start before kube-proxy: they need the API server's own address instead of its Service address.
    let address = cluster.addresses().control_plane();
    let mut create = cluster.kubectl()?;
    create
        .args(["-n", OPERATOR, "create", "configmap", "knit-api-server"])
        .arg(format!("--from-literal=KUBERNETES_SERVICE_HOST={address}"))
        .arg("--from-literal=KUBERNETES_SERVICE_PORT=6443")
        .stdout(Stdio::null());
    process::output(&mut create).context("cannot create the ConfigMap knit-api-server")?;
    let mut render = cluster.kubectl()?;
    let manifests = process::output(render.arg("kustomize").arg(deploy.join("primary")))?;
    let file = cluster.folder("knit.yaml");
    std::fs::write(&file, with_service_proxy(manifests, cluster.service_proxy))?;
    apply(cluster, &["--server-side", "-f"], &file)?;
    reference::install_routes_and_proxy(cluster, nodes)
}

/// The manifests with what translates the addresses of Services.
fn with_service_proxy(manifests: String, proxy: ServiceProxy) -> String {
    match proxy {
        ServiceProxy::KubeProxy => manifests,
        ServiceProxy::Knit => {
            manifests.replace("    clusterNetwork:\n", "    clusterNetwork:\n      serviceProxy: knit\n")
        }
    }
}

fn apply(cluster: &Cluster, flags: &[&str], manifest: &Path) -> Result<()> {
    let mut apply = cluster.kubectl()?;
    apply.arg("apply").args(flags).arg(manifest).stdout(Stdio::null());
    process::output(&mut apply).with_context(|| format!("cannot apply {}", manifest.display()))?;
    Ok(())
}

/// Restarts the agents without the eBPF fast path: all packets between pods pass the bridge and the routes.
pub fn disable_fast_path(cluster: &Cluster) -> Result<()> {
    configure(cluster, "dataPath", "bridge")?;
    wait(cluster)
}

/// Sets a key of the agents' configuration of the cluster network, and restarts them.
pub fn configure(cluster: &Cluster, key: &str, value: &str) -> Result<()> {
    let path = r"jsonpath={.data.agent\.yaml}";
    let mut get = cluster.kubectl()?;
    get.args(["-n", OPERATOR, "get", "configmap", "knit-agent", "-o", path]);
    let text = with_setting(&process::output(&mut get)?, key, value)?;
    let patch = json!({ "data": { "agent.yaml": text } }).to_string();
    for args in [
        &["patch", "configmap", "knit-agent", "--type=merge", "-p", &patch][..],
        &["delete", "pod", "-l", "app=knit-agent"],
    ] {
        let mut kubectl = cluster.kubectl()?;
        process::output(kubectl.args(["-n", OPERATOR]).args(args))?;
    }
    Ok(())
}

/// The configuration of the agents with another value of a key of the cluster network.
fn with_setting(text: &str, key: &str, value: &str) -> Result<String> {
    let section = "clusterNetwork:\n";
    ensure!(text.contains(section), "unexpected configuration of the agents:\n{text}");
    let own = format!("  {key}: ");
    let others: String = text.split_inclusive('\n').filter(|line| !line.starts_with(&own)).collect();
    Ok(others.replace(section, &format!("{section}{own}{value}\n")))
}

/// Waits until the agents and the controller run.
pub fn wait(cluster: &Cluster) -> Result<()> {
    for workload in WORKLOADS {
        let mut rollout = cluster.kubectl()?;
        rollout.args(["-n", OPERATOR, "rollout", "status", workload, "--timeout=120s"]);
        if let Err(error) = process::output(&mut rollout) {
            let mut pods = cluster.kubectl()?;
            let pods = process::output(pods.args(["-n", OPERATOR, "get", "pods", "-o", "wide"]));
            return Err(error.context(format!("{workload} is not ready:\n{}", pods.unwrap_or_default())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deployed_configuration_gets_a_setting_once() {
        let manifest =
            std::fs::read_to_string(places::workspace().join("deploy/primary/config.yaml")).unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&manifest).unwrap();
        let deployed = manifest["data"]["agent.yaml"].as_str().unwrap();
        let text = with_setting(deployed, "dataPath", "bridge").unwrap();
        let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(config["clusterNetwork"]["dataPath"], "bridge");
        assert_eq!(config["clusterNetwork"]["masquerade"], true);
        let changed = with_setting(&text, "dataPath", "ebpf").unwrap();
        assert_eq!(changed, with_setting(deployed, "dataPath", "ebpf").unwrap(), "once");
    }
}
