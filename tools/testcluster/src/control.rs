//! The control plane: etcd, API server, controller manager and scheduler, in the machine's own namespace.
//!
//! They meet the nodes on a bridge. etcd and the health ports are on a loopback address of the cluster's own, which
//! pods cannot reach.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::daemon::{self, Daemon, Look};
use super::keys;
use super::layout::{DOMAIN, SERVICES};
use super::state::Cluster;
use crate::go_tools::Tool;
use knit_dev::process;

/// The parts of every control plane, by the names of their logs.
pub const PARTS: [&str; 4] = ["etcd", "apiserver", CONTROLLERS, "scheduler"];
/// The part that acts on what the API server knows.
pub const CONTROLLERS: &str = "controller-manager";

/// Makes the wire between the nodes, and gives the control plane its addresses on it.
pub fn make_wire(cluster: &Cluster) -> Result<()> {
    let bridge = cluster.names().bridge();
    let addresses = cluster.addresses();
    let (v4, v6) = (format!("{}/24", addresses.control()), format!("{}/64", addresses.control_v6()));
    for words in [
        vec!["link", "add", &bridge, "type", "bridge"],
        vec!["addr", "add", &v4, "dev", &bridge],
        vec!["addr", "add", &v6, "dev", &bridge, "nodad"],
        vec!["link", "set", &bridge, "up"],
    ] {
        process::output(Command::new("ip").args(&words))?;
    }
    Ok(())
}

/// Starts the store and the API server, without waiting for them.
pub fn start_api(cluster: &Cluster) -> Result<()> {
    let addresses = cluster.addresses();
    let store = format!("http://{}:2379", addresses.private());
    let peers = format!("http://{}:2380", addresses.private());
    let data = cluster.folder("etcd");
    fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
    Daemon::new("etcd", "etcd")
        .flag("name", "knit")
        .flag("data-dir", &data)
        .arg("--unsafe-no-fsync")
        .flag("listen-client-urls", &store)
        .flag("advertise-client-urls", &store)
        .flag("listen-peer-urls", &peers)
        .flag("initial-advertise-peer-urls", &peers)
        .flag("initial-cluster", format!("knit={peers}"))
        .start(cluster)?;

    let key = |name| keys::file(cluster, name);
    Daemon::new("apiserver", cluster.tool(Tool::KubeApiserver)?)
        .flag("etcd-servers", &store)
        .flag("bind-address", addresses.control().to_string())
        .flag("advertise-address", addresses.control().to_string())
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
        // Service addresses exist on nodes only: webhooks and aggregated APIs are reached by their pods' addresses.
        .arg("--enable-aggregator-routing")
        .arg("--allow-privileged")
        .start(cluster)?;
    Ok(())
}

/// Waits until the API server answers.
pub fn wait_for_api(cluster: &Cluster) -> Result<()> {
    let parts = ["etcd".to_owned(), "apiserver".to_owned()];
    daemon::wait(cluster, "the API server is ready", Duration::from_secs(120), &parts, || {
        let mut ready = cluster.kubectl()?;
        ready.args(["get", "--raw=/readyz", "--request-timeout=5s"]);
        Ok(match process::output(&mut ready) {
            Ok(_) => Look::Done(()),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })
    })
}

/// Starts what acts on objects: the controller manager and the scheduler.
pub fn start_controllers(cluster: &Cluster) -> Result<()> {
    let addresses = cluster.addresses();
    let (v4, v6) = addresses.pods();
    let key = |name| keys::file(cluster, name);
    Daemon::new(CONTROLLERS, cluster.tool(Tool::KubeControllerManager)?)
        .flag("kubeconfig", keys::kubeconfig(cluster, keys::CONTROLLER_MANAGER))
        .flag("authentication-kubeconfig", keys::kubeconfig(cluster, keys::CONTROLLER_MANAGER))
        .flag("authorization-kubeconfig", keys::kubeconfig(cluster, keys::CONTROLLER_MANAGER))
        .flag("bind-address", addresses.private().to_string())
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
        // It would make its default, a folder of the machine's own.
        .flag("flex-volume-plugin-dir", cluster.folder("controller-manager"))
        .start(cluster)?;
    Daemon::new("scheduler", cluster.tool(Tool::KubeScheduler)?)
        .flag("kubeconfig", keys::kubeconfig(cluster, keys::SCHEDULER))
        .flag("authentication-kubeconfig", keys::kubeconfig(cluster, keys::SCHEDULER))
        .flag("authorization-kubeconfig", keys::kubeconfig(cluster, keys::SCHEDULER))
        .flag("bind-address", addresses.private().to_string())
        .flag("cert-dir", cluster.folder("scheduler"))
        .flag("leader-elect", "false")
        .start(cluster)?;
    Ok(())
}
