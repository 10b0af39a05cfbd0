//! A node: a process tree in its own network, mount and host name namespaces, with containerd and a kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::daemon::{self, Daemon, Look, Running};
use super::images::PAUSE;
use super::keys;
use super::layout::{DNS_SERVICE, DOMAIN, node_name};
use super::state::Cluster;
use crate::go_tools::{self, Tool};
use knit_dev::process;

const ARRANGE: &str = include_str!("holder.sh");

/// What a kubelet wants the machine to be set to.
const WANTED_SYSCTLS: [(&str, &str); 6] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

/// The part that holds a node's namespaces open.
pub fn holder_part(node: u8) -> String {
    format!("holder-{}", node_name(node))
}

/// The part that runs a node's containers.
pub fn containerd_part(node: u8) -> String {
    format!("containerd-{}", node_name(node))
}

/// The part that Kubernetes talks to on a node.
pub fn kubelet_part(node: u8) -> String {
    format!("kubelet-{}", node_name(node))
}

/// The process whose namespaces are the node's.
pub fn holder(cluster: &Cluster, node: u8) -> Result<Running> {
    daemon::alive(cluster, &holder_part(node))
}

/// Makes the node's namespaces and connects them to the wire.
pub fn make(cluster: &Cluster, node: u8) -> Result<()> {
    let holder = arrange(cluster, node)?;
    connect(cluster, node, holder)
}

/// Makes the node's namespaces: no link leads out of them.
pub fn arrange(cluster: &Cluster, node: u8) -> Result<Running> {
    let folder = cluster.node_folder(node, "");
    let sysctls = folder.join("sysctl");
    fs::create_dir_all(&sysctls).with_context(|| format!("cannot make {}", sysctls.display()))?;
    for (name, value) in WANTED_SYSCTLS {
        fs::write(sysctls.join(name), format!("{value}\n"))?;
    }
    let holder = Daemon::new(holder_part(node), "unshare")
        .args(["--mount", "--uts", "--net", "sh", "-c", ARRANGE, "sh"])
        .arg(cluster.folder(""))
        .arg(go_tools::folder()?)
        .arg(&folder)
        .arg(node_name(node))
        .start(cluster)?;
    let arranged = folder.join("arranged");
    let parts = [holder_part(node)];
    daemon::wait(cluster, "the node's namespaces are arranged", Duration::from_secs(60), &parts, || {
        Ok(if arranged.exists() { Look::Done(()) } else { Look::NotYet("the holder is still at it".into()) })
    })?;
    Ok(holder)
}

fn connect(cluster: &Cluster, node: u8, holder: Running) -> Result<()> {
    let (bridge, port) = (cluster.names().bridge(), cluster.names().port(node));
    let pid = holder.pid.to_string();
    // The far end is born where it lives: moving a link takes far longer.
    process::output(
        Command::new("ip")
            .args(["link", "add", &port, "type", "veth"])
            .args(["peer", "name", "eth0", "netns", &pid]),
    )?;
    process::output(Command::new("ip").args(["link", "set", &port, "master", &bridge, "up"]))?;
    let addresses = cluster.addresses();
    let (v4, v6) = (format!("{}/24", addresses.node(node)), format!("{}/64", addresses.node_v6(node)));
    for words in [
        vec!["link", "set", "eth0", "up"],
        vec!["addr", "add", &v4, "dev", "eth0"],
        vec!["addr", "add", &v6, "dev", "eth0", "nodad"],
        vec!["route", "add", "default", "via", &addresses.control().to_string()],
        vec!["-6", "route", "add", "default", "via", &addresses.control_v6().to_string()],
    ] {
        process::output(daemon::enter(holder).arg("ip").args(&words))?;
    }
    Ok(())
}

/// Starts the node's containerd, without waiting for it.
pub fn start_containerd(cluster: &Cluster, node: u8) -> Result<()> {
    let config = cluster.node_folder(node, "containerd.toml");
    fs::write(&config, containerd_config()).with_context(|| format!("cannot write {}", config.display()))?;
    let program = cluster.tool(Tool::Containerd)?;
    // The shim is found beside containerd, runc and the plugins' iptables in the usual places.
    let beside = program.parent().unwrap_or(Path::new("/"));
    Daemon::new(containerd_part(node), program)
        .flag("config", &config)
        .env(
            "PATH",
            format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", beside.display()),
        )
        .inside(holder(cluster, node)?)
        .start(cluster)?;
    Ok(())
}

/// The defaults but for what this ground needs: no registry, no AppArmor, perhaps no right to lower an OOM score.
/// NRI is on by default.
fn containerd_config() -> String {
    format!(
        r#"version = 3

[plugins.'io.containerd.cri.v1.images']
pinned_images = {{ sandbox = '{PAUSE}' }}

[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
use_internal_loopback = true

[plugins.'io.containerd.metadata.v1.bolt']
no_sync = true
"#
    )
}

/// Where the node's containerd listens, as seen from outside.
pub fn containerd_socket(cluster: &Cluster, node: u8) -> PathBuf {
    cluster.node_folder(node, "run/containerd/containerd.sock")
}

/// Waits until the node's containerd answers as a kubelet asks it: its other services answer some moments earlier.
fn wait_for_containerd(cluster: &Cluster, node: u8) -> Result<()> {
    let socket = containerd_socket(cluster, node);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let parts = [containerd_part(node)];
    daemon::wait(cluster, "containerd answers", Duration::from_secs(60), &parts, || {
        Ok(match runtime.block_on(knit_cri::RuntimeClient::connect(&socket)) {
            Ok(_) => Look::Done(()),
            Err(error) => Look::NotYet(error.to_string()),
        })
    })
}

/// Loads an image archive into the node.
pub fn load_images(cluster: &Cluster, node: u8, archive: &Path) -> Result<()> {
    wait_for_containerd(cluster, node)?;
    let holder = holder(cluster, node)?;
    let ctr = cluster.tool(Tool::Ctr)?;
    // By standard input: the archive may lie where the node sees something else.
    let file = fs::File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
    let mut import = daemon::enter_for(holder, Duration::from_secs(300));
    import.arg(ctr).args(["--namespace=k8s.io", "images", "import", "--local", "-"]).stdin(file);
    let done = import.output().context("cannot start ctr")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{}: cannot load {} (is it a docker or OCI archive?): {} (more: `cargo xtask cluster logs {}`)",
        node_name(node),
        archive.display(),
        said.lines().last().unwrap_or_default(),
        containerd_part(node)
    );
    Ok(())
}

/// Starts the node's kubelet, without waiting for it. It would end at once if its containerd did not answer.
pub fn start_kubelet(cluster: &Cluster, node: u8) -> Result<()> {
    wait_for_containerd(cluster, node)?;
    let resolv = cluster.node_folder(node, "resolv.conf");
    fs::write(&resolv, "# no name server: nothing outside the cluster is reached\n")?;
    let config = cluster.node_folder(node, "kubelet.json");
    let settings = serde_json::to_vec_pretty(&kubelet_config(cluster, node))?;
    fs::write(&config, settings).with_context(|| format!("cannot write {}", config.display()))?;
    let addresses = cluster.addresses();
    Daemon::new(kubelet_part(node), cluster.tool(Tool::Kubelet)?)
        .flag("config", &config)
        .flag("kubeconfig", keys::kubeconfig(cluster, &keys::node_user(node)))
        .flag("hostname-override", node_name(node))
        .flag("node-ip", format!("{},{}", addresses.node(node), addresses.node_v6(node)))
        .flag("cert-dir", "/var/lib/kubelet/pki")
        .inside(holder(cluster, node)?)
        .start(cluster)?;
    Ok(())
}

fn kubelet_config(cluster: &Cluster, node: u8) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": keys::file(cluster, "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": cluster.node_folder(node, "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}/{}", cluster.names().cgroup(), node_name(node)),
        "failCgroupV1": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        // The machine's disk is shared with everything else: its filling up says nothing about the node.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
    })
}
