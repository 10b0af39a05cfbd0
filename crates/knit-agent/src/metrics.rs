//! The agent's metrics, in the OpenMetrics text format.

mod policy_drops;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use knit_engine::{CallResult, Effect, Unit};
use knit_kernel::redirect::DatapathMode;
use knit_model::problem::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit as Measure};

use self::policy_drops::DropMetrics;
use crate::capacity::NetworkAddresses;
use crate::executor::Work;
use crate::node::Node;
use crate::policy_drops::PolicyDrops;

/// Buckets of durations in seconds: an attach takes half a millisecond, and anything over a second is too slow.
const BUCKETS: [f64; 13] =
    [0.0001, 0.0002, 0.0004, 0.0006, 0.0008, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 5.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
    unit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExtensionLabels {
    extension: String,
    phase: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StartLabels {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AddressLabels {
    namespace: String,
    network: String,
    family: &'static str,
    state: &'static str,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics.
pub struct Metrics {
    registry: Registry,
    calls: Durations<CallLabels>,
    phases: Durations<PhaseLabels>,
    extensions: Durations<ExtensionLabels>,
    starts: Durations<StartLabels>,
    pending_notifications: Gauge,
    errors: Family<ErrorLabels, Counter>,
    repairs: Counter,
    waiting: Gauge,
    rejected_peers: Counter,
    sandboxes: Gauge,
    attachments: Gauge,
    leases: Gauge,
    addresses: Family<AddressLabels, Gauge<f64, AtomicU64>>,
    journal_records: Gauge,
    journal_bytes: Gauge,
    problems: Gauge,
    redirect_ports: Gauge,
    redirect_packets: Counter,
    policy_drops: DropMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut new = Self {
            registry: Registry::with_prefix("knit"),
            calls: Family::new_with_constructor(histogram),
            phases: Family::new_with_constructor(histogram),
            extensions: Family::new_with_constructor(histogram),
            starts: Family::new_with_constructor(histogram),
            pending_notifications: Gauge::default(),
            errors: Family::default(),
            repairs: Counter::default(),
            waiting: Gauge::default(),
            rejected_peers: Counter::default(),
            sandboxes: Gauge::default(),
            attachments: Gauge::default(),
            leases: Gauge::default(),
            addresses: Family::default(),
            journal_records: Gauge::default(),
            journal_bytes: Gauge::default(),
            problems: Gauge::default(),
            redirect_ports: Gauge::default(),
            redirect_packets: Counter::default(),
            policy_drops: DropMetrics::default(),
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
        registry.register_with_unit(name, "Duration of calls", seconds(), self.calls.clone());
        let (name, help) = ("phase_duration", "Duration of work in the kernel by phase and unit");
        registry.register_with_unit(name, help, seconds(), self.phases.clone());
        let name = "extension_call_duration";
        registry.register_with_unit(
            name,
            "Duration of calls to extensions",
            seconds(),
            self.extensions.clone(),
        );
        let (name, help) = ("start_wait", "How long containers waited for their pod's networks, by result");
        registry.register_with_unit(name, help, seconds(), self.starts.clone());
        let help = "Detach notifications that extensions have not acknowledged yet";
        registry.register("extension_pending_notifications", help, self.pending_notifications.clone());
        registry.register("errors", "Failed calls and changes by reason", self.errors.clone());
        registry.register("repairs", "Units with drift that was repaired", self.repairs.clone());
        registry.register("calls_waiting", "Calls in flight", self.waiting.clone());
        registry.register(
            "rejected_peers",
            "Connections rejected because of the peer's credentials",
            self.rejected_peers.clone(),
        );
        registry.register("sandboxes", "Sandboxes on this node", self.sandboxes.clone());
        registry.register("attachments", "Interfaces in sandboxes", self.attachments.clone());
        registry.register("leases", "Live address leases", self.leases.clone());
        registry.register("addresses", "Addresses of each network by state", self.addresses.clone());
        registry.register(
            "journal_records",
            "Records in the newest journal segment",
            self.journal_records.clone(),
        );
        let size = self.journal_bytes.clone();
        registry.register_with_unit("journal", "Size of the newest journal segment", Measure::Bytes, size);
        registry.register(
            "problems",
            "Problems that prevent the desired configuration",
            self.problems.clone(),
        );
        let help = "Pod ports on the eBPF fast path; 0 where all packets take the bridge";
        registry.register("redirect_ports", help, self.redirect_ports.clone());
        let help = "Packets between pods on the eBPF fast path";
        registry.register("redirect_packets", help, self.redirect_packets.clone());
        self.policy_drops.register(registry);
    }

    /// Observes a completed call.
    pub(crate) fn call_completed(&self, call: &'static str, answer: &CallResult, took: Duration) {
        let result = if let CallResult::Failed(problem) = answer {
            self.failed(problem.reason);
            "failed"
        } else {
            "ok"
        };
        self.calls.get_or_create(&CallLabels { call, result }).observe(took.as_secs_f64());
    }

    /// Observes completed work.
    pub(crate) fn work_completed(&self, work: &Work, took: Duration) {
        let (phase, unit) = match work {
            Work::Effect { effect, .. } => effect_labels(effect),
            Work::DeferredDelete { .. } => ("deferred_delete", "node"),
            Work::CheckSandboxes(_) => ("sandbox_check", "node"),
        };
        self.phases.get_or_create(&PhaseLabels { phase, unit }).observe(took.as_secs_f64());
    }

    /// Observes a call to an extension.
    pub(crate) fn extension(&self, name: &str, phase: &'static str, ok: bool, took: Duration) {
        let result = if ok { "ok" } else { "failed" };
        let labels = ExtensionLabels { extension: name.to_owned(), phase, result };
        self.extensions.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Observes how long a pod's containers waited for its networks.
    pub(crate) fn started(&self, result: &'static str, took: Duration) {
        self.starts.get_or_create(&StartLabels { result }).observe(took.as_secs_f64());
    }

    /// Counts an error.
    pub(crate) fn failed(&self, reason: Reason) {
        self.errors.get_or_create(&ErrorLabels { reason: reason.name().to_owned() }).inc();
    }

    pub(crate) fn repaired(&self) {
        self.repairs.inc();
    }

    pub(crate) fn calls_waiting(&self, calls: usize) {
        self.waiting.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    pub(crate) fn rejected_peer(&self) {
        self.rejected_peers.inc();
    }

    /// Updates all gauges from the node.
    pub(crate) fn observe(&self, node: &Node) {
        let (state, count) = (node.state(), |number: usize| i64::try_from(number).unwrap_or(i64::MAX));
        self.sandboxes.set(count(state.sandboxes.len()));
        self.attachments.set(count(state.units.values().map(|unit_state| unit_state.interfaces.len()).sum()));
        self.leases.set(count(state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count()));
        self.pending_notifications.set(count(state.extensions.pending_notifications().count()));
        self.problems.set(count(state.problems.values().map(Vec::len).sum()));
        let (ports, packets) = match node.datapath_mode() {
            DatapathMode::Redirect { ports, packets } => (ports, packets),
            DatapathMode::Bridge | DatapathMode::Unavailable { .. } => (0, 0),
        };
        self.redirect_ports.set(count(ports));
        self.redirect_packets.inner().store(packets, Ordering::Relaxed);
        let size = node.journal_size();
        self.journal_records.set(i64::try_from(size.records).unwrap_or(i64::MAX));
        self.journal_bytes.set(i64::try_from(size.bytes).unwrap_or(i64::MAX));
        self.addresses.clear();
        for capacity in NetworkAddresses::all(state) {
            let family = if capacity.ipv6 { "ipv6" } else { "ipv4" };
            for (state, value) in
                [("total", capacity.total), ("used", capacity.used), ("free", capacity.free)]
            {
                let labels = AddressLabels {
                    namespace: capacity.namespace.clone(),
                    network: capacity.network.clone(),
                    family,
                    state,
                };
                // A float is exact enough for 2^64 addresses.
                self.addresses.get_or_create(&labels).set(capacity_number(value));
            }
        }
    }

    /// Observes what network policies dropped.
    pub(crate) fn policy_drops(&self, drops: &PolicyDrops) {
        self.policy_drops.observe(drops);
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = writeln!(text, "# EOF");
        }
        text
    }
}

/// The labels `phase` and `unit` of an effect.
fn effect_labels(effect: &Effect) -> (&'static str, &'static str) {
    let of = |unit: &Unit| match unit {
        Unit::Sandbox(_) => "sandbox",
        Unit::Bridge(_) => "bridge",
        Unit::NodeRoutes => "node_routes",
        Unit::PacketFilter => "packet_filter",
        Unit::Services => "services",
        Unit::Policies => "policies",
    };
    match effect {
        Effect::Observe { unit, .. } => ("observe", of(unit)),
        Effect::Apply { unit, .. } => ("apply", of(unit)),
        Effect::RerouteConnections(_) => ("conntrack", "node_routes"),
        Effect::EndConnections(_) => ("conntrack", "services"),
        Effect::RunPluginChain { .. } => ("cni_plugins", "sandbox"),
        _ => ("netns", "sandbox"),
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
    fn the_example_alerts_use_exported_metrics() {
        let metrics = Metrics::default();
        metrics.calls.get_or_create(&CallLabels { call: "attach", result: "ok" }).observe(0.1);
        metrics.failed(Reason::Conflict);
        metrics.started("late", Duration::from_millis(900));
        let (namespace, network) = ("shop".to_owned(), "blue".to_owned());
        let _ = metrics.addresses.get_or_create(&AddressLabels {
            namespace,
            network,
            family: "ipv4",
            state: "free",
        });
        let exported = metrics.text();
        let begins =
            |line: &str, name: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let tokens = ALERTS.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let names: Vec<&str> = tokens.filter(|state| state.starts_with("knit_")).collect();
        assert!(names.len() > 8, "{names:?}");
        for name in names {
            assert!(exported.lines().any(|line| begins(line, name)), "{name} is not in\n{exported}");
        }
    }

    #[test]
    fn the_example_alerts_are_valid_prometheus_rules() {
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
