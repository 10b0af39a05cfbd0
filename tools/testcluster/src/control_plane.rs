//! The control plane: etcd, API server, controller manager and scheduler, in the machine's own network namespace.
//!
//! A bridge connects them to the nodes. etcd and the health ports listen on a loopback address of the cluster, which
//! pods cannot reach.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::daemon::{self, Daemon, Readiness};
use super::layout::{DOMAIN, SERVICES};
use super::pki;
use super::state::Cluster;
use crate::go_tools::Tool;
use knit_dev::process;

/// The components of the control plane, by the names of their logs.
pub const COMPONENTS: [&str; 4] = ["etcd", API_SERVER, CONTROLLER_MANAGER, SCHEDULER];
/// The API server.
pub const API_SERVER: &str = "apiserver";
/// The controller manager.
pub const CONTROLLER_MANAGER: &str = "controller-manager";
/// The scheduler.
pub const SCHEDULER: &str = "scheduler";

/// Creates the bridge between the nodes, with the control plane's addresses.
pub fn create_bridge(cluster: &Cluster) -> Result<()> {
    let bridge = cluster.names().bridge();
    let addresses = cluster.addresses();
    let (v4, v6) =
        (format!("{}/24", addresses.control_plane()), format!("{}/64", addresses.control_plane_v6()));
    for args in [
        vec!["link", "add", &bridge, "type", "bridge"],
        vec!["addr", "add", &v4, "dev", &bridge],
        vec!["addr", "add", &v6, "dev", &bridge, "nodad"],
        vec!["link", "set", &bridge, "up"],
    ] {
        process::output(Command::new("ip").args(&args))?;
    }
    Ok(())
}

/// Starts etcd and the API server, without waiting for them.
pub fn start_api(cluster: &Cluster) -> Result<()> {
    let addresses = cluster.addresses();
    let etcd = format!("http://{}:2379", addresses.loopback());
    let peers = format!("http://{}:2380", addresses.loopback());
    let data = cluster.folder("etcd");
    fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
    Daemon::new("etcd", "etcd")
        .flag("name", "knit")
        .flag("data-dir", &data)
        .arg("--unsafe-no-fsync")
        .flag("listen-client-urls", &etcd)
        .flag("advertise-client-urls", &etcd)
        .flag("listen-peer-urls", &peers)
        .flag("initial-advertise-peer-urls", &peers)
        .flag("initial-cluster", format!("knit={peers}"))
        .start(cluster)?;
    start_api_server(cluster)
}

/// Starts the API server, without waiting for it.
pub fn start_api_server(cluster: &Cluster) -> Result<()> {
    let addresses = cluster.addresses();
    let etcd = format!("http://{}:2379", addresses.loopback());
    let key = |name| pki::file(cluster, name);
    Daemon::new(API_SERVER, cluster.tool(Tool::KubeApiserver)?)
        .flag("etcd-servers", &etcd)
        .flag("bind-address", addresses.control_plane().to_string())
        .flag("advertise-address", addresses.control_plane().to_string())
        .flag("secure-port", "6443")
        .flag("tls-cert-file", key("apiserver.crt"))
        .flag("tls-private-key-file", key("apiserver.key"))
        .flag("client-ca-file", key("ca.crt"))
        .flag("token-auth-file", key("tokens.csv"))
        .flag("authorization-mode", "Node,RBAC")
        .flag("enable-admission-plugins", "NodeRestriction")
        .flag("service-account-issuer", format!("https://kubernetes.default.svc.{DOMAIN}"))
        .flag("service-account-key-file", key("service-accounts.key"))
        .flag("service-account-signing-key-file", key("service-accounts.key"))
        .flag("service-cluster-ip-range", SERVICES)
        .flag("kubelet-client-certificate", key("client.crt"))
        .flag("kubelet-client-key", key("client.key"))
        .flag("kubelet-preferred-address-types", "InternalIP")
        .flag("requestheader-client-ca-file", key("ca.crt"))
        .flag("requestheader-allowed-names", "kube-apiserver")
        .flag("requestheader-username-headers", "X-Remote-User")
        .flag("requestheader-group-headers", "X-Remote-Group")
        .flag("requestheader-extra-headers-prefix", "X-Remote-Extra-")
        .flag("proxy-client-cert-file", key("client.crt"))
        .flag("proxy-client-key-file", key("client.key"))
        // Service addresses work on nodes only: webhooks and aggregated APIs are reached at their pods' addresses.
        .arg("--enable-aggregator-routing")
        .arg("--allow-privileged")
        .start(cluster)?;
    Ok(())
}

/// Waits until the API server is ready.
pub fn wait_for_api(cluster: &Cluster) -> Result<()> {
    let components = ["etcd".to_owned(), API_SERVER.to_owned()];
    daemon::wait(cluster, "the API server is ready", Duration::from_secs(120), &components, || {
        let mut ready = cluster.kubectl()?;
        ready.args(["get", "--raw=/readyz", "--request-timeout=5s"]);
        Ok(match process::output(&mut ready) {
            Ok(_) => Readiness::Ready(()),
            Err(error) => Readiness::NotYet(format!("{error:#}")),
        })
    })
}

/// Starts the controller manager and the scheduler.
pub fn start_controllers(cluster: &Cluster) -> Result<()> {
    let addresses = cluster.addresses();
    let (v4, v6) = addresses.pods();
    let key = |name| pki::file(cluster, name);
    Daemon::new(CONTROLLER_MANAGER, cluster.tool(Tool::KubeControllerManager)?)
        .flag("kubeconfig", pki::kubeconfig(cluster, pki::CONTROLLER_MANAGER))
        .flag("authentication-kubeconfig", pki::kubeconfig(cluster, pki::CONTROLLER_MANAGER))
        .flag("authorization-kubeconfig", pki::kubeconfig(cluster, pki::CONTROLLER_MANAGER))
        .flag("bind-address", addresses.loopback().to_string())
        .flag("cert-dir", cluster.folder("controller-manager"))
        .flag("leader-elect", "false")
        .flag("use-service-account-credentials", "true")
        .flag("service-account-private-key-file", key("service-accounts.key"))
        .flag("root-ca-file", key("ca.crt"))
        .flag("cluster-signing-cert-file", key("ca.crt"))
        .flag("cluster-signing-key-file", key("ca.key"))
        .flag("allocate-node-cidrs", "true")
        .flag("cluster-cidr", format!("{v4},{v6}"))
        .flag("node-cidr-mask-size-ipv4", "24")
        .flag("node-cidr-mask-size-ipv6", "64")
        .flag("service-cluster-ip-range", SERVICES)
        // The default is a directory of the host, which it would create.
        .flag("flex-volume-plugin-dir", cluster.folder("controller-manager"))
        .start(cluster)?;
    Daemon::new(SCHEDULER, cluster.tool(Tool::KubeScheduler)?)
        .flag("kubeconfig", pki::kubeconfig(cluster, pki::SCHEDULER))
        .flag("authentication-kubeconfig", pki::kubeconfig(cluster, pki::SCHEDULER))
        .flag("authorization-kubeconfig", pki::kubeconfig(cluster, pki::SCHEDULER))
        .flag("bind-address", addresses.loopback().to_string())
        .flag("cert-dir", cluster.folder("scheduler"))
        .flag("leader-elect", "false")
        .start(cluster)?;
    Ok(())
}
