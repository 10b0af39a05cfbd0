//! From a change of an EndpointSlice to the first connection to the new backend.
//!
//! The Service has one endpoint, which changes between two pods of the node. A client connects again and again until the new one
//! answers; meanwhile the old one does. One change follows the other as in a rolling update.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use knit_kube::kube::runtime::watcher;
use serde_json::json;

use super::node::ServiceNode;
use super::objects::{NAMESPACE, Service};
use super::proxy::Kind;
use crate::scale::api;
use knit_report::{Goal, Report, Samples};
use knit_soak::harness::KnitCluster;

/// The goals: the p99 of Knit in microseconds, and its median compared with kube-proxy's.
const MAX_LATENCY_US: f64 = 20_000.0;
const GOAL: Goal = Goal::AtMost(0.2);
/// Rounds that do not count. In the first one the program may still be starting.
const WARM_UP: usize = 5;
/// How long a change may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);
/// The pause between connections: the resolution. It grows with the time that a change takes, so that a slow program is not
/// slowed down further by the client.
const MIN_PAUSE: Duration = Duration::from_micros(500);
const PAUSES_PER_CHANGE: u32 = 50;
/// The longest pause before the next change.
const MAX_IDLE_MS: usize = 100;
const MERGE: &str = "application/merge-patch+json";

/// The program that is measured, and how often.
pub struct Measurement<'a> {
    /// The cluster.
    pub knit: &'a KnitCluster,
    /// The program that runs.
    pub kind: Kind,
    /// Its node.
    pub node: &'a ServiceNode,
    /// The Service whose endpoint changes.
    pub service: &'a Service,
    /// The number of changes.
    pub rounds: usize,
}

impl Measurement<'_> {
    /// Measures and adds the rows. Their names end with the number of Services.
    pub fn run(&self, report: &mut Report, suffix: &str) -> Result<()> {
        let (sender, events) = channel();
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("discovery.k8s.io", "v1", "EndpointSlice"),
            "endpointslices",
        );
        let slices: Api<DynamicObject> =
            Api::namespaced_with(self.knit.client().clone(), NAMESPACE, &resource);
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.service.name));
        let watch = self.knit.runtime().spawn(async move {
            knit_kube::watch("endpointslices", slices, only_this, |update| {
                // The receiver may have ended.
                let _ = sender.send((Instant::now(), matches!(update, WatchUpdate::Applied(_))));
            })
            .await;
        });
        let measured = self.node.client.enter(|| self.change_repeatedly(events));
        watch.abort();
        let (notified, answered) = measured??;
        report.add_times(&self.kind.row(&watch_row(suffix)), &notified)?;
        report.add_times(&self.kind.row(&row(suffix)), &answered)
    }

    /// Returns how long the benchmark's own watch and the new backend took.
    fn change_repeatedly(&self, events: Receiver<(Instant, bool)>) -> Result<(Samples, Samples)> {
        let (_, is_change) = events.recv_timeout(TIMEOUT).context("the EndpointSlice cannot be watched")?;
        ensure!(!is_change, "the watch began with a change instead of a list");
        let [mut notified, mut answered] = [const { Samples::new() }; 2];
        let current = self.node.connect(self.service.destination(), CONNECT_TIMEOUT)?;
        let mut backend = current.context("the Service does not answer")?.backend;
        for round in 0..WARM_UP + self.rounds {
            backend = (backend + 1) % self.node.backends.len();
            let change = json!({"endpoints": [self.node.backends[backend].endpoint().manifest()]});
            let (client, path) = (self.knit.client().clone(), self.service.slice_path());
            let start = Instant::now();
            let request =
                self.knit.runtime().spawn(async move { api::patch(&client, &path, MERGE, &change).await });
            let answer = self.wait_for(backend, start)?;
            self.knit.block_on(request).context("the request panicked")??;
            let (event, _) = events.recv_timeout(TIMEOUT).context("no watch event arrives")?;
            if round >= WARM_UP {
                answered.add_warm(answer - start);
                notified.add_warm(event - start);
            }
            // Not always in the same phase of the program's timers.
            std::thread::sleep(Duration::from_millis((round * 37 % MAX_IDLE_MS) as u64));
        }
        Ok((notified, answered))
    }

    /// Connects until this backend answers. Returns when it did.
    fn wait_for(&self, backend: usize, start: Instant) -> Result<Instant> {
        loop {
            match self.node.connect(self.service.destination(), CONNECT_TIMEOUT)? {
                Some(answer) if answer.backend == backend => return Ok(answer.at),
                _ if start.elapsed() > TIMEOUT => {
                    bail!("{}: a change is not effective after {} s", self.kind.label(), TIMEOUT.as_secs())
                }
                _ => std::thread::sleep(MIN_PAUSE.max(start.elapsed() / PAUSES_PER_CHANGE)),
            }
        }
    }
}

/// Compares Knit with both configurations of kube-proxy, which have been measured.
pub fn compare(report: &mut Report, suffix: &str, has_p99: bool) -> Result<()> {
    let knit = Kind::Knit.row(&row(suffix));
    if has_p99 {
        report.limit_p99(&knit, MAX_LATENCY_US)?;
    }
    for peer in [Kind::KubeProxy, Kind::KubeProxyAtOnce] {
        report.compare(&knit, &peer.row(&row(suffix)), Some(GOAL))?;
    }
    report.compare(&knit, &Kind::Knit.row(&watch_row(suffix)), None)
}

fn row(suffix: &str) -> String {
    format!("EndpointSlice change to first connection, {suffix}")
}

fn watch_row(suffix: &str) -> String {
    format!("EndpointSlice change to watch event, {suffix}")
}
