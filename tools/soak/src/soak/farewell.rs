//! The end of a soak: everything is deleted, and nothing may be left of it anywhere.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use knit_crds::states::{NodeNetwork, PodAddressBlock, PodNetworkState};
use knit_kni::Client;
use knit_kube::kube::Api;
use knit_kube::kube::api::{DeleteParams, DynamicObject, ListParams};

use super::deed::{self, PODS, STEADY};
use super::hands::{Hands, pod_name};
use super::picture::Picture;
use crate::harness::pods;
use crate::harness::programs::{self, Usage};
use crate::harness::{Beside, OPERATOR, until};
use knit_dev::progress::Step;

/// What agents and controllers may take for the last things: one that was just killed has to come back first.
const LIMIT: Duration = Duration::from_secs(120);
/// What is the same after this time does not change by itself: the kernel looks for duplicates of an address for two seconds.
const REST: Duration = Duration::from_millis(2_500);
/// Connections to the API server are kept for a while after a busy time: as many as there are requests at once.
const CONNECTIONS: usize = 20;
/// A job that is under way holds a namespace open.
const FILES: usize = 2;

/// What there was before anything happened.
pub struct Before {
    nodes: Vec<Picture>,
    pods: Vec<Picture>,
    agent: Usage,
}

impl Before {
    /// Looks at nodes, at pods that live to the end, and at the agents.
    pub fn look(hands: &Hands<'_>) -> Result<Self> {
        let mut last = None;
        let (nodes, pods) = stands("nodes and pods come to rest", || {
            std::thread::sleep(REST);
            let before = last.replace(pictures(hands)?);
            Ok(if before == last { Ok(()) } else { Err("they still change".to_owned()) })
        })
        .map(|()| last.unwrap_or_default())?;
        let agent = stands("every node has its agent", || agents(hands.beside).map(Ok))?;
        Ok(Self { nodes, pods, agent })
    }

    /// How many things the pictures show.
    pub fn len(&self) -> usize {
        self.nodes.iter().chain(&self.pods).map(Picture::len).sum()
    }
}

/// All of Knit's programs run, and every object's status is about what it asks for now.
pub fn settle(hands: &Hands<'_>) -> Result<()> {
    for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
        hands.beside.kubectl(&["-n", OPERATOR, "rollout", "status", what, "--timeout=120s"])?;
    }
    pods::wait(hands.beside, hands.namespace, PODS)?;
    stands("every object's status is about what it asks for", || {
        let late = objects(hands)?.into_iter().find(|object| {
            let observed = object.data["status"]["observedGeneration"].as_i64();
            object.metadata.deletion_timestamp.is_none() && observed != object.metadata.generation
        });
        Ok(late.map_or(Ok(()), |object| Err(title(&object))))
    })
}

/// Deletes everything, and fails in words if something is left.
pub fn farewell(hands: &Hands<'_>, before: &Before) -> Result<Usage> {
    for kind in deed::kinds() {
        let api = hands.beside.objects(kind, hands.namespace)?;
        hands.beside.wait(api.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    }
    for pod in 0..PODS {
        for label in deed::labels() {
            hands.label(pod, label, None)?;
        }
    }
    stands("no object is left", || {
        Ok(match &objects(hands)?[..] {
            [] => Ok(()),
            left => Err(left.iter().map(title).collect::<Vec<_>>().join(", ")),
        })
    })?;
    stands("no state is left in the API", || nothing_in_the_api(hands))?;
    stands("agents know of nothing", || nothing_in_agents(hands))?;
    stands("nodes and pods are as before", || {
        let left = differences(hands, before)?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("\n{}", left.join("\n"))) })
    })?;
    stands("agents hold no more descriptors than before", || {
        let (now, then) = (agents(hands.beside)?, before.agent);
        let is_same = now.files <= then.files + FILES && now.sockets <= then.sockets + CONNECTIONS;
        let many = format!(
            "{} files and {} sockets instead of {} and {}",
            now.files, now.sockets, then.files, then.sockets
        );
        Ok(if is_same { Ok(now) } else { Err(many) })
    })
}

/// Waits until it is so, as a step that people see.
fn stands<T>(what: &str, mut look: impl FnMut() -> Result<Result<T, String>>) -> Result<T> {
    let step = Step::start(what);
    // A look fails, too, while a program that it looks at comes or goes.
    let found = until(what, LIMIT, || Ok(look().unwrap_or_else(|why| Err(format!("{why:#}")))))?;
    step.done();
    Ok(found)
}

fn pictures(hands: &Hands<'_>) -> Result<(Vec<Picture>, Vec<Picture>)> {
    let nodes = hands.beside.cluster().node_numbers().map(|node| Picture::of_node(hands.beside, node));
    let networks = pods::networks(hands.beside, hands.namespace)?;
    let steady = (0..STEADY).map(|pod| {
        let netns = networks.get(&pod_name(pod)).context("a pod that stays has gone")?;
        Picture::of_pod(netns)
    });
    Ok((nodes.collect::<Result<_>>()?, steady.collect::<Result<_>>()?))
}

fn differences(hands: &Hands<'_>, before: &Before) -> Result<Vec<String>> {
    let (nodes, pods) = pictures(hands)?;
    let mut found = Vec::new();
    for (number, (now, then)) in nodes.iter().zip(&before.nodes).enumerate() {
        found.extend(now.difference(then).into_iter().map(|line| format!("node{}: {line}", number + 1)));
    }
    for (number, (now, then)) in pods.iter().zip(&before.pods).enumerate() {
        found.extend(now.difference(then).into_iter().map(|line| format!("{}: {line}", pod_name(number))));
    }
    // Pods that came later have other addresses, but no other links.
    for (name, netns) in pods::networks(hands.beside, hands.namespace)? {
        let mut list = std::process::Command::new("ip");
        list.args(["-br", "link"]);
        let links = super::picture::names(&netns.enter(|| knit_dev::process::output(&mut list))??);
        let foreign = links.iter().filter(|link| !["lo", "eth0"].contains(&link.as_str()));
        found.extend(foreign.map(|link| format!("{name}: left behind: link {link}")));
    }
    Ok(found)
}

fn nothing_in_the_api(hands: &Hands<'_>) -> Result<Result<(), String>> {
    let states: Api<PodNetworkState> = Api::namespaced(hands.beside.client().clone(), hands.namespace);
    let states = hands.beside.wait(states.list(&ListParams::default()))?.items;
    let nodes: Api<NodeNetwork> = Api::all(hands.beside.client().clone());
    let nodes = hands.beside.wait(nodes.list(&ListParams::default()))?.items;
    let mut left: Vec<String> = states
        .into_iter()
        .filter_map(|state| state.metadata.name)
        .map(|name| format!("state of {name}"))
        .collect();
    for status in nodes.into_iter().filter_map(|node| node.status) {
        let here = |namespace: &String| *namespace == hands.namespace;
        let objects = status.objects.iter().filter(|object| here(&object.namespace));
        left.extend(objects.map(|object| format!("{} {} on a node", object.kind, object.name)));
        let networks = status.networks.iter().filter(|network| here(&network.namespace));
        left.extend(networks.map(|network| format!("network {} on a node", network.name)));
    }
    let blocks: Api<PodAddressBlock> = Api::all(hands.beside.client().clone());
    let blocks = hands.beside.wait(blocks.list(&ListParams::default()))?.items;
    let of_it = format!("{}/", hands.namespace);
    let blocks = blocks.into_iter().filter(|block| block.spec.pool.starts_with(&of_it));
    left.extend(blocks.filter_map(|block| block.metadata.name).map(|name| format!("block {name}")));
    Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
}

/// What the agents' own state has, asked at their sockets.
fn nothing_in_agents(hands: &Hands<'_>) -> Result<Result<(), String>> {
    let mut left = Vec::new();
    for node in hands.beside.cluster().node_numbers() {
        let socket = hands.beside.cluster().node_folder(node, "run/knit/kni.sock");
        let asked = hands.beside.wait(async {
            let mut client = Client::connect(&socket).await?;
            let pods = client.list_pods(Default::default()).await?.pods;
            let networks = client.get_capacity(Default::default()).await?.networks;
            Ok::<_, knit_kni::Error>((pods, networks))
        });
        let (pods, networks) = match asked {
            Ok(answer) => answer,
            Err(why) => return Ok(Err(format!("the agent of node{node} does not answer: {why}"))),
        };
        let pods =
            pods.into_iter().filter(|pod| pod.namespace == hands.namespace && !pod.interfaces.is_empty());
        left.extend(pods.map(|pod| format!("interfaces of {}", pod.name)));
        let networks = networks.into_iter().filter(|one| one.used > 0 && one.namespace == hands.namespace);
        left.extend(networks.map(|one| format!("{} addresses of {}", one.used, one.network)));
    }
    Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
}

fn objects(hands: &Hands<'_>) -> Result<Vec<DynamicObject>> {
    let mut found = Vec::new();
    for kind in deed::kinds() {
        let api = hands.beside.objects(kind, hands.namespace)?;
        let listed = hands.beside.wait(api.list(&ListParams::default()))?.items;
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
    let held = object.metadata.finalizers.as_deref().unwrap_or_default().join(",");
    let held = if held.is_empty() { held } else { format!(" (held by {held})") };
    format!("{kind} {}{held}", object.metadata.name.as_deref().unwrap_or_default())
}

/// The agent that holds most, once all are there.
fn agents(beside: &Beside) -> Result<Usage> {
    let agents: Vec<_> =
        programs::find(beside.cluster())?.into_iter().filter(|program| program.role == "agent").collect();
    if agents.len() != usize::from(beside.cluster().nodes) {
        bail!("{} agents run", agents.len());
    }
    let usages = agents.iter().map(programs::usage).collect::<Result<Vec<_>>>()?;
    usages.into_iter().max_by_key(|usage| (usage.files, usage.sockets)).context("there are agents")
}
