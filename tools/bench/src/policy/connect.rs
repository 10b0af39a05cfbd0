//! TCP handshakes between two pods, with few and many peers and policies.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_kernel::Netns;
use knit_policy::{Policy, PolicyKind};
use serde_json::json;

use super::NAMESPACE;
use super::node::{PolicyNode, RunningPod};
use super::objects::{self, APP, ClusterPod};
use crate::services::node::reset;
use crate::tcp::pin_to_cpu;
use knit_report::{Goal, Report, Samples};

/// The goal: the median compared with one peer, or one policy.
const MAX_GROWTH: Goal = Goal::AtMost(1.1);
/// How often the measurements are repeated, one after the other.
const BATCHES: usize = 5;
/// The port of every server.
const PORT: u16 = 80;
/// The value of labels that select a peer.
const YES: &str = "yes";
/// Remote pods are peers of policies that do not accept the client, in so many groups.
const STRANGERS: usize = 1_000;
const NO_POLICY: &str = "connect, no policy";

/// How many peers and policies are compared, ascending.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Peers of one policy.
    pub peers: &'static [usize],
    /// Policies of the server, and of other pods.
    pub policies: &'static [usize],
}

impl Sizes {
    /// The labels that make the client, or the remote pod of a number, a peer of the policies.
    pub fn labels(self, number: Option<usize>) -> Vec<(String, String)> {
        // The client is one of the peers.
        let sizes = self.peers.iter().filter(|size| number.is_none_or(|number| number + 1 < **size));
        let mut labels: Vec<_> = sizes.map(|size| (peers_label(*size), YES.to_owned())).collect();
        labels.extend(number.map(|number| (APP.to_owned(), stranger(number))));
        labels
    }

    /// Pods of other nodes, all in the namespace of the servers.
    pub fn remote_pods(self) -> Vec<ClusterPod> {
        let count = self.peers.iter().max().copied().unwrap_or_default();
        let pod = |number: u32| {
            let labels = self.labels(Some(number as usize));
            let labels: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            ClusterPod::new(NAMESPACE, &format!("remote-{number}"), &labels).remote(number)
        };
        (0..).map(pod).take(count).collect()
    }

    /// The servers: one for each number of peers and of policies.
    pub fn servers(self) -> Vec<ClusterPod> {
        let names = self.peers.iter().map(|size| peers_label(*size));
        let names = names.chain(self.policies.iter().map(|size| own_policies(*size)));
        names.map(|name| ClusterPod::new(NAMESPACE, &name, &[(APP, name.as_str())])).collect()
    }

    /// Their policies.
    pub fn policies(self) -> Vec<Policy> {
        let of_peers = self.peers.iter().map(|size| {
            let name = peers_label(*size);
            let peers = json!([{"podSelector": {"matchLabels": {&name: YES}}}]);
            policy(&name, &name, &peers, PORT)
        });
        let own = self.policies.iter().flat_map(|size| {
            let name = own_policies(*size);
            // The last one by name accepts the client.
            let client = json!([{"podSelector": objects::matching(super::CLIENT)}]);
            let last = policy(&format!("{name}-z"), &name, &client, PORT);
            let others = (1..*size).map(|number| {
                policy(&format!("{name}-{number:05}"), &name, &strangers(number), port_of(number))
            });
            others.chain([last]).collect::<Vec<_>>()
        });
        of_peers.chain(own).collect()
    }

    /// So many policies of other pods, evenly distributed.
    fn policies_of(self, others: &[RunningPod], count: usize) -> Vec<Policy> {
        let one = |number: usize| {
            let app = &others[number % others.len()].object.key.name;
            policy(&format!("{app}-{number:05}"), app, &strangers(number), port_of(number))
        };
        (0..count).map(one).collect()
    }
}

/// The pods of a measurement.
pub struct Pods<'a> {
    /// Where connections come from.
    pub client: &'a RunningPod,
    /// The servers of [`Sizes::servers`].
    pub servers: &'a [RunningPod],
    /// A server without policies.
    pub open: &'a RunningPod,
    /// Pods that nothing connects to.
    pub others: &'a [RunningPod],
}

/// Where connections lead.
struct Target {
    name: String,
    address: SocketAddr,
    listener: TcpListener,
}

impl Target {
    fn new(name: String, pod: &RunningPod) -> Result<Self> {
        let address = SocketAddr::from((pod.address()?, PORT));
        let listener = pod.netns().enter(|| TcpListener::bind(address))?;
        let listener = listener.with_context(|| format!("cannot listen at {address}"))?;
        Ok(Self { name, address, listener })
    }
}

/// Measures with all numbers of peers and policies in turn.
pub fn measure(
    report: &mut Report,
    node: &PolicyNode,
    pods: &Pods<'_>,
    sizes: Sizes,
    rounds: usize,
) -> Result<()> {
    let peers = sizes.peers.iter().map(|size| format!("connect, {} in its policy", plural(*size, "peer")));
    let own = sizes.policies.iter().map(|size| format!("connect, {} of the pod", policies(*size)));
    let peers: Vec<String> = peers.collect();
    let own: Vec<String> = own.collect();
    let others: Vec<String> =
        sizes.policies.iter().map(|size| format!("connect, {} of other pods", policies(*size))).collect();
    let names = peers.iter().chain(&own).cloned();
    let mut targets: Vec<Target> =
        names.zip(pods.servers).map(|(name, pod)| Target::new(name, pod)).collect::<Result<_>>()?;
    targets.push(Target::new(NO_POLICY.to_owned(), pods.open)?);
    crate::attach::measure("handshakes with peers and policies of the pod", || {
        let mut samples = vec![Samples::new(); targets.len()];
        // The first batch is the warm-up.
        for batch in 0..=BATCHES {
            let times = connect_batch(pods.client.netns(), &targets, rounds / BATCHES)?;
            for (samples, times) in samples.iter_mut().zip(times).filter(|_| batch > 0) {
                times.into_iter().for_each(|time| samples.add_warm(time));
            }
        }
        targets.iter().zip(&samples).try_for_each(|(target, samples)| report.add_times(&target.name, samples))
    })?;
    crate::attach::measure("handshakes with policies of other pods", || {
        // The server with one peer.
        let target = &targets[..1];
        let mut samples = vec![Samples::new(); others.len()];
        for batch in 0..=BATCHES {
            for (at, size) in sizes.policies.iter().enumerate() {
                let mut all = sizes.policies();
                all.extend(sizes.policies_of(pods.others, *size));
                let listed = PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, all);
                node.change(vec![Event::Policies(listed)])?;
                let times = connect_batch(pods.client.netns(), target, rounds / BATCHES)?;
                let times = times.into_iter().flatten().filter(|_| batch > 0);
                times.for_each(|time| samples[at].add_warm(time));
            }
        }
        others.iter().zip(&samples).try_for_each(|(name, samples)| report.add_times(name, samples))
    })?;
    for names in [&peers, &own, &others] {
        let Some((first, more)) = names.split_first() else { continue };
        more.iter().try_for_each(|name| report.compare(name, first, Some(MAX_GROWTH)))?;
    }
    Ok(())
}

/// Connects so often to all targets in turn. Returns the times of each.
fn connect_batch(client: &Netns, targets: &[Target], rounds: usize) -> Result<Vec<Vec<Duration>>> {
    client.enter(|| {
        pin_to_cpu(0)?;
        let mut times = vec![Vec::new(); targets.len()];
        for round in 0..rounds {
            for turn in 0..targets.len() {
                // Each target is the first one equally often.
                let at = (round + turn) % targets.len();
                let Target { address, listener, .. } = &targets[at];
                let start = Instant::now();
                let connected = TcpStream::connect(address);
                let time = start.elapsed();
                let connected = connected.with_context(|| format!("cannot connect to {address}"))?;
                listener.accept().context("cannot accept a connection")?;
                reset(&connected)?;
                times[at].push(time);
            }
        }
        Ok(times)
    })?
}

fn policy(name: &str, app: &str, peers: &serde_json::Value, port: u16) -> Policy {
    objects::policy(NAMESPACE, name, app, &json!({"ingress": [{"from": peers, "ports": [{"port": port}]}]}))
}

fn peers_label(size: usize) -> String {
    format!("peers-{size}")
}

fn own_policies(size: usize) -> String {
    format!("policies-{size}")
}

/// The app of remote pods that are no client.
fn stranger(number: usize) -> String {
    format!("stranger-{}", number % STRANGERS)
}

fn strangers(number: usize) -> serde_json::Value {
    json!([{"podSelector": objects::matching(&stranger(number))}])
}

/// The port that a policy about strangers is about.
fn port_of(number: usize) -> u16 {
    8_000 + u16::try_from(number).expect("there are few policies")
}

fn policies(size: usize) -> String {
    if size == 1 { "1 policy".to_owned() } else { format!("{} policies", crate::services::thousands(size)) }
}

fn plural(size: usize, what: &str) -> String {
    if size == 1 { format!("1 {what}") } else { format!("{} {what}s", crate::services::thousands(size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { peers: &[1, 100, 10_000], policies: &[1, 100, 1_000] };

    #[test]
    fn each_policy_has_the_stated_number_of_peers() {
        let client: Vec<_> = SIZES.labels(None).into_iter().map(|(key, _)| key).collect();
        let remote = SIZES.remote_pods();
        for size in SIZES.peers {
            let label = peers_label(*size);
            let count = remote.iter().filter(|pod| pod.pod.labels.contains_key(&label)).count();
            assert_eq!(count + usize::from(client.contains(&label)), *size);
        }
    }

    #[test]
    fn each_server_has_the_stated_number_of_policies() {
        let policies = SIZES.policies();
        let servers = SIZES.servers();
        assert_eq!((policies.len(), servers.len()), (3 + 1_101, 6));
        for size in SIZES.policies {
            let name = format!("{}-", own_policies(*size));
            assert_eq!(policies.iter().filter(|policy| policy.id.name.starts_with(&name)).count(), *size);
        }
    }
}
