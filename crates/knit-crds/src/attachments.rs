//! NetworkAttachmentDefinitions, and pods that name them in an annotation: the language of the Network Plumbing Working Group's
//! de facto standard, which Multus speaks.
//!
//! What a pod asks for becomes intents for that pod and no other. Types of plugins that are a kind of Knit's become that kind;
//! others run as plugins, if the node's administrator lets them. What cannot be is told entry by entry, and the others stand.

mod addresses;
mod annotation;
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

pub use plugins::Plugins;
pub use status::{First, status};

use self::annotation::Selection;
use self::config::Config;

/// The annotation by which a pod names networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The annotation that says what a pod has.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The group of definitions.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Their version.
pub const VERSION: &str = "v1";
/// Their kind.
pub const KIND: &str = "NetworkAttachmentDefinition";
/// Their kind in addresses.
pub const PLURAL: &str = "network-attachment-definitions";

/// A pod asks for at most this many networks.
const MOST: usize = crate::MAX_INTERFACES;

/// What a pod's annotation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// What is asked for, and what cannot be, in the annotation's order.
    pub intents: Vec<Intent>,
    /// What will not be as one would expect.
    pub warnings: Vec<String>,
    /// The networks, in the annotation's order.
    pub attachments: Vec<Attachment>,
}

/// One network that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The definition, as `namespace/name`.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// The configuration that was read; none while there is no such definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// What went wrong with one entry: a reason and a sentence.
type Refusal = (Reason, String);

fn invalid(message: impl Into<String>) -> Refusal {
    (Reason::InvalidValue, message.into())
}

/// What a pod's annotation asks for, with the definitions that there are: the configuration of one by its namespace and name.
pub fn translate(
    pod: &ObjectRef,
    annotation: &str,
    definition: impl Fn(&str, &str) -> Option<String>,
    plugins: &Plugins,
) -> Networks {
    let mut networks = Networks::default();
    let origin = |index: usize| Provenance {
        dialect: Dialect::Annotation,
        object: Some(pod.clone()),
        field: format!("annotations[{NETWORKS}][{index}]"),
        call: None,
    };
    let refused = |origin: Provenance, (reason, message): Refusal| {
        let problem = Problem { field: origin.field.clone(), reason, message };
        let refused = RejectedIntent { pods: Selector::pod(pod.uid.as_str()), problem };
        Intent { origin, spec: IntentSpec::Rejected(Box::new(refused)) }
    };
    let selections = match annotation::parse(annotation, &pod.namespace) {
        Ok(selections) => selections,
        Err(why) => {
            let origin = Provenance { field: format!("annotations[{NETWORKS}]"), ..origin(0) };
            networks.intents.push(refused(origin, invalid(why)));
            return networks;
        }
    };
    let mut names: BTreeSet<IfName> = BTreeSet::new();
    for (index, selection) in selections.into_iter().enumerate() {
        let origin = origin(index);
        let wants = selection.map_err(invalid).and_then(|selection| {
            let interface = interface(&selection, index)?;
            if !names.insert(interface.clone()) {
                let message = format!("interface {interface} is asked for twice in this annotation");
                return Err((Reason::Conflict, message));
            }
            let config = definition(&selection.namespace, &selection.name);
            networks.attachments.push(Attachment {
                name: selection.title(),
                interface: interface.to_string(),
                config: config.clone(),
            });
            let title = selection.title();
            let config = config.ok_or_else(|| (Reason::NotFound, format!("there is no {KIND} {title}")))?;
            let entry = Entry { pod, selection: &selection, interface: &interface };
            let made = entry.want(&config, plugins);
            made.map_err(|(reason, message)| (reason, format!("{KIND} {title}: {message}")))
        });
        match wants {
            Ok((want, warnings)) => {
                let warnings = warnings.into_iter().map(|warning| format!("{}: {warning}", origin.field));
                networks.warnings.extend(warnings);
                networks.intents.push(Intent { origin, spec: want });
            }
            Err(refusal) => networks.intents.push(refused(origin, refusal)),
        }
    }
    networks
}

/// The interface's name: what the entry says, or `net` and its place.
fn interface(selection: &Selection, index: usize) -> Result<IfName, Refusal> {
    if index >= MOST {
        return Err(invalid(format!("a pod has at most {MOST} networks of its annotation")));
    }
    match &selection.interface {
        Some(name) if ["eth0", "lo"].contains(&name.as_str()) => {
            Err(invalid(format!("interface {name} is the pod's own, and no network's of its annotation")))
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
    /// What it asks for, and what will not be as one would expect.
    fn want(&self, config: &str, plugins: &Plugins) -> Result<(IntentSpec, Vec<String>), Refusal> {
        let config = Config::parse(config, &self.selection.name).map_err(invalid)?;
        match config.single().filter(|plugin| kinds::is_known(plugin.kind())) {
            Some(plugin) => self.kind(plugin),
            None => self.chain(&config, plugins).map(|want| (want, self.not_for_plugins())),
        }
    }
}

#[cfg(test)]
mod tests;
