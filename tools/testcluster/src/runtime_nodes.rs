//! Nodes with a container runtime and a network, but without Kubernetes: for benchmarks that call the runtime directly.
//!
//! They are named and recorded like a cluster, so that `cargo xtask cluster down` removes them too.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::cgroups::{self, Membership};
use super::layout::{Names, node_name};
use super::state::{Cluster, ClusterLock, Network, ServiceProxy};
use super::{agents, daemon, down, images, node, reference, up};
use crate::binaries::Binaries;
use crate::go_tools::{self, Tool};

/// The node whose pods the reference plugins connect.
pub const REFERENCE: u8 = 1;
/// The node whose pods Knit connects, called through its CNI shim.
pub const KNIT: u8 = 2;

/// The programs of the container runtime.
const RUNTIME: [Tool; 3] = [Tool::Containerd, Tool::ContainerdShim, Tool::Ctr];
/// The programs in the test images.
const IMAGES: [Tool; 2] = [Tool::Agnhost, Tool::Coredns];

/// Two nodes.
pub struct RuntimeNodes {
    cluster: Cluster,
    archive: PathBuf,
}

impl RuntimeNodes {
    /// Records and locks the nodes after removing those of an earlier run. To remove them, drop the lock and call
    /// [`super::down`].
    pub fn create(name: &str) -> Result<(Self, ClusterLock)> {
        let tools = go_tools::ensure(&[RUNTIME.as_slice(), &IMAGES].concat())?;
        let archive = images::ensure(&tools)?;
        let programs: BTreeMap<_, _> =
            RUNTIME.iter().map(|tool| (tool.program().to_owned(), tools.path(*tool).to_owned())).collect();
        down(name)?;
        let (cluster, lock) =
            Cluster::create(&Names::new(name)?, KNIT, Network::None, ServiceProxy::KubeProxy, programs)?;
        Ok((Self { cluster, archive }, lock))
    }

    /// Starts both nodes; the pods of each get addresses from this range.
    pub fn start(&self, range: &str, built: &Binaries) -> Result<()> {
        self.start_with(built, |cluster| {
            let ranges = [range.to_owned()];
            reference::install_plugins(cluster, REFERENCE, &ranges)?;
            agents::start(cluster, KNIT, &ranges)?;
            agents::wait_for_shim(cluster, KNIT)
        })
    }

    /// Starts both nodes; the reference plugins connect the pods of each, with addresses from this range. On one of them Knit
    /// adds the interfaces of these objects, notified of pods by the runtime (NRI).
    pub fn start_additional(&self, range: &str, built: &Binaries, objects: &str) -> Result<()> {
        self.start_with(built, |cluster| {
            for node in [REFERENCE, KNIT] {
                reference::install_plugins(cluster, node, &[range.to_owned()])?;
            }
            agents::start_additional(cluster, KNIT, objects)
        })
    }

    fn start_with(&self, built: &Binaries, connect: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        let cluster = &self.cluster;
        for folder in ["logs", "run", "nodes"] {
            fs::create_dir_all(cluster.folder(folder))?;
        }
        agents::copy(cluster, built)?;
        let nodes: Vec<String> = cluster.node_numbers().map(node_name).collect();
        let cgroup = cluster.names().cgroup();
        cgroups::create(&cgroup, &nodes)?;
        let _membership = Membership::enter(&cgroup)?;
        for number in cluster.node_numbers() {
            node::create_namespaces(cluster, number)?;
            node::start_containerd(cluster, number)?;
        }
        connect(cluster)?;
        up::load_images(cluster, &self.archive)
    }

    /// The socket of a node's containerd, on the host.
    pub fn socket(&self, node: u8) -> PathBuf {
        node::containerd_socket(&self.cluster, node)
    }

    /// A path of a node, on the host.
    pub fn folder(&self, node: u8, path: &str) -> PathBuf {
        self.cluster.node_folder(node, path)
    }

    /// The end of a node's agent log.
    pub fn agent_log(&self, node: u8) -> String {
        daemon::log_tail(&self.cluster, &agents::agent_component(node))
    }

    /// The cgroup of a node's pods.
    pub fn cgroup(&self, node: u8) -> String {
        format!("/{}/{}", self.cluster.names().cgroup(), node_name(node))
    }
}
