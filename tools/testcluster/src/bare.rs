//! Nodes with a container runtime and a network, and no Kubernetes: for those who ask the runtime themselves.
//!
//! Named, recorded and found again like a cluster, so that `cargo xtask cluster down` takes them away too.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::cgroups::{self, Membership};
use super::layout::{Names, node_name};
use super::state::{Claim, Cluster, Network};
use super::{daemon, down, images, knit_cni, node, reference, up};
use crate::go_tools::{self, Tool};
use crate::programs::Binaries;

/// The node whose pods the reference plugins connect.
pub const REFERENCE: u8 = 1;
/// The node whose pods Knit connects, asked through its shim.
pub const KNIT: u8 = 2;

/// What the runtimes need.
const RUNTIME: [Tool; 3] = [Tool::Containerd, Tool::ContainerdShim, Tool::Ctr];
/// What the images are made of.
const IMAGES: [Tool; 2] = [Tool::Agnhost, Tool::Coredns];

/// Two nodes.
pub struct Bare {
    cluster: Cluster,
    archive: PathBuf,
}

impl Bare {
    /// Records the nodes. What an earlier run left is taken away. When they are to go, the right to them is given up and
    /// [`super::down`] takes them away.
    pub fn claim(name: &str) -> Result<(Self, Claim)> {
        let tools = go_tools::ensure(&[RUNTIME.as_slice(), &IMAGES].concat())?;
        let archive = images::ensure(&tools)?;
        let programs: BTreeMap<_, _> =
            RUNTIME.iter().map(|tool| (tool.program().to_owned(), tools.path(*tool).to_owned())).collect();
        down(name)?;
        let (cluster, claim) = Cluster::claim(&Names::new(name)?, KNIT, Network::None, programs)?;
        Ok((Self { cluster, archive }, claim))
    }

    /// Starts both nodes; the pods of each get addresses of this range.
    pub fn start(&self, range: &str, built: &Binaries) -> Result<()> {
        self.start_with(built, |cluster| {
            let ranges = [range.to_owned()];
            reference::install_plugins(cluster, REFERENCE, &ranges)?;
            knit_cni::start(cluster, KNIT, &ranges)?;
            knit_cni::wait_for_shim(cluster, KNIT)
        })
    }

    /// Starts both nodes; the reference plugins connect the pods of each, with addresses of this range. On one of them Knit
    /// adds what these objects say, told of pods by the runtime.
    pub fn start_beside(&self, range: &str, built: &Binaries, objects: &str) -> Result<()> {
        self.start_with(built, |cluster| {
            for node in [REFERENCE, KNIT] {
                reference::install_plugins(cluster, node, &[range.to_owned()])?;
            }
            knit_cni::start_beside(cluster, KNIT, objects)
        })
    }

    fn start_with(&self, built: &Binaries, connect: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        let cluster = &self.cluster;
        for folder in ["logs", "run", "nodes"] {
            fs::create_dir_all(cluster.folder(folder))?;
        }
        knit_cni::copy(cluster, built)?;
        let nodes: Vec<String> = cluster.node_numbers().map(node_name).collect();
        let cgroup = cluster.names().cgroup();
        cgroups::make(&cgroup, &nodes)?;
        let _membership = Membership::enter(&cgroup)?;
        for number in cluster.node_numbers() {
            node::arrange(cluster, number)?;
            node::start_containerd(cluster, number)?;
        }
        connect(cluster)?;
        up::load_images(cluster, &self.archive)
    }

    /// Where a node's containerd listens.
    pub fn socket(&self, node: u8) -> PathBuf {
        node::containerd_socket(&self.cluster, node)
    }

    /// A folder of a node, as seen from outside.
    pub fn folder(&self, node: u8, path: &str) -> PathBuf {
        self.cluster.node_folder(node, path)
    }

    /// What a node's agent has logged.
    pub fn agent_log(&self, node: u8) -> String {
        daemon::log_tail(&self.cluster, &knit_cni::agent_part(node))
    }

    /// Where a node's pods are counted.
    pub fn cgroup(&self, node: u8) -> String {
        format!("/{}/{}", self.cluster.names().cgroup(), node_name(node))
    }
}
