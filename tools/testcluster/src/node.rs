//! A node: a process tree in its own network, mount and UTS namespaces, with containerd and a kubelet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::daemon::{self, Daemon, ProcessHandle, Readiness};
use super::images::PAUSE;
use super::layout::{DNS_SERVICE, DOMAIN, node_name};
use super::pki;
use super::state::Cluster;
use crate::go_tools::{self, Tool};
use knit_dev::process;

/// The script of a node's first process.
const INIT_SCRIPT: &str = include_str!("node_init.sh");

/// The sysctl values that a kubelet expects.
const KUBELET_SYSCTLS: [(&str, &str); 6] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

/// The component that holds a node's namespaces open.
pub fn init_component(node: u8) -> String {
    format!("init-{}", node_name(node))
}

/// The component name of a node's containerd.
pub fn containerd_component(node: u8) -> String {
    format!("containerd-{}", node_name(node))
}

/// The component name of a node's kubelet.
pub fn kubelet_component(node: u8) -> String {
    format!("kubelet-{}", node_name(node))
}

/// The process whose namespaces are the node's.
pub fn init(cluster: &Cluster, node: u8) -> Result<ProcessHandle> {
    daemon::running(cluster, &init_component(node))
}

/// Creates the node's namespaces and connects them to the cluster's bridge.
pub fn create(cluster: &Cluster, node: u8) -> Result<()> {
    let init = create_namespaces(cluster, node)?;
    connect(cluster, node, init)
}

/// Creates the node's namespaces, without a link out of them.
pub fn create_namespaces(cluster: &Cluster, node: u8) -> Result<ProcessHandle> {
    let folder = cluster.node_folder(node, "");
    let sysctls = folder.join("sysctl");
    fs::create_dir_all(&sysctls).with_context(|| format!("cannot create {}", sysctls.display()))?;
    for (name, value) in KUBELET_SYSCTLS {
        fs::write(sysctls.join(name), format!("{value}\n"))?;
    }
    let init = Daemon::new(init_component(node), "unshare")
        .args(["--mount", "--uts", "--net", "sh", "-c", INIT_SCRIPT, "sh"])
        .arg(cluster.folder(""))
        .arg(go_tools::folder()?)
        .arg(&folder)
        .arg(node_name(node))
        .start(cluster)?;
    let ready = folder.join("ready");
    let components = [init_component(node)];
    daemon::wait(cluster, "the node's namespaces are ready", Duration::from_secs(60), &components, || {
        Ok(if ready.exists() {
            Readiness::Ready(())
        } else {
            Readiness::NotYet(format!("no {}", ready.display()))
        })
    })?;
    Ok(init)
}

fn connect(cluster: &Cluster, node: u8, init: ProcessHandle) -> Result<()> {
    let (bridge, port) = (cluster.names().bridge(), cluster.names().port(node));
    let pid = init.pid.to_string();
    // The peer is created in the node's namespace: moving a link takes much longer.
    process::output(
        Command::new("ip")
            .args(["link", "add", &port, "type", "veth"])
            .args(["peer", "name", "eth0", "netns", &pid]),
    )?;
    process::output(Command::new("ip").args(["link", "set", &port, "master", &bridge, "up"]))?;
    let addresses = cluster.addresses();
    let (v4, v6) = (format!("{}/24", addresses.node(node)), format!("{}/64", addresses.node_v6(node)));
    for args in [
        vec!["link", "set", "eth0", "up"],
        vec!["addr", "add", &v4, "dev", "eth0"],
        vec!["addr", "add", &v6, "dev", "eth0", "nodad"],
        vec!["route", "add", "default", "via", &addresses.control_plane().to_string()],
        vec!["-6", "route", "add", "default", "via", &addresses.control_plane_v6().to_string()],
    ] {
        process::output(daemon::enter(init).arg("ip").args(&args))?;
    }
    Ok(())
}

/// Starts the node's containerd, without waiting for it.
pub fn start_containerd(cluster: &Cluster, node: u8) -> Result<()> {
    let config = cluster.node_folder(node, "containerd.toml");
    fs::write(&config, containerd_config()).with_context(|| format!("cannot write {}", config.display()))?;
    let program = cluster.tool(Tool::Containerd)?;
    // The shim is in containerd's directory; runc and the plugins' iptables are in the standard path.
    let folder = program.parent().unwrap_or(Path::new("/"));
    Daemon::new(containerd_component(node), program)
        .flag("config", &config)
        .env(
            "PATH",
            format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()),
        )
        .in_node(init(cluster, node)?)
        .start(cluster)?;
    Ok(())
}

/// The defaults, except for what this environment needs: no registry, no AppArmor, possibly no privilege to lower an OOM
/// score. NRI is enabled by default.
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

/// The socket of the node's containerd, on the host.
pub fn containerd_socket(cluster: &Cluster, node: u8) -> PathBuf {
    cluster.node_folder(node, "run/containerd/containerd.sock")
}

/// Waits until the CRI service of the node's containerd answers: its other services answer slightly earlier.
fn wait_for_containerd(cluster: &Cluster, node: u8) -> Result<()> {
    let socket = containerd_socket(cluster, node);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let components = [containerd_component(node)];
    daemon::wait(cluster, "containerd answers", Duration::from_secs(60), &components, || {
        Ok(match runtime.block_on(knit_cri::RuntimeClient::connect(&socket)) {
            Ok(_) => Readiness::Ready(()),
            Err(error) => Readiness::NotYet(error.to_string()),
        })
    })
}

/// Loads an image archive into the node.
pub fn load_images(cluster: &Cluster, node: u8, archive: &Path) -> Result<()> {
    wait_for_containerd(cluster, node)?;
    let init = init(cluster, node)?;
    let ctr = cluster.tool(Tool::Ctr)?;
    // Through standard input: the node may see another file at the archive's path.
    let file = fs::File::open(archive).with_context(|| format!("cannot open {}", archive.display()))?;
    let mut import = daemon::enter_with_timeout(init, Duration::from_secs(300));
    import.arg(ctr).args(["--namespace=k8s.io", "images", "import", "--local", "-"]).stdin(file);
    let done = import.output().context("cannot start ctr")?;
    let output = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{}: cannot load {} (is it a docker or OCI archive?): {} (more: `cargo xtask cluster logs {}`)",
        node_name(node),
        archive.display(),
        output.lines().last().unwrap_or_default(),
        containerd_component(node)
    );
    Ok(())
}

/// Starts the node's kubelet, without waiting for it. It would end at once if containerd did not answer.
pub fn start_kubelet(cluster: &Cluster, node: u8) -> Result<()> {
    wait_for_containerd(cluster, node)?;
    let resolv = cluster.node_folder(node, "resolv.conf");
    fs::write(&resolv, "# no name server: external networks are not reachable\n")?;
    let config = cluster.node_folder(node, "kubelet.json");
    let settings = serde_json::to_vec_pretty(&kubelet_config(cluster, node))?;
    fs::write(&config, settings).with_context(|| format!("cannot write {}", config.display()))?;
    let addresses = cluster.addresses();
    Daemon::new(kubelet_component(node), cluster.tool(Tool::Kubelet)?)
        .flag("config", &config)
        .flag("kubeconfig", pki::kubeconfig(cluster, &pki::node_user(node)))
        .flag("hostname-override", node_name(node))
        .flag("node-ip", format!("{},{}", addresses.node(node), addresses.node_v6(node)))
        .flag("cert-dir", "/var/lib/kubelet/pki")
        .in_node(init(cluster, node)?)
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
            "x509": {"clientCAFile": pki::file(cluster, "ca.crt")},
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
        // The disk is shared with the rest of the machine: its usage is unrelated to the node.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
    })
}
