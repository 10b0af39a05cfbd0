//! NetworkAttachmentDefinitions (NADs) and the pod annotation that references them: the de facto standard of the
//! Network Plumbing Working Group, which Multus implements.
//!
//! Each entry of the annotation becomes intents for that pod only. CNI plugin types with an equivalent kind become that
//! kind; other plugins run as a CNI chain if the node's administrator allows them. Each entry is validated on its own,
//! and a rejected entry does not affect the others.

mod addresses;
mod annotation;
mod bounds;
mod config;
mod kinds;
mod plugins;
mod status;

use std::collections::BTreeSet;

use knit_model::intent::{Intent, IntentSpec, RejectedIntent, Selector};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::{IfName, Provenance};
use serde::{Deserialize, Serialize};

pub use plugins::AllowedPlugins;
pub use status::{PrimaryInterfaceInfo, network_status};

use self::annotation::Selection;
use self::config::Config;

/// The annotation with which a pod requests networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The annotation with the networks of a pod.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The annotation of a definition with the namespaces whose pods may use it, separated by commas; `*` for all.
pub const SHARED_WITH: &str = "knit.opdev.io/shared-with";
/// The API group of NetworkAttachmentDefinitions.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Their API version.
pub const VERSION: &str = "v1";
/// Their kind.
pub const KIND: &str = "NetworkAttachmentDefinition";
/// Their plural name.
pub const PLURAL: &str = "network-attachment-definitions";

/// The maximum number of networks in an annotation.
const MAX_NETWORKS: usize = crate::MAX_INTERFACES;

/// The translation of a pod's annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAttachments {
    /// The intents, including rejected entries, in the annotation's order.
    pub intents: Vec<Intent>,
    /// Fields that are ignored or behave unexpectedly.
    pub warnings: Vec<String>,
    /// The networks, in the annotation's order.
    pub attachments: Vec<Attachment>,
}

/// One network of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The definition, as `namespace/name`.
    pub name: String,
    /// The interface name.
    pub interface: String,
    /// The CNI configuration; `None` while the definition does not exist or is not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// A definition, as a pod may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// Its CNI configuration.
    Config(String),
    /// It is of another namespace, which does not share it with the pod's.
    NotShared,
}

impl Definition {
    /// A definition by namespace and name: the current one with whether the pod may use it, or if it was deleted, the one
    /// that the pod uses.
    pub fn find(
        current: Option<(&str, bool)>,
        used: &[Attachment],
        namespace: &str,
        name: &str,
    ) -> Option<Self> {
        match current {
            Some((config, true)) => Some(Self::Config(config.to_owned())),
            Some((_, false)) => Some(Self::NotShared),
            None => {
                let title = format!("{namespace}/{name}");
                used.iter().find(|one| one.name == title)?.config.clone().map(Self::Config)
            }
        }
    }
}

/// Why an entry is rejected: a reason and a message.
type EntryError = (Reason, String);

fn invalid(message: impl Into<String>) -> EntryError {
    (Reason::InvalidValue, message.into())
}

/// Translates a pod's annotation. `definition` finds a definition by namespace and name.
pub fn translate(
    pod: &ObjectRef,
    annotation: &str,
    definition: impl Fn(&str, &str) -> Option<Definition>,
    plugins: &AllowedPlugins,
) -> PodAttachments {
    let mut networks = PodAttachments::default();
    let origin = |index: usize| Provenance {
        dialect: Dialect::Annotation,
        object: Some(pod.clone()),
        field: format!("annotations[{NETWORKS}][{index}]"),
        call: None,
    };
    let rejected = |origin: Provenance, (reason, message): EntryError| {
        let problem = Problem::new(origin.field.clone(), reason, message);
        let intent = RejectedIntent { pods: Selector::pod(pod.uid.as_str()), problem };
        Intent { origin, spec: IntentSpec::Rejected(Box::new(intent)) }
    };
    let selections = match annotation::parse(annotation, &pod.namespace) {
        Ok(selections) => selections,
        Err(why) => {
            let origin = Provenance { field: format!("annotations[{NETWORKS}]"), ..origin(0) };
            networks.intents.push(rejected(origin, invalid(why)));
            return networks;
        }
    };
    let mut names: BTreeSet<IfName> = BTreeSet::new();
    for (index, selection) in selections.into_iter().enumerate() {
        let origin = origin(index);
        let translated = selection.map_err(invalid).and_then(|selection| {
            let interface = interface(&selection, index)?;
            if !names.insert(interface.clone()) {
                let message = format!("interface {interface} must be unique in the annotation");
                return Err((Reason::Conflict, message));
            }
            let title = selection.title();
            let found = match definition(&selection.namespace, &selection.name) {
                Some(Definition::Config(config)) => Ok(config),
                Some(Definition::NotShared) => Err((
                    Reason::NotAllowed,
                    format!("{KIND} {title} is not shared with namespace {}: its annotation {SHARED_WITH} does not name it", pod.namespace),
                )),
                None => Err((Reason::NotFound, format!("{KIND} {title} not found"))),
            };
            networks.attachments.push(Attachment {
                name: title.clone(),
                interface: interface.to_string(),
                config: found.as_ref().ok().cloned(),
            });
            let config = found?;
            let entry = Entry { pod, selection: &selection, interface: &interface };
            let translated = entry.translate(&config, plugins);
            translated.map_err(|(reason, message)| (reason, format!("{KIND} {title}: {message}")))
        });
        match translated {
            Ok((spec, warnings)) => {
                let warnings = warnings.into_iter().map(|warning| format!("{}: {warning}", origin.field));
                networks.warnings.extend(warnings);
                networks.intents.push(Intent { origin, spec });
            }
            Err(error) => networks.intents.push(rejected(origin, error)),
        }
    }
    networks
}

/// The interface name: the entry's, or `net` and its position.
fn interface(selection: &Selection, index: usize) -> Result<IfName, EntryError> {
    if index >= MAX_NETWORKS {
        return Err(invalid(format!("the annotation must have at most {MAX_NETWORKS} networks")));
    }
    match &selection.interface {
        Some(name) if ["eth0", "lo"].contains(&name.as_str()) => {
            Err(invalid(format!("interface must not be {name}, which is reserved")))
        }
        Some(name) => IfName::new(name).map_err(|why| invalid(why.to_string())),
        None => IfName::new(format!("net{}", index + 1)).map_err(|why| invalid(why.to_string())),
    }
}

/// One entry of a pod's annotation.
struct Entry<'a> {
    pod: &'a ObjectRef,
    selection: &'a Selection,
    interface: &'a IfName,
}

impl Entry<'_> {
    /// The intent of the entry, and warnings.
    fn translate(
        &self,
        config: &str,
        plugins: &AllowedPlugins,
    ) -> Result<(IntentSpec, Vec<String>), EntryError> {
        let config = Config::parse(config).map_err(invalid)?;
        match config.single().filter(|plugin| kinds::is_known(plugin.kind())) {
            Some(plugin) => self.equivalent_kind(plugin),
            None => self.plugin_chain(&config, plugins).map(|spec| (spec, self.plugin_chain_warnings())),
        }
    }
}

#[cfg(test)]
mod tests;
