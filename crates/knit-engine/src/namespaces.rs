//! What admins say about the pods of a namespace: by labels of the Namespace itself, which those who only work in it cannot
//! write.

use std::collections::BTreeMap;

use knit_model::SandboxId;
use serde::{Deserialize, Serialize};

use crate::cluster;
use crate::state::{ObjectKey, State};

/// The label that grants a namespace's pods to speak in the name of others, with the value `off`.
pub const ANTI_SPOOFING: &str = "knit.opdev.io/anti-spoofing";
/// The label that chooses whether a namespace's pods have their node's address outside of the cluster.
pub const MASQUERADE: &str = "knit.opdev.io/masquerade";
/// So many namespaces are part of what there is to say about a node.
const MOST: usize = 100;

/// Namespaces that something is said about, by name.
pub type Namespaces = BTreeMap<String, Terms>;

/// What is said about the pods of one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Whether they may speak in the name of others.
    pub unguarded: bool,
    /// Whether they have their node's address outside of the cluster; `None`: as their pool or the agent says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

impl Terms {
    /// What these labels of a namespace say, and a sentence for each that says nothing. A word that is not known grants
    /// nothing.
    pub fn of(labels: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let mut sentences = Vec::new();
        let mut is_on = |label: &str| match labels.get(label)?.as_str() {
            "on" => Some(true),
            "off" => Some(false),
            other => {
                sentences
                    .push(format!("label {label}: `{other}` is neither `on` nor `off`, and changes nothing"));
                None
            }
        };
        let terms = Self { unguarded: is_on(ANTI_SPOOFING) == Some(false), masquerade: is_on(MASQUERADE) };
        (terms, sentences)
    }

    /// Whether anything is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl State {
    /// What is said about the namespace of a sandbox's pod.
    pub(crate) fn terms_of(&self, id: &SandboxId) -> Terms {
        let namespace = self.sandboxes.get(id).map(|sandbox| &sandbox.namespace);
        namespace.and_then(|namespace| self.namespaces.get(namespace)).copied().unwrap_or_default()
    }

    /// What was granted that a person would not expect, for whoever looks at the cluster's network.
    pub(crate) fn granted(&self, key: &ObjectKey) -> impl Iterator<Item = String> {
        let is_guarded =
            self.cluster().and_then(|cluster| cluster.ways).is_some_and(|ways| ways.anti_spoofing);
        let is_asked = *key == cluster::key() && is_guarded;
        let unguarded = self.namespaces.iter().filter(move |(_, terms)| is_asked && terms.unguarded);
        unguarded.take(MOST).map(|(name, _)| {
            format!("pods of namespace {name} may speak in the name of others: it has the label {ANTI_SPOOFING}: off")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(labels: &[(&str, &str)]) -> (Terms, Vec<String>) {
        Terms::of(&labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn only_the_known_words_say_something() {
        let none = Terms::default();
        assert_eq!(terms(&[("team", "blue")]), (none, vec![]));
        assert_eq!(terms(&[(ANTI_SPOOFING, "on")]), (none, vec![]));
        let unguarded = Terms { unguarded: true, masquerade: Some(true) };
        assert_eq!(terms(&[(ANTI_SPOOFING, "off"), (MASQUERADE, "on")]), (unguarded, vec![]));
        let kept = Terms { masquerade: Some(false), ..none };
        assert_eq!(terms(&[(MASQUERADE, "off")]), (kept, vec![]));
        let (said, why) = terms(&[(ANTI_SPOOFING, "false"), (MASQUERADE, "")]);
        assert_eq!((said, why.len()), (none, 2), "{why:?}");
        assert!(why[0].contains("knit.opdev.io/anti-spoofing: `false`"), "{why:?}");
    }
}
