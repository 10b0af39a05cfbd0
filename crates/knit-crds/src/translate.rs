//! From an object to intents: what it asks for in the model's words, or everything that is wrong with it.

use std::collections::BTreeMap;

use knit_model::intent::{BridgePortIntent, Intent, IntentSpec, InterfaceIntent, NameRule, Selector};
use knit_model::link::Kind as LinkKind;
use knit_model::problem::Reason;
use knit_model::provenance::{Dialect, ObjectRef};
use knit_model::{Problems, Provenance};

use crate::interface::InterfaceFields;
use crate::selector::{MAX_LABEL_VALUE, PodSelector};

/// One object makes at most this many interfaces in a pod.
pub const MAX_INTERFACES: usize = 32;

/// What an object asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Its intents, in the object's order.
    pub intents: Vec<Intent>,
    /// What is asked for and will not happen, or not as one would expect.
    pub warnings: Vec<String>,
}

/// Collects an object's intents, and everything that is wrong with it, to the end of the object.
#[derive(Debug)]
pub struct Translator {
    origin: Provenance,
    /// Everything that is wrong so far.
    pub(crate) problems: Problems,
    translation: Translation,
    /// Names of interfaces so far, and the field that says each.
    names: BTreeMap<String, String>,
}

/// One interface of an object, with what the kinds spell differently already read.
pub(crate) struct Entry<'a> {
    /// The path of the entry.
    pub(crate) path: &'a str,
    /// Its name, and the field that says it.
    pub(crate) name: Option<(NameRule, String)>,
    pub(crate) pods: Selector,
    pub(crate) kind: LinkKind,
    pub(crate) parent: Option<String>,
    pub(crate) master: Option<String>,
    pub(crate) fields: &'a InterfaceFields,
}

/// A NIC that is lent goes back with all that its mark can hold, which is no text of any length.
pub(crate) const NO_ALIAS: &str = "the alias of a NIC is the admin's: it cannot be changed here";

/// The article of a kind's name.
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

    /// The object's own name.
    pub(crate) fn object_name(&self) -> &str {
        self.origin.object.as_ref().map_or("", |object| &object.name)
    }

    /// The language that the object came in.
    pub(crate) fn dialect(&self) -> Dialect {
        self.origin.dialect
    }

    /// Asks for something, said in this field.
    pub(crate) fn want(&mut self, field: &str, want: IntentSpec) {
        self.translation.intents.push(Intent { origin: self.origin.at(field), spec: want });
    }

    /// Says that something will not be as one would expect.
    pub(crate) fn warn(&mut self, field: &str, message: &str) {
        self.translation.warnings.push(format!("{field}: {message}"));
    }

    /// The pods that are meant: those of the selector if there is one, or those with the kind's label and the object's name.
    pub(crate) fn pods(&mut self, label: &str, selector: Option<&PodSelector>) -> Selector {
        if let Some(selector) = selector {
            return selector.read("spec.selector", &mut self.problems);
        }
        let name = self.object_name().to_owned();
        if name.len() > MAX_LABEL_VALUE {
            let message = format!(
                "the name has {} characters, but the label {label} takes at most {MAX_LABEL_VALUE}: use spec.selector",
                name.len()
            );
            self.problems.invalid("metadata.name", message);
        }
        Selector::label(label, name)
    }

    /// Asks for an interface.
    pub(crate) fn interface(&mut self, entry: Entry<'_>) {
        self.ask(entry, None, None);
    }

    /// Asks for an interface with an end on the node, and for the VLANs of that end.
    pub(crate) fn port(&mut self, entry: Entry<'_>, port: Option<BridgePortIntent>) {
        self.ask(entry, None, port);
    }

    /// Asks for an interface whose far end is in another pod, if one is named.
    pub(crate) fn tunnel(&mut self, entry: Entry<'_>, remote_pod: Option<String>) {
        self.ask(entry, remote_pod, None);
    }

    fn ask(&mut self, entry: Entry<'_>, remote_pod: Option<String>, port: Option<BridgePortIntent>) {
        let Entry { path, name, pods, kind, parent, master, fields } = entry;
        let read = fields.read(path, &mut self.problems);
        if read.attrs.mac.is_some() && !kind.has_own_mac() {
            let message =
                format!("{} {} has no hardware address of its own", article(kind.name()), kind.name());
            self.problems.invalid(format!("{path}.hardwareAddr"), message);
        }
        if read.attrs.alias.is_some() && matches!(kind, LinkKind::HostDevice(_)) {
            self.problems.invalid(format!("{path}.alias"), NO_ALIAS);
        }
        // A pair's master is on the node, its VRF in the pod; for others both would be in the pod.
        if read.vrf.is_some() && master.is_some() && !matches!(kind, LinkKind::Veth(_)) {
            self.problems.invalid(
                format!("{path}.vrf"),
                "an interface is a port of one thing: `master` or `vrf`, not both",
            );
        }
        let Some((name, field)) = name else { return };
        self.claim_name(&name, field);
        let want = InterfaceIntent { pods, name, kind, parent, master, remote_pod, port, ..read };
        self.want(path, IntentSpec::Interface(Box::new(want)));
    }

    fn claim_name(&mut self, name: &NameRule, field: String) {
        let key = match name {
            NameRule::Exact(name) => name.to_string(),
            NameRule::Prefix(prefix) => format!("{prefix}<number>"),
        };
        if let Some(first) = self.names.get(&key) {
            let message = format!("interface {key} is asked for twice: {first} has the name already");
            self.problems.add(field, Reason::Conflict, message);
            return;
        }
        self.names.insert(key, field);
    }

    /// Refuses more interfaces than one object may have.
    pub(crate) fn count_interfaces(&mut self, field: &str, count: usize) {
        if count > MAX_INTERFACES {
            let message = format!("{count} interfaces in one object, at most {MAX_INTERFACES} are allowed");
            self.problems.invalid(field, message);
        }
    }

    pub(crate) fn finish(self) -> Result<Translation, Problems> {
        if self.problems.is_empty() { Ok(self.translation) } else { Err(self.problems) }
    }
}
