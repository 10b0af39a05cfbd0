//! Status in the predecessors' words, with standard conditions beside them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knit_model::link::PortVlans;
use knit_model::report::{Attached, InterfaceReport, ItemReport, Phase, PodReport, Report};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A status lists at most this many pods, so that it stays small; the counts beside the list are of all of them.
pub const MAX_LISTED_PODS: usize = 100;

/// The condition that says whether all of an object stands.
pub const READY: &str = "Ready";

/// A condition's message is cut after this many characters.
const MAX_MESSAGE: usize = 2_048;

/// What a status can be made of.
pub trait Status: Sized {
    /// What every status has.
    fn overview(&self) -> &Overview;

    /// The status for this report.
    fn new(overview: Overview, report: &Report) -> Self;

    /// The status that follows from a report.
    fn from_report(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let overview = Overview::of(report, label, previous.map(Self::overview), now);
        Self::new(overview, report)
    }
}

/// What every status has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Overview {
    /// How far the object is: `unset` (nothing is done, or no pod matches), `configuring` (some of it stands) or
    /// `configured` (all of it stands).
    #[schemars(schema_with = "phase_schema")]
    pub phase: String,
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is `True` when all of the object stands; otherwise its reason and message say what is in the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What works, but not as one might expect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
}

impl Default for Overview {
    fn default() -> Self {
        let phase = phase_word(Phase::Unset).to_owned();
        Self { phase, observed_generation: None, conditions: Vec::new(), warnings: Vec::new() }
    }
}

/// A standard condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One stable word.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When `status` last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Time,
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What one pod has of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodConfiguration {
    /// The pod.
    pub pod_name: String,
    /// When the pod got it: `BeforeContainers` (the container runtime told of the pod by NRI, and waited) or `WhileRunning` (Knit
    /// saw the pod in the API, when containers may have run already). Nothing while the pod has nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "attached_schema")]
    pub attached: Option<String>,
    /// A line for each interface, route, rule, neighbour and sysctl that stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub config_list: Vec<String>,
}

/// How many pods an object is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCounts {
    /// How many pods match.
    pub pods: u32,
    /// How many of them have everything that is asked for.
    pub ready_pods: u32,
}

/// What became of the object, and what each pod has of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodsStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub counts: PodCounts,
    /// What each pod has, by the pod's name; at most 100 pods are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_configurations: Vec<PodConfiguration>,
}

/// What became of the object, and what each pod has of it. The list begins with a capital letter, as it always did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodNetworkConfigStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub counts: PodCounts,
    /// What each pod has, by the pod's name; at most 100 pods are listed.
    #[serde(rename = "PodNetworkConfigs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_network_configs: Vec<PodConfiguration>,
}

/// What became of the bridge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BridgeStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    /// The bridge by the name that it really has. It differs from the name that was asked for when another namespace
    /// had it first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub bridges: Vec<BridgeState>,
}

/// A bridge on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BridgeState {
    /// Its name.
    pub name: String,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
}

/// What became of the object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
}

impl Overview {
    pub(crate) fn of(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let (ready, reason, message) = verdict(report, label);
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
            message: cut(message),
            last_transition_time,
            observed_generation,
        };
        // Conditions that others put there stay.
        let others = previous.map(|previous| previous.conditions.clone()).unwrap_or_default();
        let others = others.into_iter().filter(|condition| condition.type_ != READY);
        Self {
            phase: phase_word(report.phase).to_owned(),
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

/// Whether all of it stands, with a stable reason and a sentence.
fn verdict(report: &Report, label: Option<&str>) -> (bool, String, String) {
    if let Some(first) = report.problems.first() {
        let sentences: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        return (false, format!("{:?}", first.reason), sentences.join("; "));
    }
    let (pods, ready) = counts(report);
    match (report.phase, label) {
        (Phase::Configured, Some(_)) => {
            (true, "Configured".to_owned(), format!("{} configured", number_of_pods(pods)))
        }
        (Phase::Configured, None) => (true, "Configured".to_owned(), "everything stands".to_owned()),
        (Phase::Configuring, Some(_)) => {
            (false, "Configuring".to_owned(), format!("{ready} of {} configured", number_of_pods(pods)))
        }
        (Phase::Configuring, None) => (false, "Configuring".to_owned(), "some of it stands".to_owned()),
        (Phase::Unset, Some(label)) if pods == 0 => {
            let name = &report.object.name;
            (
                false,
                "NoPods".to_owned(),
                format!("no pod matches: label it {label}={name}, or see spec.selector"),
            )
        }
        (Phase::Unset, _) => (false, "Unset".to_owned(), "nothing is done yet".to_owned()),
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

/// The first pods of a report, each with a line for each thing that stands.
fn listed(report: &Report) -> Vec<PodConfiguration> {
    let standing = |pod: &PodReport| {
        let links = pod.interfaces.iter().filter(|link| link.ready).map(config_line);
        let items = pod.items.iter().filter(|item| item.ready).map(item_line);
        links.chain(items).collect()
    };
    let pods = report.pods.iter().take(MAX_LISTED_PODS);
    let one = |pod: &PodReport| PodConfiguration {
        pod_name: pod.pod.clone(),
        attached: pod.attached.map(attached_word),
        config_list: standing(pod),
    };
    pods.map(one).collect()
}

/// An interface in one line. A pair's words are the predecessors'; other kinds say their type.
pub fn config_line(link: &InterfaceReport) -> String {
    let mut words = match &link.peer {
        Some(_) => vec![format!("podVethName:{}", link.name)],
        None => vec![format!("podLinkName:{}", link.name)],
    };
    // A link that others made was only changed: of what kind it is was never asked.
    if link.peer.is_none() && !link.kind.is_empty() {
        words.push(format!("linkType:{}", link.kind));
    }
    if !link.addresses.is_empty() {
        let addresses: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
        words.push(format!("podIPAddr:{}", addresses.join(",")));
    }
    if let Some(peer) = &link.peer {
        words.push(format!("peerVethName:{peer}"));
    } else if let Some(mtu) = link.mtu {
        words.push(format!("mtu:{mtu}"));
    }
    if let Some(master) = &link.master {
        words.push(format!("bridge:{master}"));
    }
    if let Some(vrf) = &link.vrf {
        words.push(format!("vrf:{vrf}"));
    }
    let vlans = link.vlans.iter().flat_map(PortVlans::shown);
    words.extend(vlans.map(|(name, value)| format!("{name}:{value}")));
    words.extend(link.shown.iter().map(|(name, value)| format!("{name}:{value}")));
    format!("{{{}}}", words.join(" "))
}

/// A route, rule, neighbour or sysctl in one line: `{route:10.9.0.0/16 via 10.1.0.1 dev net1}`.
pub fn item_line(item: &ItemReport) -> String {
    format!("{{{}}}", item.what.replacen(' ', ":", 1))
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Unset => "unset",
        Phase::Configuring => "configuring",
        Phase::Configured => "configured",
    }
}

/// When a pod got something, in a status' word.
pub(crate) fn attached_word(attached: Attached) -> String {
    format!("{attached:?}")
}

/// The same back; a word of a newer agent says nothing.
pub(crate) fn attached_of(word: &str) -> Option<Attached> {
    serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
}

pub(crate) fn attached_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["BeforeContainers", "WhileRunning", "ByCall"] })
}

fn cut(message: String) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

fn phase_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["unset", "configuring", "configured"] })
}

impl Status for PodsStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, report: &Report) -> Self {
        let (pods, ready_pods) = counts(report);
        Self { overview, counts: PodCounts { pods, ready_pods }, pod_configurations: listed(report) }
    }
}

impl Status for PodNetworkConfigStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, report: &Report) -> Self {
        let (pods, ready_pods) = counts(report);
        Self { overview, counts: PodCounts { pods, ready_pods }, pod_network_configs: listed(report) }
    }
}

impl Status for BridgeStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, report: &Report) -> Self {
        let state = |bridge: &knit_model::report::BridgeReport| BridgeState {
            name: bridge.name.to_string(),
            addresses: bridge.addresses.iter().map(ToString::to_string).collect(),
        };
        Self { overview, bridges: report.bridges.iter().map(state).collect() }
    }
}

impl Status for PlainStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, _report: &Report) -> Self {
        Self { overview }
    }
}
