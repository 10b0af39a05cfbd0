//! The end of a soak: deletes everything and checks that nothing of it remains on nodes, in pods, in the API or in agents.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use knit_crds::states::{NodeNetwork, PodAddressBlock, PodNetworkState};
use knit_kni::Client;
use knit_kube::kube::Api;
use knit_kube::kube::api::{DeleteParams, DynamicObject, ListParams};

use super::action::{self, PERMANENT_PODS, PODS};
use super::executor::{Executor, pod_name};
use super::kernel_snapshot::KernelSnapshot;
use crate::harness::pods;
use crate::harness::programs::{self, Usage};
use crate::harness::{KnitCluster, OPERATOR_NAMESPACE, wait_until};
use knit_dev::progress::Step;

/// Enough for agents and controllers to clean up; one that was just killed has to restart first.
const TIMEOUT: Duration = Duration::from_secs(120);
/// State that is the same after this time does not change by itself: duplicate address detection takes two seconds.
const SETTLE_TIME: Duration = Duration::from_millis(2_500);
/// Connections to the API server stay open for a while after parallel requests.
const SPARE_SOCKETS: usize = 20;
/// A change in progress holds a network namespace open.
const SPARE_FILES: usize = 2;

/// The state before the first action.
pub struct Baseline {
    nodes: Vec<KernelSnapshot>,
    pods: Vec<KernelSnapshot>,
    agent: Usage,
}

impl Baseline {
    /// Captures the kernel state of nodes and permanent pods, and the agents' resource usage, once they are stable.
    pub fn capture(executor: &Executor<'_>) -> Result<Self> {
        let mut last = None;
        let (nodes, pods) = wait_step("nodes and pods are stable", || {
            std::thread::sleep(SETTLE_TIME);
            let before = last.replace(snapshots(executor)?);
            Ok(if before == last { Ok(()) } else { Err("they still change".to_owned()) })
        })
        .map(|()| last.unwrap_or_default())?;
        let agent = wait_step("every node has its agent", || largest_agent(executor.knit).map(Ok))?;
        Ok(Self { nodes, pods, agent })
    }

    /// The number of lines in all snapshots.
    pub fn len(&self) -> usize {
        self.nodes.iter().chain(&self.pods).map(KernelSnapshot::len).sum()
    }
}

/// Waits until all Knit processes run and every object's status is about its current generation.
pub fn settle(executor: &Executor<'_>) -> Result<()> {
    for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
        executor.knit.kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", what, "--timeout=120s"])?;
    }
    pods::wait_running(executor.knit, executor.namespace, PODS)?;
    wait_step("every object's status is about its current generation", || {
        let late = objects(executor)?.into_iter().find(|object| {
            let observed = object.data["status"]["observedGeneration"].as_i64();
            object.metadata.deletion_timestamp.is_none() && observed != object.metadata.generation
        });
        Ok(late.map_or(Ok(()), |object| Err(title(&object))))
    })
}

/// Deletes everything; fails with a list of what remains.
pub fn delete_and_check(executor: &Executor<'_>, before: &Baseline) -> Result<Usage> {
    for kind in action::kinds() {
        let api = executor.knit.objects(kind, executor.namespace)?;
        executor.knit.block_on(api.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    }
    for pod in 0..PODS {
        for label in action::labels() {
            executor.label(pod, label, None)?;
        }
    }
    wait_step("no object is left", || {
        Ok(match &objects(executor)?[..] {
            [] => Ok(()),
            left => Err(left.iter().map(title).collect::<Vec<_>>().join(", ")),
        })
    })?;
    wait_step("no state is left in the API", || check_api(executor))?;
    wait_step("agents have no state left", || check_agents(executor))?;
    wait_step("nodes and pods are as before", || {
        let left = differences(executor, before)?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("\n{}", left.join("\n"))) })
    })?;
    wait_step("agents hold no more descriptors than before", || {
        let (now, then) = (largest_agent(executor.knit)?, before.agent);
        let is_same = now.files <= then.files + SPARE_FILES && now.sockets <= then.sockets + SPARE_SOCKETS;
        let many = format!(
            "{} files and {} sockets instead of {} and {}",
            now.files, now.sockets, then.files, then.sockets
        );
        Ok(if is_same { Ok(now) } else { Err(many) })
    })
}

/// Waits until a condition holds, shown as a step.
fn wait_step<T>(what: &str, mut check: impl FnMut() -> Result<Result<T, String>>) -> Result<T> {
    let step = Step::start(what);
    // A check also fails while a process that it inspects starts or ends.
    let found = wait_until(what, TIMEOUT, || Ok(check().unwrap_or_else(|error| Err(format!("{error:#}")))))?;
    step.done();
    Ok(found)
}

fn snapshots(executor: &Executor<'_>) -> Result<(Vec<KernelSnapshot>, Vec<KernelSnapshot>)> {
    let nodes =
        executor.knit.cluster().node_numbers().map(|node| KernelSnapshot::of_node(executor.knit, node));
    let networks = pods::network_namespaces(executor.knit, executor.namespace)?;
    let permanent = (0..PERMANENT_PODS).map(|pod| {
        let netns = networks.get(&pod_name(pod)).context("a permanent pod is gone")?;
        KernelSnapshot::of_pod(netns)
    });
    Ok((nodes.collect::<Result<_>>()?, permanent.collect::<Result<_>>()?))
}

fn differences(executor: &Executor<'_>, before: &Baseline) -> Result<Vec<String>> {
    let (nodes, pods) = snapshots(executor)?;
    let mut found = Vec::new();
    for (number, (now, then)) in nodes.iter().zip(&before.nodes).enumerate() {
        found.extend(now.difference(then).into_iter().map(|line| format!("node{}: {line}", number + 1)));
    }
    for (number, (now, then)) in pods.iter().zip(&before.pods).enumerate() {
        found.extend(now.difference(then).into_iter().map(|line| format!("{}: {line}", pod_name(number))));
    }
    // Replaced pods have other addresses, but no other links.
    for (name, netns) in pods::network_namespaces(executor.knit, executor.namespace)? {
        let mut list = std::process::Command::new("ip");
        list.args(["-br", "link"]);
        let links =
            super::kernel_snapshot::link_names(&netns.enter(|| knit_dev::process::output(&mut list))??);
        let extra = links.iter().filter(|link| !["lo", "eth0"].contains(&link.as_str()));
        found.extend(extra.map(|link| format!("{name}: left behind: link {link}")));
    }
    Ok(found)
}

fn check_api(executor: &Executor<'_>) -> Result<Result<(), String>> {
    let states: Api<PodNetworkState> = Api::namespaced(executor.knit.client().clone(), executor.namespace);
    let states = executor.knit.block_on(states.list(&ListParams::default()))?.items;
    let nodes: Api<NodeNetwork> = Api::all(executor.knit.client().clone());
    let nodes = executor.knit.block_on(nodes.list(&ListParams::default()))?.items;
    let mut left: Vec<String> = states
        .into_iter()
        .filter_map(|state| state.metadata.name)
        .map(|name| format!("state of {name}"))
        .collect();
    for status in nodes.into_iter().filter_map(|node| node.status) {
        let here = |namespace: &String| *namespace == executor.namespace;
        let objects = status.objects.iter().filter(|object| here(&object.namespace));
        left.extend(objects.map(|object| format!("{} {} on a node", object.kind, object.name)));
        let networks = status.networks.iter().filter(|network| here(&network.namespace));
        left.extend(networks.map(|network| format!("network {} on a node", network.name)));
    }
    let blocks: Api<PodAddressBlock> = Api::all(executor.knit.client().clone());
    let blocks = executor.knit.block_on(blocks.list(&ListParams::default()))?.items;
    let prefix = format!("{}/", executor.namespace);
    let blocks = blocks.into_iter().filter(|block| block.spec.pool.starts_with(&prefix));
    left.extend(blocks.filter_map(|block| block.metadata.name).map(|name| format!("block {name}")));
    Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
}

/// Checks the agents' own state through their KNI sockets.
fn check_agents(executor: &Executor<'_>) -> Result<Result<(), String>> {
    let mut left = Vec::new();
    for node in executor.knit.cluster().node_numbers() {
        let socket = executor.knit.cluster().node_folder(node, "run/knit/kni.sock");
        let listed = executor.knit.block_on(async {
            let mut client = Client::connect(&socket).await?;
            let pods = client.list_pods(Default::default()).await?.pods;
            let networks = client.get_capacity(Default::default()).await?.networks;
            Ok::<_, knit_kni::Error>((pods, networks))
        });
        let (pods, networks) = match listed {
            Ok(listed) => listed,
            Err(error) => return Ok(Err(format!("the agent of node{node} does not answer: {error}"))),
        };
        let pods =
            pods.into_iter().filter(|pod| pod.namespace == executor.namespace && !pod.interfaces.is_empty());
        left.extend(pods.map(|pod| format!("interfaces of {}", pod.name)));
        let networks = networks.into_iter().filter(|one| one.used > 0 && one.namespace == executor.namespace);
        left.extend(networks.map(|one| format!("{} addresses of {}", one.used, one.network)));
    }
    Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
}

fn objects(executor: &Executor<'_>) -> Result<Vec<DynamicObject>> {
    let mut found = Vec::new();
    for kind in action::kinds() {
        let api = executor.knit.objects(kind, executor.namespace)?;
        let listed = executor.knit.block_on(api.list(&ListParams::default()))?.items;
        found.extend(listed.into_iter().map(|mut object| {
            object.types =
                Some(knit_kube::kube::core::TypeMeta { api_version: String::new(), kind: kind.to_owned() });
            object
        }));
    }
    Ok(found)
}

fn title(object: &DynamicObject) -> String {
    let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default().join(",");
    let finalizers = if finalizers.is_empty() { finalizers } else { format!(" (finalizers {finalizers})") };
    format!("{kind} {}{finalizers}", object.metadata.name.as_deref().unwrap_or_default())
}

/// The usage of the agent with the most descriptors, once all agents run.
fn largest_agent(knit: &KnitCluster) -> Result<Usage> {
    let agents: Vec<_> =
        programs::find(knit.cluster())?.into_iter().filter(|program| program.role == "agent").collect();
    if agents.len() != usize::from(knit.cluster().nodes) {
        bail!("{} agents run, expected one per node", agents.len());
    }
    let usages = agents.iter().map(programs::usage).collect::<Result<Vec<_>>>()?;
    usages
        .into_iter()
        .max_by_key(|usage| (usage.files, usage.sockets))
        .context("a cluster has at least one agent")
}
