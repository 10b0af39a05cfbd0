//! Options of namespaces, set by admins as labels of the Namespace, which its tenants cannot write.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::SandboxId;
use serde::{Deserialize, Serialize};

use crate::cluster;
use crate::event::Record;
use crate::packet_filter;
use crate::state::{ObjectKey, State};
use crate::step::Effects;

/// The label that allows pods of a namespace to spoof source addresses, with the value `off`.
pub const ANTI_SPOOFING: &str = "knit.opdev.io/anti-spoofing";
/// The label that selects whether pods of a namespace are masqueraded.
pub const MASQUERADE: &str = "knit.opdev.io/masquerade";
/// How many namespaces are part of a node's status.
const MAX_REPORTED_NAMESPACES: usize = 100;

/// Options by namespace, where any is set.
pub type Namespaces = BTreeMap<String, NamespaceOptions>;

/// The options of one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceOptions {
    /// Whether its pods may spoof source addresses.
    pub allow_spoofing: bool,
    /// Whether its pods are masqueraded; `None`: as configured for the pool or the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

impl NamespaceOptions {
    /// Reads the labels of a namespace, with a warning for each invalid value. Invalid values grant nothing.
    pub fn of(labels: &BTreeMap<String, String>) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let mut is_on = |label: &str| match labels.get(label)?.as_str() {
            "on" => Some(true),
            "off" => Some(false),
            other => {
                warnings.push(format!("label {label}: `{other}` is neither `on` nor `off`, and is ignored"));
                None
            }
        };
        let options =
            Self { allow_spoofing: is_on(ANTI_SPOOFING) == Some(false), masquerade: is_on(MASQUERADE) };
        (options, warnings)
    }

    /// Whether no option is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A change of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NamespaceEvent {
    /// All namespaces with options.
    Listed(Namespaces),
    /// The options of a namespace; the default if it was deleted.
    Changed {
        /// The namespace.
        name: String,
        /// Its options.
        options: NamespaceOptions,
    },
}

/// Handles a change of namespaces.
pub(crate) fn handle(state: &mut State, event: NamespaceEvent, effects: &mut Effects) {
    let changed: Namespaces = match event {
        NamespaceEvent::Listed(mut listed) => {
            let removed = state.namespaces.keys().filter(|name| !listed.contains_key(*name)).cloned();
            let removed: Vec<String> = removed.collect();
            listed.retain(|name, options| state.namespaces.get(name) != Some(options));
            listed
                .into_iter()
                .chain(removed.into_iter().map(|name| (name, NamespaceOptions::default())))
                .collect()
        }
        NamespaceEvent::Changed { name, options } => {
            if state.namespaces.get(&name).copied().unwrap_or_default() == options {
                return;
            }
            [(name, options)].into()
        }
    };
    if !changed.is_empty() {
        let names = changed.keys().cloned().collect();
        effects.record(state, Record::Namespaces(changed));
        packet_filter::on_namespace_change(state, &names);
        effects.changed(BTreeSet::from([cluster::key()]));
    }
}

impl State {
    /// The options of the namespace of a sandbox's pod.
    pub(crate) fn namespace_options(&self, id: &SandboxId) -> NamespaceOptions {
        let namespace = self.sandboxes.get(id).map(|sandbox| &sandbox.namespace);
        namespace.and_then(|namespace| self.namespaces.get(namespace)).copied().unwrap_or_default()
    }

    /// Warnings about namespaces that may spoof, for the status of the cluster network.
    pub(crate) fn spoofing_warnings(&self, key: &ObjectKey) -> impl Iterator<Item = String> {
        let is_guarded = self
            .cluster()
            .and_then(|cluster| cluster.node_routes)
            .is_some_and(|node_routes| node_routes.anti_spoofing);
        let is_enforced = *key == cluster::key() && is_guarded;
        let allow_spoofing =
            self.namespaces.iter().filter(move |(_, options)| is_enforced && options.allow_spoofing);
        allow_spoofing.take(MAX_REPORTED_NAMESPACES).map(|(name, _)| {
            format!(
                "pods of namespace {name} may spoof source addresses: it has the label {ANTI_SPOOFING}: off"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(labels: &[(&str, &str)]) -> (NamespaceOptions, Vec<String>) {
        NamespaceOptions::of(
            &labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn only_the_known_words_say_something() {
        let none = NamespaceOptions::default();
        assert_eq!(options(&[("team", "blue")]), (none, vec![]));
        assert_eq!(options(&[(ANTI_SPOOFING, "on")]), (none, vec![]));
        let allow_spoofing = NamespaceOptions { allow_spoofing: true, masquerade: Some(true) };
        assert_eq!(options(&[(ANTI_SPOOFING, "off"), (MASQUERADE, "on")]), (allow_spoofing, vec![]));
        let excluded = NamespaceOptions { masquerade: Some(false), ..none };
        assert_eq!(options(&[(MASQUERADE, "off")]), (excluded, vec![]));
        let (options_read, warnings) = options(&[(ANTI_SPOOFING, "false"), (MASQUERADE, "")]);
        assert_eq!((options_read, warnings.len()), (none, 2), "{warnings:?}");
        assert!(warnings[0].contains("knit.opdev.io/anti-spoofing: `false`"), "{warnings:?}");
    }
}
