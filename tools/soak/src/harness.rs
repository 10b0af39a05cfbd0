//! A test cluster with Knit installed from `deploy/beside` next to the reference network, for benchmarks and soaks, which
//! work on many pods and inspect nodes and processes from the host.

pub mod pods;
pub mod programs;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use knit_crds::Object;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::{Api, Client};
use serde_json::Value;
use tokio::runtime::Runtime;

use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;
use knit_testcluster::{self, Cluster, Network, Options, Profile, ServiceProxy};

/// The namespace of Knit's pods.
pub const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// The ranges that are open to tenants.
const RANGES: &str = "apiVersion: podnetwork.opdev.io/v1alpha1
kind: ClusterRanges
metadata: {name: cluster}
spec: {tenants: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16]}
";

/// A cluster with Knit installed, and a client of its API server.
pub struct KnitCluster {
    cluster: Cluster,
    /// Removed when this is dropped.
    is_owned: bool,
    runtime: Runtime,
    client: Client,
}

impl KnitCluster {
    /// Starts a cluster of two nodes with Knit from an image or, without one, from this checkout. Dropping this removes it.
    pub fn up(name: &str, image: Option<&Path>) -> Result<Self> {
        // An earlier run that was killed may have left a cluster.
        knit_testcluster::down(name)?;
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
        // What people run: a soak also finds faults that depend on speed.
        let profile = Profile::Release;
        let archive = image.map_or_else(|| folder.path().join("knit.tar"), Path::to_owned);
        if image.is_none() {
            knit_image::write(&archive, profile)?;
        }
        let options = Options {
            name: name.to_owned(),
            nodes: 2,
            network: Network::Reference,
            service_proxy: ServiceProxy::KubeProxy,
            profile,
        };
        let started = knit_testcluster::up(&options).and_then(|cluster| {
            let step = Step::start("load and install Knit");
            knit_testcluster::load_images(&cluster, &archive)?;
            let knit = Self::connect(cluster, true)?;
            knit.install()?;
            step.done();
            Ok(knit)
        });
        if started.is_err() {
            // An error of the removal would hide why the start failed.
            let _ = knit_testcluster::down(name);
        }
        started
    }

    /// An existing cluster with Knit installed. Dropping this keeps it.
    pub fn open(name: &str) -> Result<Self> {
        Self::connect(Cluster::named(name)?, false)
    }

    fn connect(cluster: Cluster, is_owned: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(knit_kube::connect(Some(&cluster.kubeconfig())))?;
        Ok(Self { cluster, is_owned, runtime, client })
    }

    /// Installs Knit with kubectl.
    fn install(&self) -> Result<()> {
        let folder = places::workspace().join("deploy/beside");
        self.kubectl(&["apply", "-k", &folder.display().to_string()])?;
        self.open_ranges()?;
        for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
            self.kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", what, "--timeout=120s"])?;
        }
        Ok(())
    }

    /// Opens the private ranges to tenants: the objects of benchmarks and soaks have networks of any of them.
    pub fn open_ranges(&self) -> Result<()> {
        let crd = "crd/clusterranges.podnetwork.opdev.io";
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", crd])?;
        let file = self.cluster.folder("ranges.yaml");
        fs::write(&file, RANGES).with_context(|| format!("cannot write {}", file.display()))?;
        self.kubectl(&["apply", "-f", &file.display().to_string()])?;
        Ok(())
    }

    /// Opens the default ranges only, for a cluster that is used again.
    pub fn close_ranges(&self) -> Result<()> {
        let args = ["delete", "clusterranges.podnetwork.opdev.io", "cluster", "--ignore-not-found"];
        self.kubectl(&args).map(drop)
    }

    /// Runs kubectl as the admin; returns its output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        process::output(self.cluster.kubectl()?.args(args))
    }

    /// Runs a command in the namespaces of a node; returns its output.
    pub fn on_node(&self, number: u8, args: &[&str]) -> Result<String> {
        process::output(knit_testcluster::enter(&self.cluster, number)?.args(args))
    }

    /// The test cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// A client with the admin's credentials.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The runtime of the client's watches.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Waits for a future, such as a response of the API server.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// The API of one of Knit's kinds in a namespace.
    pub fn objects(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let info = Object::find_kind(kind).with_context(|| format!("there is no kind {kind}"))?;
        Ok(Api::namespaced_with(self.client.clone(), namespace, &knit_kube::api_resource(info)))
    }
}

impl Drop for KnitCluster {
    fn drop(&mut self) {
        if self.is_owned
            && let Err(error) = knit_testcluster::down(self.cluster.names().name())
        {
            eprintln!("the cluster could not be removed: {error:#}");
        }
    }
}

/// Waits until a condition holds; after the timeout, fails with what is missing.
pub fn wait_until<T>(
    what: &str,
    timeout: Duration,
    mut check: impl FnMut() -> Result<Result<T, String>>,
) -> Result<T> {
    let end = std::time::Instant::now() + timeout;
    loop {
        let missing = match check()? {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        if std::time::Instant::now() > end {
            bail!("{what}: not after {} s: {missing}", timeout.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Converts a manifest into the client's type.
pub fn parse_object(manifest: Value) -> Result<DynamicObject> {
    serde_json::from_value(manifest).context("not a Kubernetes object")
}
