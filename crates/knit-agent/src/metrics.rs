//! What the agent counts, in the text that Prometheus and OpenMetrics readers take.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use knit_engine::{Answer, Unit};
use knit_kernel::redirect::Way;
use knit_model::problem::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit as Measure};

use crate::capacity::Capacity;
use crate::daemon::Errand;
use crate::node::Node;

/// Upper bounds of the classes of times, in seconds: an attach takes half a millisecond, and anything over a second is
/// too long.
const BOUNDS: [f64; 13] =
    [0.0001, 0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 5.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Call {
    call: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Phase {
    phase: &'static str,
    unit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Extension {
    extension: String,
    phase: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Start {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Why {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Addresses {
    namespace: String,
    network: String,
    family: &'static str,
    state: &'static str,
}

type Times<L> = Family<L, Histogram, fn() -> Histogram>;

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    calls: Times<Call>,
    phases: Times<Phase>,
    extensions: Times<Extension>,
    starts: Times<Start>,
    owed: Gauge,
    errors: Family<Why, Counter>,
    repairs: Counter,
    waiting: Gauge,
    refused_peers: Counter,
    sandboxes: Gauge,
    attachments: Gauge,
    leases: Gauge,
    addresses: Family<Addresses, Gauge<f64, AtomicU64>>,
    journal_records: Gauge,
    journal_bytes: Gauge,
    problems: Gauge,
    redirect_ports: Gauge,
    redirect_packets: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BOUNDS);
        let mut new = Self {
            registry: Registry::with_prefix("knit"),
            calls: Family::new_with_constructor(histogram),
            phases: Family::new_with_constructor(histogram),
            extensions: Family::new_with_constructor(histogram),
            starts: Family::new_with_constructor(histogram),
            owed: Gauge::default(),
            errors: Family::default(),
            repairs: Counter::default(),
            waiting: Gauge::default(),
            refused_peers: Counter::default(),
            sandboxes: Gauge::default(),
            attachments: Gauge::default(),
            leases: Gauge::default(),
            addresses: Family::default(),
            journal_records: Gauge::default(),
            journal_bytes: Gauge::default(),
            problems: Gauge::default(),
            redirect_ports: Gauge::default(),
            redirect_packets: Counter::default(),
        };
        new.register();
        new
    }
}

impl Metrics {
    fn register(&mut self) {
        let Self { registry, .. } = self;
        let seconds = || Measure::Seconds;
        let name = "call_duration";
        registry.register_with_unit(name, "From a call to its answer", seconds(), self.calls.clone());
        let (name, help) =
            ("phase_duration", "Looking at a unit in the kernel, and changing it with verification");
        registry.register_with_unit(name, help, seconds(), self.phases.clone());
        let name = "extension_call_duration";
        registry.register_with_unit(name, "Calls of extensions", seconds(), self.extensions.clone());
        let (name, help) =
            ("start_wait", "How long containers of pods waited for their networks, by what came of it");
        registry.register_with_unit(name, help, seconds(), self.starts.clone());
        let help = "Calls after a detach that extensions have still to acknowledge";
        registry.register("extension_owed", help, self.owed.clone());
        registry.register("errors", "Failed calls and changes by their stable reason", self.errors.clone());
        registry.register(
            "repairs",
            "Units that someone changed by hand and that were repaired",
            self.repairs.clone(),
        );
        registry.register("calls_waiting", "Calls that wait for their answer", self.waiting.clone());
        registry.register(
            "refused_peers",
            "Connections without the right credentials",
            self.refused_peers.clone(),
        );
        registry.register("sandboxes", "Sandboxes that the agent knows", self.sandboxes.clone());
        registry.register("attachments", "Interfaces in sandboxes", self.attachments.clone());
        registry.register("leases", "Addresses that attachments hold", self.leases.clone());
        registry.register("addresses", "Addresses of each network by their state", self.addresses.clone());
        registry.register(
            "journal_records",
            "Records in the journal's newest part",
            self.journal_records.clone(),
        );
        let size = self.journal_bytes.clone();
        registry.register_with_unit("journal", "Size of the journal's newest part", Measure::Bytes, size);
        registry.register(
            "problems",
            "Things that stand in the way of what was asked for",
            self.problems.clone(),
        );
        let help =
            "Ports of pods that the eBPF programs hand packets to; 0 where all of them take the bridge";
        registry.register("redirect_ports", help, self.redirect_ports.clone());
        let help = "Packets between pods that went past the bridge";
        registry.register("redirect_packets", help, self.redirect_packets.clone());
    }

    /// A call was answered.
    pub(crate) fn answered(&self, call: &'static str, answer: &Answer, took: Duration) {
        let result = if let Answer::Failed(problem) = answer {
            self.failed(problem.reason);
            "failed"
        } else {
            "ok"
        };
        self.calls.get_or_create(&Call { call, result }).observe(took.as_secs_f64());
    }

    /// A job was done.
    pub(crate) fn job(&self, errand: &Errand, took: Duration) {
        let (phase, unit) = match errand {
            Errand::Observe(Unit::Sandbox(_)) => ("look", "sandbox"),
            Errand::Apply(Unit::Sandbox(_)) => ("change", "sandbox"),
            Errand::Observe(Unit::Bridge(_)) => ("look", "bridge"),
            Errand::Apply(Unit::Bridge(_)) => ("change", "bridge"),
            Errand::Observe(Unit::NodeRoutes) => ("look", "ways"),
            Errand::Apply(Unit::NodeRoutes) => ("change", "ways"),
            Errand::Call => ("namespace", "sandbox"),
            Errand::Forward => ("ports", "node"),
            Errand::Chain => ("plugins", "sandbox"),
            Errand::Reap => ("reap", "node"),
            Errand::Census => ("census", "node"),
        };
        self.phases.get_or_create(&Phase { phase, unit }).observe(took.as_secs_f64());
    }

    /// An extension was called.
    pub(crate) fn extension(&self, name: &str, phase: &'static str, ok: bool, took: Duration) {
        let result = if ok { "ok" } else { "failed" };
        let labels = Extension { extension: name.to_owned(), phase, result };
        self.extensions.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A pod's containers waited for its networks, which stand by now, or cannot, or are late.
    pub(crate) fn started(&self, result: &'static str, took: Duration) {
        self.starts.get_or_create(&Start { result }).observe(took.as_secs_f64());
    }

    /// Something failed.
    pub(crate) fn failed(&self, reason: Reason) {
        self.errors.get_or_create(&Why { reason: format!("{reason:?}") }).inc();
    }

    pub(crate) fn repaired(&self) {
        self.repairs.inc();
    }

    pub(crate) fn calls_waiting(&self, calls: usize) {
        self.waiting.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    pub(crate) fn refused_peer(&self) {
        self.refused_peers.inc();
    }

    /// Takes over what the node knows right now.
    pub(crate) fn look(&self, node: &Node) {
        let (state, count) = (node.state(), |number: usize| i64::try_from(number).unwrap_or(i64::MAX));
        self.sandboxes.set(count(state.sandboxes.len()));
        self.attachments.set(count(state.made.values().map(|made| made.interfaces.len()).sum()));
        self.leases.set(count(state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count()));
        self.owed.set(count(state.extensions.owed().count()));
        self.problems.set(count(state.problems.values().map(Vec::len).sum()));
        let (ports, packets) = match node.way() {
            Way::Direct { ports, packets } => (ports, packets),
            Way::Bridge | Way::Lacking { .. } => (0, 0),
        };
        self.redirect_ports.set(count(ports));
        self.redirect_packets.inner().store(packets, Ordering::Relaxed);
        let size = node.journal_size();
        self.journal_records.set(i64::try_from(size.records).unwrap_or(i64::MAX));
        self.journal_bytes.set(i64::try_from(size.bytes).unwrap_or(i64::MAX));
        self.addresses.clear();
        for capacity in Capacity::of_all(state) {
            let family = if capacity.ipv6 { "ipv6" } else { "ipv4" };
            for (word, value) in [("total", capacity.total), ("used", capacity.used), ("free", capacity.free)]
            {
                let labels = Addresses {
                    namespace: capacity.namespace.clone(),
                    network: capacity.network.clone(),
                    family,
                    state: word,
                };
                // A gauge is a number with a fraction: 2^64 addresses need not be exact.
                self.addresses.get_or_create(&labels).set(capacity_number(value));
            }
        }
    }

    /// All of it as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = writeln!(text, "# EOF");
        }
        text
    }
}

#[allow(clippy::cast_precision_loss)]
fn capacity_number(value: u128) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALERTS: &str = include_str!("../../../deploy/alerts/knit.rules.yaml");

    #[test]
    fn the_example_alerts_ask_for_what_is_exported() {
        let metrics = Metrics::default();
        metrics.calls.get_or_create(&Call { call: "attach", result: "ok" }).observe(0.1);
        metrics.failed(Reason::Conflict);
        metrics.started("late", Duration::from_millis(900));
        let (namespace, network) = ("shop".to_owned(), "blue".to_owned());
        let _ =
            metrics.addresses.get_or_create(&Addresses { namespace, network, family: "ipv4", state: "free" });
        let exported = metrics.text();
        let begins =
            |line: &str, name: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let words = ALERTS.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("knit_")).collect();
        assert!(names.len() > 8, "{names:?}");
        for name in names {
            assert!(exported.lines().any(|line| begins(line, name)), "{name} is not in\n{exported}");
        }
    }

    #[test]
    fn the_example_alerts_are_rules_of_prometheus() {
        let file: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
        let rules = file["groups"][0]["rules"].as_array().unwrap();
        for rule in rules {
            for field in ["alert", "expr"] {
                assert!(rule[field].is_string(), "{rule}");
            }
            assert!(
                rule["annotations"]["summary"].is_string() && rule["labels"]["severity"].is_string(),
                "{rule}"
            );
        }
    }
}
