//! Translation of an object into intents, or into all validation problems.

use std::collections::BTreeMap;

use knit_model::intent::{BridgePortIntent, Intent, IntentSpec, InterfaceIntent, NameRule, Selector};
use knit_model::link::Kind as LinkKind;
use knit_model::problem::Reason;
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::{Problems, Provenance};

use crate::interface::InterfaceFields;
use crate::selector::{MAX_LABEL_VALUE, PodSelector};

/// The maximum number of interfaces of one object in a pod.
pub const MAX_INTERFACES: usize = 32;

/// The intents of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// The intents, in the object's order.
    pub intents: Vec<Intent>,
    /// Fields that are ignored or behave unexpectedly.
    pub warnings: Vec<String>,
}

/// Collects the intents and all problems of an object.
#[derive(Debug)]
pub struct Translator {
    origin: Provenance,
    /// The problems so far.
    pub(crate) problems: Problems,
    translation: Translation,
    /// Names of interfaces so far, each with its field.
    names: BTreeMap<String, String>,
}

/// One interface of an object, with the fields that kinds spell differently already parsed.
pub(crate) struct InterfaceEntry<'a> {
    /// The path of the entry.
    pub(crate) path: &'a str,
    /// Its name, and the field that contains it.
    pub(crate) name: Option<(NameRule, String)>,
    pub(crate) pods: Selector,
    pub(crate) kind: LinkKind,
    pub(crate) parent: Option<String>,
    pub(crate) master: Option<String>,
    pub(crate) fields: &'a InterfaceFields,
}

/// The mark of a moved NIC stores its original settings, and has no space for an alias.
pub(crate) const NO_ALIAS: &str = "alias must be unset: the alias of a NIC cannot be changed";

/// The article of a link type, for messages.
pub(crate) fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

impl Translator {
    pub(crate) fn new(object: ObjectRef, dialect: Dialect) -> Self {
        let origin = Provenance { dialect, object: Some(object), field: String::new(), call: None };
        Self {
            origin,
            problems: Problems::default(),
            translation: Translation::default(),
            names: BTreeMap::new(),
        }
    }

    /// The object's name.
    pub(crate) fn object_name(&self) -> &str {
        self.origin.object.as_ref().map_or("", |object| &object.name)
    }

    /// The input dialect of the object.
    pub(crate) fn dialect(&self) -> Dialect {
        self.origin.dialect
    }

    /// Adds an intent of this field.
    pub(crate) fn intent(&mut self, field: &str, spec: IntentSpec) {
        self.translation.intents.push(Intent { origin: self.origin.at(field), spec });
    }

    /// Adds a warning about this field.
    pub(crate) fn warn(&mut self, field: &str, message: &str) {
        self.translation.warnings.push(format!("{field}: {message}"));
    }

    /// The selected pods: those of the selector if there is one, or those with the kind's label and the object's name.
    pub(crate) fn pods(&mut self, label: &str, selector: Option<&PodSelector>) -> Selector {
        if let Some(selector) = selector {
            return selector.read("spec.selector", &mut self.problems);
        }
        let name = self.object_name().to_owned();
        if name.len() > MAX_LABEL_VALUE {
            let message = format!(
                "must be at most {MAX_LABEL_VALUE} characters to be a value of the label {label}, got {}: set spec.selector",
                name.len()
            );
            self.problems.invalid("metadata.name", message);
        }
        Selector::label(label, name)
    }

    /// Adds an interface.
    pub(crate) fn interface(&mut self, entry: InterfaceEntry<'_>) {
        self.add_interface(entry, None, None, Vec::new());
    }

    /// Adds an interface with a host end, and the VLANs of that end.
    pub(crate) fn port(&mut self, entry: InterfaceEntry<'_>, port: Option<BridgePortIntent>) {
        self.add_interface(entry, None, port, Vec::new());
    }

    /// Adds a tunnel, whose remote endpoint may be a pod.
    pub(crate) fn tunnel(&mut self, entry: InterfaceEntry<'_>, remote_pod: Option<String>) {
        self.add_interface(entry, remote_pod, None, Vec::new());
    }

    /// Adds an interface whose ports are these other interfaces of the pod.
    pub(crate) fn master(&mut self, entry: InterfaceEntry<'_>, ports: Vec<String>) {
        self.add_interface(entry, None, None, ports);
    }

    fn add_interface(
        &mut self,
        entry: InterfaceEntry<'_>,
        remote_pod: Option<String>,
        port: Option<BridgePortIntent>,
        ports: Vec<String>,
    ) {
        let InterfaceEntry { path, name, pods, kind, parent, master, fields } = entry;
        let read = fields.read(path, &mut self.problems);
        if read.attrs.mac.is_some() && !kind.has_own_mac() {
            let message =
                format!("must be unset: {} {} has no hardware address", article(kind.name()), kind.name());
            self.problems.invalid(format!("{path}.hardwareAddr"), message);
        }
        if read.attrs.alias.is_some() && matches!(kind, LinkKind::HostDevice(_)) {
            self.problems.invalid(format!("{path}.alias"), NO_ALIAS);
        }
        // The master of a veth is on the node, its VRF in the pod; for other link types both are in the pod.
        if read.vrf.is_some() && master.is_some() && !matches!(kind, LinkKind::Veth(_)) {
            self.problems.invalid(format!("{path}.vrf"), "master and vrf must not both be set");
        }
        let Some((name, field)) = name else { return };
        self.claim_name(&name, field);
        let intent = InterfaceIntent { pods, name, kind, parent, master, remote_pod, port, ports, ..read };
        self.intent(path, IntentSpec::Interface(Box::new(intent)));
    }

    fn claim_name(&mut self, name: &NameRule, field: String) {
        let key = match name {
            NameRule::Exact(name) => name.to_string(),
            NameRule::Prefix(prefix) => format!("{prefix}<number>"),
        };
        if let Some(first) = self.names.get(&key) {
            let message = format!("interface names must be unique: {key} is used by {first}");
            self.problems.add(field, Reason::Conflict, message);
            return;
        }
        self.names.insert(key, field);
    }

    /// Rejects more interfaces than one object may have.
    pub(crate) fn count_interfaces(&mut self, field: &str, count: usize) {
        if count > MAX_INTERFACES {
            let message = format!("must have at most {MAX_INTERFACES} interfaces, got {count}");
            self.problems.invalid(field, message);
        }
    }

    pub(crate) fn finish(self) -> Result<Translation, Problems> {
        if self.problems.is_empty() { Ok(self.translation) } else { Err(self.problems) }
    }
}
