//! An agent with the profile `beside`, whose API server is a fake and whose sandboxes come from the test.

use std::collections::BTreeMap;
use std::time::Duration;

use knit_agent::config::{Config, Profile};
use knit_agent::daemon::{Daemon, Handle};
use knit_agent::kubernetes::{self, SandboxSource};
use knit_agent::sandboxes::{instance_of, netns_of};
use knit_engine::pods::RunningSandbox;
use knit_kernel::Netns;
use knit_model::SandboxId;
use knit_testbed::{Namespace, Pod, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::api_server::ApiServer;

pub const NODE: &str = "node1";
pub const TIMEOUT: Duration = Duration::from_secs(40);
pub const PODS: &str = "/api/v1/pods";

/// An agent.
pub struct ClusterAgent {
    handle: Handle,
    daemon: Option<Daemon>,
    runtime: Option<Runtime>,
    sandboxes: watch::Sender<BTreeMap<SandboxId, RunningSandbox>>,
    _folder: TempDir,
}

impl ClusterAgent {
    /// Starts an agent on a host.
    pub fn start(host: &Namespace, api: &ApiServer) -> Self {
        Self::start_with(host, api, |_| ())
    }

    /// The same with another configuration.
    pub fn start_with(host: &Namespace, api: &ApiServer, configure: impl FnOnce(&mut Config)) -> Self {
        let folder = TempDir::new().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let mut config = Config {
            node_name: NODE.to_owned(),
            profile: Profile::Beside,
            kubeconfig,
            state_dir: folder.path().join("state"),
            nri_socket: "off".into(),
            ..Config::default()
        };
        configure(&mut config);
        let (sandboxes, lists) = watch::channel(BTreeMap::new());
        // Threads inherit the network namespace and the capabilities of the one that starts them.
        let (daemon, runtime) = host.run_as_agent(|| {
            let daemon = Daemon::start(config.options(None).unwrap(), None).unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let handle = daemon.handle();
            runtime.block_on(kubernetes::start_with(&config, &handle, SandboxSource::Lists(lists))).unwrap();
            (daemon, runtime)
        });
        let handle = daemon.handle();
        Self { handle, daemon: Some(daemon), runtime: Some(runtime), sandboxes, _folder: folder }
    }

    /// The container runtime has started a sandbox for the pod with this uid.
    pub fn start_sandbox(&self, id: &str, uid: &str, pod: &Pod) {
        let instance = instance_of(&Netns::of_process(pod.pid()).unwrap()).unwrap();
        let running =
            RunningSandbox { uid: uid.to_owned(), instance, netns: netns_of(pod.pid()), number: pod.pid() };
        self.sandboxes.send_modify(|all| drop(all.insert(SandboxId(id.to_owned()), running)));
    }

    /// The container runtime has stopped a sandbox.
    pub fn stop_sandbox(&self, id: &str) {
        self.sandboxes.send_modify(|all| drop(all.remove(&SandboxId(id.to_owned()))));
    }

    /// The addresses that are leased.
    pub fn leases(&self) -> usize {
        let count = |node: &mut knit_agent::Node| {
            node.state().leases.iter().filter(|(_, _, lease)| lease.is_live()).count()
        };
        self.handle.query_blocking(count).unwrap()
    }
}

impl Drop for ClusterAgent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }
}

/// A pod of this node in the API server, with the label `app: x`.
pub fn api_pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "x"}},
        "spec": {"nodeName": NODE, "containers": []}, "status": {"phase": "Running"}})
}

/// A Veth object for these pods: an interface on a bridge.
pub fn veth(name: &str, interface: &str, bridge: &str, range: &str, mtu: u32) -> Value {
    json!({"apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "Veth",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "interfaceName": interface, "master": bridge,
            "cidr": range, "mtu": mtu}})
}

/// The MTU of a pod's interface, if it exists.
pub fn mtu(pod: &Pod, interface: &str) -> Option<u64> {
    let output = pod.namespace().output("ip", &["-j", "link", "show", "dev", interface]).ok()?;
    serde_json::from_str::<Value>(&output).ok()?[0]["mtu"].as_u64()
}

/// Waits until a pod's interface has this MTU; `None`: until it is gone.
#[track_caller]
pub fn wait_for_mtu(pod: &Pod, interface: &str, expected: Option<u64>) {
    eventually(&format!("{interface} has the MTU {expected:?}"), TIMEOUT, || mtu(pod, interface) == expected);
}
