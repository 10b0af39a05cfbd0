//! Knit beside the reference network, as people install it, on a test cluster: for benchmarks and long runs, which work on
//! many pods and look at nodes and programs from outside.

pub mod pods;
pub mod programs;

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
use knit_testcluster::{self, Cluster, Network, Options};

/// Where Knit's own pods are.
pub const OPERATOR: &str = "pod-network-operator";

/// A cluster with Knit on it, and a client of its API server.
pub struct Beside {
    cluster: Cluster,
    /// Taken away at the end.
    is_own: bool,
    runtime: Runtime,
    client: Client,
}

impl Beside {
    /// Brings up a cluster of two nodes with the Knit of an image or, without one, of this checkout. It goes when this does.
    pub fn up(name: &str, image: Option<&Path>) -> Result<Self> {
        // What an earlier run may have left when it was killed.
        knit_testcluster::down(name)?;
        let folder = tempfile::tempdir().context("no temporary folder")?;
        let archive = image.map_or_else(|| folder.path().join("knit.tar"), Path::to_owned);
        if image.is_none() {
            knit_image::write(&archive)?;
        }
        let options = Options { name: name.to_owned(), nodes: 2, network: Network::Reference };
        let brought = knit_testcluster::up(&options).and_then(|cluster| {
            let step = Step::start("load and install Knit");
            knit_testcluster::load_images(&cluster, &archive)?;
            let beside = Self::of(cluster, true)?;
            beside.install()?;
            step.done();
            Ok(beside)
        });
        if brought.is_err() {
            // An error of taking it away would hide why it did not come up.
            let _ = knit_testcluster::down(name);
        }
        brought
    }

    /// A cluster that is there, with Knit on it. It stays.
    pub fn open(name: &str) -> Result<Self> {
        Self::of(Cluster::named(name)?, false)
    }

    fn of(cluster: Cluster, is_own: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(knit_kube::connect(Some(&cluster.kubeconfig())))?;
        Ok(Self { cluster, is_own, runtime, client })
    }

    /// As an admin would, by kubectl.
    fn install(&self) -> Result<()> {
        let folder = places::workspace().join("deploy/beside");
        self.kubectl(&["apply", "-k", &folder.display().to_string()])?;
        for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
            self.kubectl(&["-n", OPERATOR, "rollout", "status", what, "--timeout=120s"])?;
        }
        Ok(())
    }

    /// What kubectl says as the admin.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        process::output(self.cluster.kubectl()?.args(words))
    }

    /// What a command prints in the namespaces of a node.
    pub fn on_node(&self, number: u8, words: &[&str]) -> Result<String> {
        process::output(knit_testcluster::enter(&self.cluster, number)?.args(words))
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The admin's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where its watches run.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Waits for an answer of the API server.
    pub fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    /// Objects of one of Knit's kinds in a namespace.
    pub fn objects(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let info = Object::find_kind(kind).with_context(|| format!("there is no kind {kind}"))?;
        Ok(Api::namespaced_with(self.client.clone(), namespace, &knit_kube::api_resource(info)))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self.is_own
            && let Err(why) = knit_testcluster::down(self.cluster.names().name())
        {
            eprintln!("the cluster could not be taken away: {why:#}");
        }
    }
}

/// Looks until it is so, and says in words what was missing when the time is up.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Result<T, String>>,
) -> Result<T> {
    let end = std::time::Instant::now() + limit;
    loop {
        let missing = match look()? {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        if std::time::Instant::now() > end {
            bail!("{what}: not after {} s: {missing}", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// An object as the client takes it.
pub fn object(manifest: Value) -> Result<DynamicObject> {
    serde_json::from_value(manifest).context("this is no object")
}
