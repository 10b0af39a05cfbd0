//! `bench policy`: what NetworkPolicies cost: changes on a full node, connections, requests, a pod's start, a flood.
//!
//! An agent's event loop runs in this process, with the real kernel: it writes the nftables tables of a network namespace that is its
//! host, whose pods are network namespaces on the bridge of its cluster network. There is no API server: the benchmark submits what
//! the agent's watches would.

mod changes;
mod connect;
mod flood;
mod node;
mod objects;
mod probe;
mod start;
mod traffic;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use knit_policy::Policy;
use serde_json::json;

use crate::attach::{measure, raise_descriptor_limit};
use crate::cleanup::Cleanup;
use crate::datapath::program;
use connect::Sizes;
use knit_dev::packages::{self, Purpose};
use knit_report::Report;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use node::{PolicyNode, RunningPod};
use objects::{APP, Cluster, ClusterPod};

/// The namespace of clients and servers.
const NAMESPACE: &str = "bench";
/// The namespace of a client without policies about any of its pods.
const CLIENTS: &str = "clients";
/// The name and app of the client.
const CLIENT: &str = "client";
/// Servers: with a policy that accepts the client, and without policies.
const RESTRICTED: &str = "restricted";
const OPEN: &str = "open";
/// Where a flood comes from.
const ATTACKER: &str = "attacker";
/// Pods with policies that nothing connects to, on the node for connections.
const OTHER_PODS: usize = 100;
/// Where the fast path pins its programs.
const BPFFS: &str = "/sys/fs/bpf";
/// The ports that the policy of the restricted server allows: those of the benchmark's listeners.
const ALLOWED_PORTS: [u16; 2] = [1_024, 65_535];

/// Arguments of `bench policy`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of changes of each kind, and of pods started; a p99 of fewer than 200 is not meaningful
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
    /// A short trial run: 100 pods, 200 policies, few rounds, medians only; also with an unoptimised build
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The full node and its policies.
    cluster: Cluster,
    /// Peers and policies with which connections are compared.
    sizes: Sizes,
    /// The number of changes of each kind.
    rounds: usize,
    /// The number of handshakes of each kind.
    handshakes: usize,
    /// The number of measurements of each request rate.
    slices: usize,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether nothing is measured in earnest.
    pub fn is_trial(&self) -> bool {
        self.quick
    }

    fn scale(&self) -> Scale {
        if self.quick {
            let sizes = Sizes { peers: &[1, 100], policies: &[1, 100] };
            let cluster = Cluster { namespaces: 2 };
            return Scale { cluster, sizes, rounds: 10, handshakes: 200, slices: 2 };
        }
        let sizes = Sizes { peers: &[1, 100, 10_000], policies: &[1, 100, 1_000] };
        let (cluster, rounds) = (Cluster { namespaces: 10 }, self.rounds as usize);
        Scale { cluster, sizes, rounds, handshakes: 2_000, slices: 10 }
    }
}

/// Measures everything in separate network namespaces; the machine's own is not changed.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Build, Purpose::Netns])?;
    raise_descriptor_limit()?;
    let scale = options.scale();
    mount_own_bpffs()?;
    let cleanup = Cleanup::new()?;
    let program = program::compile()?.leak();
    let mut report = Report::default();
    report.note_machine("at the start")?;
    if options.is_trial() {
        report.note("a trial: the numbers are not meaningful".to_owned());
    }
    measure_traffic(&mut report, scale, &cleanup)?;
    measure_full_node(&mut report, scale, program, &cleanup)?;
    report.note_machine("at the end")?;
    Ok(report)
}

/// Mounts a bpffs that only this process has: what is pinned there ends with it. Must be called before other threads start.
fn mount_own_bpffs() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot create a mount namespace")?;
    let recursive = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, recursive, None::<&str>).context("cannot make mounts private")?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("cannot mount bpffs at {BPFFS}"))
}

/// Connections, requests and a flood, on a node without fast path.
fn measure_traffic(report: &mut Report, scale: Scale, cleanup: &Cleanup) -> Result<()> {
    let sizes = scale.sizes;
    // The agent ends before its pods.
    let (pods, node) = measure("start a node for connections", || {
        let node = PolicyNode::start(None, cleanup)?;
        let mut local = vec![client(sizes), server(RESTRICTED), server(OPEN), server(ATTACKER)];
        local.extend(sizes.servers());
        local.extend((0..OTHER_PODS).map(|number| server(&format!("other-{number}"))));
        let mut policies = sizes.policies();
        policies.push(policy_of_restricted());
        let (pods, _) = start(&node, local, sizes.remote_pods(), policies)?;
        Ok((pods, node))
    })?;
    let (first, others) = pods.split_at(pods.len() - OTHER_PODS);
    let [client, restricted, open, attacker, servers @ ..] = first else {
        bail!("the node has only {} pods", pods.len())
    };
    let ends = traffic::Pods { client, restricted, open };
    measure("requests, all packets on the bridge", || {
        traffic::requests(report, &ends, "bridge", scale.slices)
    })?;
    measure("requests during a flood", || traffic::flood(report, &ends, attacker, scale.slices))?;
    connect::measure(report, &node, &connect::Pods { client, servers, open, others }, sizes, scale.handshakes)
}

/// Changes, a pod's start and requests, on a full node as it is deployed.
fn measure_full_node(
    report: &mut Report,
    scale: Scale,
    program: &'static [u8],
    cleanup: &Cleanup,
) -> Result<()> {
    let local = scale.cluster.local_pods();
    let (restricted, policies) = (local.len(), scale.cluster.policies());
    let what = format!("start a node with {restricted} pods and {} policies", policies.len());
    // The agent ends before its pods.
    let (pods, listed, node) = measure(&what, || {
        let node = PolicyNode::start(Some(program), cleanup)?;
        let free = ClusterPod::new(CLIENTS, CLIENT, &[(APP, CLIENT)]);
        let own = [client(scale.sizes), server(RESTRICTED), server(OPEN), free, start::known_pod()];
        let local = own.into_iter().chain(local).collect();
        let own_policies = start::policies().into_iter().chain([policy_of_restricted()]);
        let policies = policies.into_iter().chain(own_policies).collect();
        let (pods, listed) = start(&node, local, scale.cluster.remote_pods(), policies)?;
        Ok((pods, listed, node))
    })?;
    report.add_value("all policies and pods listed", listed.as_secs_f64() * 1e3, "ms", None);
    let [client, restricted, open, free, .., last] = &pods[..] else {
        bail!("the node has only {} pods", pods.len())
    };
    let ends = traffic::Pods { client, restricted, open };
    measure("requests with the fast path", || traffic::requests(report, &ends, "auto", scale.slices))?;
    measure("starts of pods", || start::measure(report, &node, scale.rounds))?;
    let tenants = pods.iter().filter(|pod| pod.object.key.namespace.starts_with(objects::TENANT_PREFIX));
    let ends = changes::Ends { client: free, server: last, pods: tenants.count() };
    changes::measure(report, &node, &ends, scale.rounds)
}

/// Starts the pods of a node, then lists everything for it as after a restart of the agent. Also returns how long it took until all of it
/// was in the kernel.
fn start(
    node: &PolicyNode,
    local: Vec<ClusterPod>,
    remote: Vec<ClusterPod>,
    policies: Vec<Policy>,
) -> Result<(Vec<RunningPod>, Duration)> {
    let pods = node.start_pods(local)?;
    let known: Vec<ClusterPod> = pods.iter().map(|pod| pod.object.clone()).chain(remote).collect();
    let tenants = known.iter().map(|pod| pod.key.namespace.clone());
    let namespaces: BTreeSet<String> = tenants.collect();
    let namespaces: Vec<String> = namespaces.into_iter().collect();
    let listed = objects::listed(&namespaces, policies, &known);
    let start = Instant::now();
    node.change(listed).context("cannot list the policies")?;
    let took = start.elapsed();
    node.settle()?;
    Ok((pods, took))
}

fn client(sizes: Sizes) -> ClusterPod {
    let labels = sizes.labels(None).into_iter();
    labels.fold(server(CLIENT), |pod, (label, value)| pod.labelled(&label, &value))
}

/// A pod whose app is its name.
fn server(name: &str) -> ClusterPod {
    ClusterPod::new(NAMESPACE, name, &[(APP, name)])
}

/// The policy of the restricted server.
fn policy_of_restricted() -> Policy {
    let [first, last] = ALLOWED_PORTS;
    let peers = json!([{"podSelector": objects::matching(CLIENT)}]);
    let rules = json!({"ingress": [{"from": peers, "ports": [{"port": first, "endPort": last}]}]});
    objects::policy(NAMESPACE, RESTRICTED, RESTRICTED, &rules)
}
