//! Isolation of namespaces and apps: pods that others reach through Services only.

use serde::{Deserialize, Serialize};

use crate::index::PolicyIndex;
use crate::labels::{LabelSelector, Labels};
use crate::members::short_hash;
use crate::pods::{GroupKey, PodView};
use crate::policy::{Direction, PodSelector, Tier};

/// The annotation of a Namespace that isolates it, with the value `true`.
pub const ISOLATED_ANNOTATION: &str = "opencontrail.kubernetes.isolated";
/// The label of a Namespace that isolates it, with the value `true`.
pub const ISOLATED_LABEL: &str = "knit.opdev.io/isolated";
/// The label of a pod with the name of its app.
pub const APP_LABEL: &str = "opencontrail.org/name";
/// The prefix of the chains of segments.
const CHAIN: &str = "policy_segment_";

/// Pods that reach each other, and that other pods reach through Services only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Segment {
    /// All pods of a namespace.
    Namespace(String),
    /// The pods of a namespace with the same app label.
    App {
        /// The namespace.
        namespace: String,
        /// The value of the label.
        name: String,
    },
}

/// Whether a Namespace with these labels and annotations is isolated.
pub fn is_isolated(labels: &Labels, annotations: &Labels) -> bool {
    let is_true = |all: &Labels, key: &str| all.get(key).is_some_and(|value| value == "true");
    is_true(labels, ISOLATED_LABEL) || is_true(annotations, ISOLATED_ANNOTATION)
}

/// The app that a pod belongs to.
pub(crate) fn app(labels: &Labels) -> Option<&str> {
    labels.get(APP_LABEL).map(String::as_str).filter(|name| !name.is_empty())
}

impl Segment {
    /// Its namespace.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Namespace(namespace) | Self::App { namespace, .. } => namespace,
        }
    }

    /// Its pods, which reach each other.
    pub(crate) fn members(&self) -> PodSelector {
        match self {
            Self::Namespace(namespace) => PodSelector::in_namespace(namespace, LabelSelector::default()),
            Self::App { namespace, name } => {
                let match_labels = [(APP_LABEL.to_owned(), name.clone())].into();
                let pods = LabelSelector { match_labels, ..LabelSelector::default() };
                PodSelector::in_namespace(namespace, pods)
            }
        }
    }

    /// The name of its chain.
    pub fn chain(&self) -> String {
        format!("{CHAIN}{}", short_hash(&serde_json::to_vec(self).unwrap_or_default()))
    }

    /// How rules and decisions refer to it.
    pub fn title(&self) -> String {
        match self {
            Self::Namespace(namespace) => format!("isolated namespace {namespace}"),
            Self::App { namespace, name } => format!("app {name} of namespace {namespace}"),
        }
    }
}

impl PolicyIndex {
    /// The segment that a pod belongs to.
    pub(crate) fn segment_of(&self, pod: PodView<'_>) -> Option<Segment> {
        pod.group().segment.clone()
    }

    /// The segment that the pods of a group belong to. NetworkPolicies about connections to a pod of an app replace the
    /// isolation of the app.
    pub(crate) fn segment_of_group(&self, group: &GroupKey) -> Option<Segment> {
        let has_policy = || {
            let all = self.about(group, Direction::Ingress);
            all.iter().any(|policy| policy.tier == Tier::Namespace)
        };
        if let Some(name) = app(&group.labels)
            && !has_policy()
        {
            return Some(Segment::App { namespace: group.namespace.clone(), name: name.to_owned() });
        }
        let namespace = self.namespaces.get(&group.namespace)?;
        namespace.isolated.then(|| Segment::Namespace(group.namespace.clone()))
    }
}
