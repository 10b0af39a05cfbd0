//! From a watch event to its effect on all pods of a full node.
//!
//! Each kind of change opens and closes a port of a pod in turn, so that packets show when it is in force.

use std::time::Instant;

use anyhow::{Context, Result};
use knit_engine::Event;
use knit_policy::Policy;
use serde_json::json;

use super::CLIENT;
use super::node::{PolicyNode, RunningPod, change};
use super::objects::{self, APP, ClusterPod};
use super::probe::Probe;
use knit_report::{MIN_ROUNDS, Report, Samples, WARM_UP};

/// The goal: the 99th percentile in milliseconds.
const MAX_LATENCY_MS: f64 = 50.0;
/// Rounds of a change that is too slow for the number that a p99 needs.
const SLOW_ROUNDS: usize = 20;
/// An app without other pods on this node: a pod that becomes part of it needs a chain of its own.
const OTHER_APP: &str = "other";
/// The port that a change opens, and another one.
const PORT: u16 = 7_000;
const OTHER_PORT: u16 = 7_001;
/// The name of the policies that change.
const POLICY: &str = "z-changed";

/// A kind of change.
struct Change {
    name: String,
    /// Submitted first and last.
    before: Vec<Event>,
    after: Vec<Event>,
    /// What the watches submit to open the port, or to close it.
    events: Box<dyn Fn(bool) -> Vec<Event> + Send + Sync>,
    /// Whether every pod of the node gets another chain.
    is_slow: bool,
}

impl Change {
    fn new(
        name: String,
        before: Vec<Event>,
        events: impl Fn(bool) -> Vec<Event> + Send + Sync + 'static,
        after: Vec<Event>,
    ) -> Self {
        Self { name, before, after, events: Box::new(events), is_slow: false }
    }
}

/// The pods that packets pass between.
pub struct Ends<'a> {
    /// It has no policies.
    pub client: &'a RunningPod,
    /// One of the pods with policies.
    pub server: &'a RunningPod,
    /// The number of pods with policies.
    pub pods: usize,
}

/// Measures all kinds of changes.
pub fn measure(report: &mut Report, node: &PolicyNode, ends: &Ends<'_>, rounds: usize) -> Result<()> {
    let addresses = [ends.client.address()?, ends.server.address()?];
    let probe = Probe::new(ends.client.netns(), addresses, ends.server.netns(), PORT)?;
    for kind in kinds(ends)? {
        let rounds = if kind.is_slow { rounds.min(SLOW_ROUNDS) } else { rounds };
        let step = format!("{} {rounds} times", kind.name);
        crate::attach::measure(&step, || measure_kind(report, node, &probe, kind, rounds))?;
    }
    Ok(())
}

fn measure_kind(
    report: &mut Report,
    node: &PolicyNode,
    probe: &Probe,
    kind: Change,
    rounds: usize,
) -> Result<()> {
    let Change { name, before, after, events, is_slow } = kind;
    node.change(before)?;
    node.change(events(false))?;
    probe.wait(false)?;
    let [mut applied, mut shown] = [const { Samples::new() }; 2];
    // Two rounds of a slow change are enough to warm up.
    let warm_up = if is_slow { 2 } else { WARM_UP };
    for round in 0..warm_up + rounds {
        let opens = round.is_multiple_of(2);
        let (handle, events) = (node.handle(), &events);
        std::thread::scope(|scope| -> Result<()> {
            let changed = scope.spawn(move || -> Result<_> {
                let start = Instant::now();
                change(&handle, events(opens))?;
                Ok((start, Instant::now()))
            });
            let seen = probe.wait(opens)?;
            let (start, end) = changed.join().expect("the change does not panic")?;
            if round >= warm_up {
                applied.add_warm(end - start);
                shown.add_warm(seen - start);
            }
            Ok(())
        })?;
    }
    node.change(after)?;
    node.settle()?;
    for (what, samples) in [("in the kernel, verified", &applied), ("first packet", &shown)] {
        let name = format!("{name}: {what}");
        report.add_times(&name, samples)?;
        if rounds >= MIN_ROUNDS {
            report.limit_p99(&name, MAX_LATENCY_MS * 1e3)?;
        }
        if is_slow {
            let slowest = samples.quantile(1.0).context("no samples")?.as_secs_f64() * 1e3;
            report.add_value(&format!("{name}, slowest of {rounds}"), slowest, "ms", Some(MAX_LATENCY_MS));
        }
    }
    Ok(())
}

fn kinds(ends: &Ends<'_>) -> Result<Vec<Change>> {
    let (client, server) = (&ends.client.object, &ends.server.object);
    let app = server.pod.labels.get(APP).context("the server has no app")?.clone();
    let all = format!("policy of all {} pods", ends.pods);
    Ok(vec![
        edited("policy of an app", of_app(server, &app, CLIENT)),
        created("policy of an app", of_app(server, &app, CLIENT)),
        edited(&all, of_all()),
        Change { is_slow: true, ..created(&all, of_all()) },
        labelled("label of a peer", of_app(server, &app, OTHER_APP)(PORT), client, OTHER_APP),
        labelled("label of a pod", of_app(server, OTHER_APP, CLIENT)(PORT), server, OTHER_APP),
        comes_and_goes(of_app(server, &app, CLIENT)(PORT), client),
    ])
}

/// A policy about the pods of an app, which opens a port to pods of the client's namespace with this label.
fn of_app(server: &ClusterPod, app: &str, peers: &str) -> impl Fn(u16) -> Policy + Send + Sync + use<> {
    let (namespace, app, peers) = (server.key.namespace.clone(), app.to_owned(), peers.to_owned());
    move |port| {
        let peers = json!([{"namespaceSelector": {}, "podSelector": objects::matching(&peers)}]);
        let rules = json!({"ingress": [{"from": peers, "ports": [{"protocol": "UDP", "port": port}]}]});
        objects::policy(&namespace, POLICY, &app, &rules)
    }
}

/// A policy about all pods with policies, which opens a port to the client.
fn of_all() -> impl Fn(u16) -> Policy + Send + Sync + 'static {
    |port| objects::policy_of_all(POLICY, CLIENT, port)
}

fn edited(name: &str, policy: impl Fn(u16) -> Policy + Send + Sync + 'static) -> Change {
    let after = vec![objects::deleted(policy(PORT).id)];
    let events = move |opens: bool| vec![objects::applied(policy(if opens { PORT } else { OTHER_PORT }))];
    Change::new(format!("{name} edited"), Vec::new(), events, after)
}

fn created(name: &str, policy: impl Fn(u16) -> Policy + Send + Sync + 'static) -> Change {
    let events = move |opens: bool| {
        let policy = policy(PORT);
        vec![if opens { objects::applied(policy) } else { objects::deleted(policy.id) }]
    };
    Change::new(format!("{name} created or deleted"), Vec::new(), events, Vec::new())
}

/// The label of a pod changes to the one that the policy is about, and back.
fn labelled(name: &str, policy: Policy, pod: &ClusterPod, app: &str) -> Change {
    let after = vec![objects::deleted(policy.id.clone())];
    let states = [pod.clone(), pod.clone().labelled(APP, app)];
    let events = move |opens: bool| vec![states[usize::from(opens)].applied()];
    let before = vec![objects::applied(policy)];
    Change::new(format!("{name} changed"), before, events, after)
}

fn comes_and_goes(policy: Policy, peer: &ClusterPod) -> Change {
    let after = vec![objects::deleted(policy.id.clone()), peer.applied()];
    let peer = peer.clone();
    let events = move |opens: bool| vec![if opens { peer.applied() } else { peer.deleted() }];
    Change::new("peer created or deleted".to_owned(), vec![objects::applied(policy)], events, after)
}
