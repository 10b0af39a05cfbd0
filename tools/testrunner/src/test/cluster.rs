//! The cluster family: brings a cluster up, tests on it, takes it down, and checks that the machine is as before.

use std::ffi::OsStr;

use anyhow::{Context, Result, anyhow, bail};

use super::Request;
use super::binaries::{self, Selection, Where};
use super::count::Count;
use knit_testcluster::conformance::cluster_network_policy::{TestSelection, cluster_network_policy};
use knit_testcluster::conformance::cyclonus::{self, CaseSelection, cyclonus};
use knit_testcluster::conformance::{self, Results, SpecSelection, State};
use knit_testcluster::go_tools::{self, Tool};
use knit_testcluster::leftovers::HostSnapshot;
use knit_testcluster::{Cluster, Network, Options, Profile, ServiceProxy};

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

/// Cases of Cyclonus that are run on Knit: those of peers that change, and of ranges with exceptions.
const CASES: [&str; 4] =
    ["ip-block-with-except", "namespaces-by-default-label", "set-namespace-labels", "set-pod-labels"];
/// Combinations that are only run in the suite.
const OTHER_CASES: [&str; 3] = ["multi-peer", "example", "upstream-e2e"];
/// Tests of ClusterNetworkPolicies that are run on Knit.
const CLUSTER_POLICY_TESTS: [&str; 3] =
    ["CNPAdminTierEgressNamedPort", "CNPAdminTierPriorityField", "CNPBaselineTierIngressNamedPort"];

/// The programs of the clusters, and those that the tests use.
pub fn tools() -> impl Iterator<Item = Tool> {
    knit_testcluster::TOOLS
        .into_iter()
        .chain([Tool::Helm, Tool::E2eTest, Tool::NetworkPolicyApi])
        .chain(cyclonus::PROGRAMS)
}

/// Runs the family. With a filter only the test programs' own tests are chosen by it.
pub fn run(request: &Request) -> Result<Count> {
    binaries::build_programs(&["knit-soak", "dhcp-responder"])?;
    // What an earlier run may have left when it was killed.
    knit_testcluster::down(NAME)?;
    let before = HostSnapshot::take_settled(NAME)?;
    let mut count = Count::default();
    let options = Options {
        name: NAME.to_owned(),
        nodes: 2,
        network: Network::Reference,
        service_proxy: ServiceProxy::KubeProxy,
        profile: PROFILE,
    };
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
    let service_proxy = ServiceProxy::Knit;
    let options = Options { nodes: 2, network: Network::Knit, service_proxy, ..options };
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

/// What is run of upstream's tests.
fn sample(cluster: &Cluster) -> Result<Count> {
    let folder = conformance::default_folder();
    let mut count = Count::default();
    let focus = SAMPLE.map(|spec| format!(r"{spec}.*\[(Conformance|Feature:NetworkPolicy)\]")).join("|");
    let specs = SpecSelection { focus, skip: None };
    let ran = conformance::conformance(cluster, &specs, &folder).context("upstream specs")?;
    count_specs(&mut count, "spec", &ran, SAMPLE.len());
    let only = CLUSTER_POLICY_TESTS.map(str::to_owned).to_vec();
    let ran = cluster_network_policy(cluster, &TestSelection { only, skip: None }, &folder)
        .context("upstream tests of ClusterNetworkPolicies")?;
    count_specs(&mut count, "test of ClusterNetworkPolicies", &ran, CLUSTER_POLICY_TESTS.len());
    let [include, exclude] =
        [&CASES[..], &OTHER_CASES].map(|tags| tags.iter().map(|tag| (*tag).to_owned()).collect());
    let ran = cyclonus(cluster, &CaseSelection { include, exclude }, &folder).context("cyclonus")?;
    count_specs(&mut count, "case of Cyclonus", &ran, CASES.len());
    Ok(count)
}

/// Each spec counts as a test of its own; one that did not run has failed.
fn count_specs(count: &mut Count, what: &str, results: &Results, expected: usize) {
    for spec in &results.specs {
        let outcome = match spec.state {
            State::Passed => Ok(()),
            State::Failed | State::Skipped => Err(anyhow!("{}", spec.message)),
        };
        count.check(&format!("upstream {}", spec.name), outcome);
    }
    let ran = results.specs.len();
    let all = if ran < expected {
        Err(anyhow!("{ran} of at least {expected} ran: {}", results.log.display()))
    } else {
        Ok(())
    };
    count.check(&format!("every upstream {what} of the sample ran"), all);
}

fn as_before(before: &HostSnapshot) -> Result<()> {
    let left = before.leftovers(NAME)?;
    if !left.is_empty() {
        bail!("the machine is not as it was before:\n{}", left.join("\n"));
    }
    Ok(())
}
