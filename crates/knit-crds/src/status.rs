//! Status of objects: the status lines of the pod-network-operator, the same facts as fields, and standard conditions.

mod pod;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_model::report::{Phase, PodReport, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::pod::pod_configurations;
pub use self::pod::{InterfaceStatus, ItemStatus, PodConfiguration, config_line, item_line};
pub(crate) use self::pod::{attached_name, attached_schema, parse_attached};

/// The maximum number of pods that a status lists, which bounds its size; the counts are of all pods.
pub const MAX_LISTED_PODS: usize = 100;

/// The type of the condition that tells whether the whole object is applied.
pub const READY: &str = "Ready";

/// The maximum length of a condition message in characters.
const MAX_MESSAGE: usize = 2_048;

/// The status of a kind.
pub trait Status: Sized {
    /// The part that all kinds have.
    fn common(&self) -> &CommonStatus;

    /// Builds the status for a report.
    fn new(common: CommonStatus, report: &Report) -> Self;

    /// The status for a report, based on the previous one.
    fn from_report(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let common = CommonStatus::of(report, label, previous.map(Self::common), now);
        Self::new(common, report)
    }
}

/// CommonStatus is the part of the status that all kinds have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CommonStatus {
    /// phase is the progress of the object: `unset` (nothing is applied, or no pod matches), `configuring` (partly
    /// applied) or `configured` (completely applied).
    #[schemars(schema_with = "phase_schema")]
    pub phase: String,
    /// observedGeneration is the generation of the spec that this status is based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// conditions lists the conditions. `Ready` is `True` if the object is completely applied; otherwise its reason and
    /// message describe the problem.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// warnings lists fields that are ignored or behave unexpectedly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
}

impl Default for CommonStatus {
    fn default() -> Self {
        let phase = phase_name(Phase::Unset).to_owned();
        Self { phase, observed_generation: None, conditions: Vec::new(), warnings: Vec::new() }
    }
}

/// Condition is a standard condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// type is the type of the condition.
    #[serde(rename = "type")]
    pub type_: String,
    /// status is `True`, `False` or `Unknown`.
    pub status: String,
    /// reason is a stable CamelCase identifier.
    pub reason: String,
    /// message is a human-readable description.
    pub message: String,
    /// lastTransitionTime is the time at which status last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
    /// observedGeneration is the generation of the spec that the condition is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// PodCounts counts the selected pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// pods is the number of selected pods.
    pub pods: u32,
    /// readyPods is the number of selected pods to which everything is applied.
    pub ready_pods: u32,
}

/// PodsStatus is the observed state of an object in pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodsStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub counts: PodCounts,
    /// podConfigurations lists what is applied to each pod, by pod name, at most 100 pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_configurations: Vec<PodConfiguration>,
}

/// PodNetworkConfigStatus is the observed state of a PodNetworkConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodNetworkConfigStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub counts: PodCounts,
    /// PodNetworkConfigs lists what is applied to each pod, by pod name, at most 100 pods.
    #[serde(rename = "PodNetworkConfigs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_network_configs: Vec<PodConfiguration>,
}

/// BridgeStatus is the observed state of a Bridge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BridgeStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    /// bridges lists the bridge by its actual name, which differs from spec.name if another namespace used that name
    /// first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<BridgeState>,
}

/// BridgeState is a bridge on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BridgeState {
    /// name is the name of the bridge.
    pub name: String,
    /// addresses lists its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
}

/// PlainStatus is the observed state of an object without further fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
}

impl CommonStatus {
    pub(crate) fn of(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let (ready, reason, message) = readiness(report, label);
        let status = if ready { "True" } else { "False" };
        let earlier = previous.and_then(|previous| previous.condition(READY));
        let last_transition_time = match earlier {
            Some(earlier) if earlier.status == status => earlier.last_transition_time.clone(),
            _ => Time(now),
        };
        let observed_generation = Some(report.object.generation);
        let ready = Condition {
            type_: READY.to_owned(),
            status: status.to_owned(),
            reason,
            message: truncate(message),
            last_transition_time,
            observed_generation,
        };
        // Conditions of other controllers are kept.
        let others = previous.map(|previous| previous.conditions.clone()).unwrap_or_default();
        let others = others.into_iter().filter(|condition| condition.type_ != READY);
        Self {
            phase: phase_name(report.phase).to_owned(),
            observed_generation,
            conditions: std::iter::once(ready).chain(others).collect(),
            warnings: report.warnings.clone(),
        }
    }

    /// The condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}

/// Whether the object is completely applied, with a reason and a message.
fn readiness(report: &Report, label: Option<&str>) -> (bool, String, String) {
    if let Some(first) = report.problems.first() {
        let messages: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        return (false, first.reason.name().to_owned(), messages.join("; "));
    }
    let (pods, ready) = counts(report);
    match (report.phase, label) {
        (Phase::Configured, Some(_)) => {
            (true, "Configured".to_owned(), format!("{} configured", number_of_pods(pods)))
        }
        (Phase::Configured, None) => (true, "Configured".to_owned(), "everything is applied".to_owned()),
        (Phase::Configuring, Some(_)) => {
            (false, "Configuring".to_owned(), format!("{ready} of {} configured", number_of_pods(pods)))
        }
        (Phase::Configuring, None) => (false, "Configuring".to_owned(), "partly applied".to_owned()),
        (Phase::Unset, Some(label)) if pods == 0 => {
            let name = &report.object.name;
            (
                false,
                "NoPods".to_owned(),
                format!("no pod matches: label pods with {label}={name}, or set spec.selector"),
            )
        }
        (Phase::Unset, _) => (false, "Unset".to_owned(), "nothing is applied yet".to_owned()),
    }
}

fn number_of_pods(pods: u32) -> String {
    format!("{pods} {}", if pods == 1 { "pod" } else { "pods" })
}

fn counts(report: &Report) -> (u32, u32) {
    let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
    let ready = |pod: &&PodReport| {
        let is_any = !pod.interfaces.is_empty() || !pod.items.is_empty();
        is_any && pod.interfaces.iter().all(|link| link.ready) && pod.items.iter().all(|item| item.ready)
    };
    (count(report.pods.len()), count(report.pods.iter().filter(ready).count()))
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Unset => "unset",
        Phase::Configuring => "configuring",
        Phase::Configured => "configured",
    }
}

fn truncate(message: String) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

fn phase_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["unset", "configuring", "configured"] })
}

impl Status for PodsStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let (pods, ready_pods) = counts(report);
        Self {
            common,
            counts: PodCounts { pods, ready_pods },
            pod_configurations: pod_configurations(report),
        }
    }
}

impl Status for PodNetworkConfigStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let (pods, ready_pods) = counts(report);
        Self {
            common,
            counts: PodCounts { pods, ready_pods },
            pod_network_configs: pod_configurations(report),
        }
    }
}

impl Status for BridgeStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let state = |bridge: &knit_model::report::BridgeReport| BridgeState {
            name: bridge.name.to_string(),
            addresses: bridge.addresses.iter().map(ToString::to_string).collect(),
        };
        Self { common, bridges: report.bridges.iter().map(state).collect() }
    }
}

impl Status for PlainStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, _report: &Report) -> Self {
        Self { common }
    }
}
