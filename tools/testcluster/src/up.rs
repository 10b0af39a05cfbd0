//! Starts a cluster. `down` finds everything that is created here: it is recorded, named after the cluster, or in its
//! cgroup, before it exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cgroups::{self, Membership};
use super::layout::{MAX_NODES, Names, node_name};
use super::state::{Cluster, Network, ServiceProxy};
use super::{agents, api, control_plane, images, node, pki, primary, reference};
use crate::go_tools::{self, Tool};
use knit_dev::packages::{self, Purpose};
use knit_dev::process;
use knit_dev::progress::Step;
use knit_image::Profile;

/// The programs of every cluster.
pub const TOOLS: [Tool; 12] = [
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeScheduler,
    Tool::Kubelet,
    Tool::Kubectl,
    Tool::Containerd,
    Tool::ContainerdShim,
    Tool::Ctr,
    Tool::KubeProxy,
    Tool::Coredns,
    Tool::Agnhost,
    Tool::Cnitool,
];

/// The cluster to create.
#[derive(Clone, Debug)]
pub struct Options {
    /// Distinguishes clusters on one machine.
    pub name: String,
    /// Number of nodes.
    pub nodes: u8,
    /// The pod network.
    pub network: Network,
    /// What translates the addresses of Services.
    pub service_proxy: ServiceProxy,
    /// How Knit is built, if it is the network.
    pub profile: Profile,
}

/// Starts a cluster and returns once it is usable.
pub fn up(options: &Options) -> Result<Cluster> {
    up_with_image(options, None)
}

/// The same with an existing image of Knit instead of one that is built from this checkout, if Knit is the network.
pub fn up_with_image(options: &Options, image: Option<&Path>) -> Result<Cluster> {
    process::require_root("a cluster")?;
    let names = Names::new(&options.name)?;
    if !(1..=MAX_NODES).contains(&options.nodes) {
        bail!("{} nodes: a cluster has 1 to {MAX_NODES}", options.nodes);
    }
    if options.service_proxy == ServiceProxy::Knit && options.network != Network::Knit {
        bail!("--service-proxy knit needs --network knit");
    }
    packages::ensure(&[Purpose::Cluster])?;
    let tools = go_tools::ensure(&TOOLS)?;
    let archive = images::ensure(&tools)?;
    let built = options.network.has_agents().then(|| agents::build(options.profile)).transpose()?;
    let is_built = options.network == Network::Knit && image.is_none();
    let built_image = is_built.then(|| primary::Image::build(options.profile)).transpose()?;
    let programs: BTreeMap<_, _> =
        TOOLS.iter().map(|tool| (tool.program().to_owned(), tools.path(*tool).to_owned())).collect();

    let (mut cluster, _lock) =
        Cluster::create(&names, options.nodes, options.network, options.service_proxy, programs)?;
    let copy = built.iter().try_for_each(|built| agents::copy(&cluster, built));
    let built_image = built_image.as_ref().map(primary::Image::archive);
    let knit_image = image.map(Path::to_owned).or(built_image);
    let archives: Vec<_> = [Some(archive), knit_image].into_iter().flatten().collect();
    copy.and_then(|()| create(&cluster, &archives)).and_then(|()| cluster.set_complete()).with_context(|| {
        format!(
            "cluster {name} did not start; its logs are in {}; `cargo xtask cluster down --name {name}` removes what \
             was created",
            cluster.folder("logs").display(),
            name = names.name()
        )
    })?;
    Ok(cluster)
}

fn create(cluster: &Cluster, archives: &[PathBuf]) -> Result<()> {
    for folder in ["logs", "run", "nodes", "kubectl-cache"] {
        fs::create_dir_all(cluster.folder(folder))?;
    }
    let nodes: Vec<String> = cluster.node_numbers().map(node_name).collect();
    let cgroup = cluster.names().cgroup();
    cgroups::create(&cgroup, &nodes)?;
    let _membership = Membership::enter(&cgroup)?;

    let step = Step::start("start etcd and the API server");
    pki::create(cluster)?;
    control_plane::create_bridge(cluster)?;
    control_plane::start_api(cluster)?;
    step.done();

    // The API server needs some seconds to start: meanwhile the nodes are created.
    let step = Step::start(format!("start {} with containerd", nodes.join(", ")));
    for number in cluster.node_numbers() {
        node::create(cluster, number)?;
        node::start_containerd(cluster, number)?;
    }
    step.done();
    let step = Step::start("load the images");
    archives.iter().try_for_each(|archive| load_images(cluster, archive))?;
    step.done();

    let step = Step::start("wait for the API server");
    control_plane::wait_for_api(cluster)?;
    step.done();
    let step = Step::start("start the controllers and the kubelets, wait until the nodes register");
    control_plane::start_controllers(cluster)?;
    for number in cluster.node_numbers() {
        node::start_kubelet(cluster, number)?;
    }
    let limit = Duration::from_secs(120);
    let registered =
        api::wait_for_nodes(cluster, "the nodes register", limit, |node| node.pod_ranges.len() == 2)?;
    step.done();
    if cluster.network == Network::Reference {
        let step = Step::start("install the reference network and CoreDNS, wait for Ready");
        reference::install(cluster, &registered)?;
        reference::install_dns(cluster)?;
        api::wait_for_nodes(cluster, "the nodes are Ready", limit, |node| node.ready)?;
        reference::wait_for_dns(cluster)?;
        step.done();
    }
    if cluster.network.has_agents() {
        let step = Step::start("start Knit's agents, install its CNI shim and CoreDNS, wait for Ready");
        agents::install(cluster, &registered)?;
        reference::install_dns(cluster)?;
        api::wait_for_nodes(cluster, "the nodes are Ready", limit, |node| node.ready)?;
        reference::wait_for_dns(cluster)?;
        step.done();
    }
    if cluster.network == Network::Knit {
        let step = Step::start("install Knit from deploy/primary, and CoreDNS, wait for Ready");
        primary::install(cluster, &registered)?;
        reference::install_dns(cluster)?;
        api::wait_for_nodes(cluster, "the nodes are Ready", limit, |node| node.ready)?;
        primary::wait(cluster)?;
        reference::wait_for_dns(cluster)?;
        step.done();
    }
    Ok(())
}

/// Loads an image archive into all nodes in parallel.
pub fn load_images(cluster: &Cluster, archive: &Path) -> Result<()> {
    std::thread::scope(|scope| {
        let loads: Vec<_> = cluster
            .node_numbers()
            .map(|number| scope.spawn(move || node::load_images(cluster, number, archive)))
            .collect();
        loads.into_iter().try_for_each(|load| load.join().expect("loading an image does not panic"))
    })
}
