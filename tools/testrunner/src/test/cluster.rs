//! The cluster family: brings a cluster up, tests on it, takes it down, and checks that the machine is as before.

use std::ffi::OsStr;

use anyhow::{Context, Result, anyhow, bail};

use super::Request;
use super::binaries::{self, Selection, Where};
use super::count::Count;
use knit_testcluster::conformance::{self, SpecSelection, State};
use knit_testcluster::go_tools::{self, Tool};
use knit_testcluster::leftovers::HostSnapshot;
use knit_testcluster::{Cluster, Network, Options, Profile};

/// A name of its own, so that a cluster that someone works with stays as it is.
const NAME: &str = "ci";

/// The build of the tests already has these binaries; a release takes many minutes.
const PROFILE: Profile = Profile::Dev;

/// Upstream specs that are run on Knit, one for each thing that a network has to do; all of them take about seven
/// minutes.
const SAMPLE: [&str; 16] = [
    r"API Server should have Endpoints and EndpointSlices pointing to API Server",
    r"DNS should provide DNS for services",
    r"DNS should provide DNS for pods for Hostname",
    r"EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service",
    r"HostPort validates that there is no conflict between pods with same hostPort",
    r"NetworkPolicy between server and client should allow egress access on one named port",
    r"NetworkPolicy between server and client should enforce policy based on PodSelector and NamespaceSelector",
    r"NetworkPolicy between server and client should enforce policy based on Ports",
    r"NetworkPolicy between server and client should stop enforcing policies after they are deleted",
    r"Networking Granular Checks: Pods should function for intra-pod communication: http",
    r"Networking Granular Checks: Pods should function for intra-pod communication: udp",
    r"Networking Granular Checks: Pods should function for node-pod communication: http",
    r"Proxy version v1 should proxy through a service and a pod",
    r"Services should serve a basic endpoint from pods",
    r"Services should be able to create a functioning NodePort service",
    r"Services should have session affinity work for service with type clusterIP",
];

/// The programs of the clusters, and those that the tests use.
pub fn tools() -> impl Iterator<Item = Tool> {
    knit_testcluster::TOOLS.into_iter().chain([Tool::Helm, Tool::E2eTest])
}

/// Runs the family. With a filter only the test programs' own tests are chosen by it.
pub fn run(request: &Request) -> Result<Count> {
    binaries::build_programs(&["knit-soak", "dhcp-responder"])?;
    // What an earlier run may have left when it was killed.
    knit_testcluster::down(NAME)?;
    let before = HostSnapshot::take_settled(NAME)?;
    let mut count = Count::default();
    let options = Options { name: NAME.to_owned(), nodes: 2, network: Network::Reference, profile: PROFILE };
    if let Some(cluster) =
        count.check("two_nodes_with_the_reference_network_come_up", knit_testcluster::up(&options))
    {
        count.check("the_image_is_built_and_loaded", load_image(&cluster));
        count += on(&cluster, request)?;
    }
    count.check("the_cluster_goes_down", knit_testcluster::down(NAME));
    count.check("the_machine_is_as_before", as_before(&before));
    let options = Options { nodes: 1, network: Network::KnitCni, ..options };
    if let Some(cluster) = count.check("a_node_on_knits_cni_shim_comes_up", knit_testcluster::up(&options)) {
        count += on_cni(&cluster, request)?;
    }
    count.check("the_cluster_on_knits_cni_shim_goes_down", knit_testcluster::down(NAME));
    count.check("the_machine_is_as_before_it", as_before(&before));
    let options = Options { nodes: 2, network: Network::Knit, ..options };
    if let Some(cluster) =
        count.check("two_nodes_with_knit_as_their_network_come_up", knit_testcluster::up(&options))
    {
        count += on_knit(&cluster, request)?;
    }
    count.check("the_cluster_with_knit_as_its_network_goes_down", knit_testcluster::down(NAME));
    count.check("the_machine_is_as_before_that", as_before(&before));
    Ok(count)
}

/// The image of this checkout, in every node.
fn load_image(cluster: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let archive = folder.path().join("knit.tar");
    knit_image::command(Some(archive.clone()), false, PROFILE)?;
    knit_testcluster::load_images(cluster, &archive)
}

/// What containerd and the kubelet get through Knit's CNI shim.
fn on_cni(cluster: &Cluster, request: &Request) -> Result<Count> {
    let selection = Selection::new(binaries::is_cluster_cni, request).until_failure();
    binaries::run_with(&selection, Where::Here, &kubectl_of(cluster)?)
}

/// What pods on Knit's own network get, and what upstream's tests say about it.
fn on_knit(cluster: &Cluster, request: &Request) -> Result<Count> {
    let selection = Selection::new(binaries::is_cluster_primary, request).until_failure();
    let mut count = binaries::run_with(&selection, Where::Here, &kubectl_of(cluster)?)?;
    if request.filter.is_none() && count.failed() == 0 {
        count += sample(cluster)?;
    }
    Ok(count)
}

/// How tests reach the cluster.
fn kubectl_of(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let kubectl = cluster.kubectl()?;
    let words = |text: &OsStr| text.to_string_lossy().into_owned();
    let mut environment = vec![
        ("KNIT_TEST_KUBECTL".to_owned(), words(kubectl.get_program())),
        ("KNIT_TEST_CLUSTER".to_owned(), cluster.names().name().to_owned()),
    ];
    let tools = go_tools::ensure(&[Tool::Helm])?;
    environment.push(("KNIT_TEST_HELM".to_owned(), words(tools.path(Tool::Helm).as_os_str())));
    environment.extend(kubectl.get_envs().filter_map(|(key, value)| Some((words(key), words(value?)))));
    Ok(environment)
}

fn on(cluster: &Cluster, request: &Request) -> Result<Count> {
    let mut count = binaries::run_with(
        &Selection::new(binaries::is_cluster, request).until_failure(),
        Where::Here,
        &kubectl_of(cluster)?,
    )?;
    if count.failed() == 0 {
        let last = Selection::new(binaries::is_cluster_migrate, request);
        count += binaries::run_with(&last, Where::Here, &kubectl_of(cluster)?)?;
    }
    Ok(count)
}

/// Each spec counts as a test of its own; one that did not run has failed.
fn sample(cluster: &Cluster) -> Result<Count> {
    let focus = SAMPLE.map(|spec| format!(r"{spec}.*\[(Conformance|Feature:NetworkPolicy)\]")).join("|");
    let specs = SpecSelection { focus, skip: None };
    let folder = conformance::default_folder();
    let results = conformance::conformance(cluster, &specs, &folder).context("upstream specs")?;
    let mut count = Count::default();
    for spec in &results.specs {
        let outcome = match spec.state {
            State::Passed => Ok(()),
            State::Failed | State::Skipped => Err(anyhow!("{}", spec.message)),
        };
        count.check(&format!("upstream {}", spec.name), outcome);
    }
    let ran = if results.specs.len() < SAMPLE.len() {
        Err(anyhow!("{} of {} specs ran: {}", results.specs.len(), SAMPLE.len(), results.log.display()))
    } else {
        Ok(())
    };
    count.check("every_upstream_spec_of_the_sample_ran", ran);
    Ok(count)
}

fn as_before(before: &HostSnapshot) -> Result<()> {
    let left = before.leftovers(NAME)?;
    if !left.is_empty() {
        bail!("the machine is not as it was before:\n{}", left.join("\n"));
    }
    Ok(())
}
