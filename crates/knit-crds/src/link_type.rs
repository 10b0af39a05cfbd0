//! Kinds of links that an entry of a list can have: every kind by name, with the few fields that some cannot be without.

mod details;
mod known;

use std::borrow::Cow;

use knit_model::intent::{BridgePortIntent, NameRule, Selector};
use knit_model::link::{HostDevice, Kind, LinkKind, VlanSet};
use knit_model::{IfName, Problems};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use details::{LinkDetails, LinkMode};
pub(crate) use known::plain_vlan;

use crate::fields::{DeviceName, FarEnd, InterfaceName, NamePrefix, rule_list, same_family};
use crate::interface::InterfaceFields;
use crate::rules::{LISTED_FAMILIES, LISTED_MODES, LISTED_MULTICAST};
use crate::translate::{Entry, Translator, article};
use details::Details;
use known::{KNOWN, Shape, Sits};

/// A kind of link by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LinkType(pub String);

impl Default for LinkType {
    fn default() -> Self {
        Self("veth".to_owned())
    }
}

impl JsonSchema for LinkType {
    fn schema_name() -> Cow<'static, str> {
        "LinkType".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": names() })
    }
}

fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|shape| shape.name).collect()
}

/// The API server's rules for an entry: what each kind needs to sit on, and which fields each has. Without `parent`,
/// `master` says both.
pub(crate) fn rules(has_parent: bool) -> serde_json::Value {
    let needs = |name: &str, field: &str, message: String| {
        let rule = format!("!has(self.linkType) || self.linkType != '{name}' || has(self.{field})");
        serde_json::json!({ "rule": rule, "message": format!("`{field}` is missing: {message}") })
    };
    let seats = KNOWN.iter().filter_map(|shape| {
        let (field, message) = match shape.sits {
            Sits::WithHostEnd => ("master", needs_master(shape.name)),
            Sits::OnParent if has_parent => ("parent", needs_parent(shape.name)),
            Sits::OnParent => ("master", needs_parent(shape.name)),
            Sits::MaybeOnParent | Sits::OnNothing => return None,
        };
        Some(needs(shape.name, field, message))
    });
    let fields = KNOWN.iter().flat_map(|shape| {
        shape.needs.iter().map(move |field| needs(shape.name, field, needs_field(shape.name, field)))
    });
    let strangers = LinkDetails::FIELDS.iter().map(|field| {
        let kinds: Vec<&str> =
            KNOWN.iter().filter(|shape| shape.has_field(field)).map(|shape| shape.name).collect();
        let list: Vec<String> = kinds.iter().map(|kind| format!("'{kind}'")).collect();
        let rule =
            format!("!has(self.{field}) || !has(self.linkType) || self.linkType in [{}]", list.join(", "));
        serde_json::json!({ "rule": rule, "message": format!("`{field}` is for {}", kinds.join(", ")) })
    });
    let multicast = LISTED_MULTICAST[usize::from(!has_parent)];
    let more = [&LISTED_MODES[..], &LISTED_FAMILIES, &[same_family(), multicast]].concat();
    let more = rule_list(&more);
    seats.chain(fields).chain(strangers).chain(more.as_array().into_iter().flatten().cloned()).collect()
}

/// An entry of a list of links.
pub(crate) struct ListedLink<'a> {
    pub(crate) path: String,
    /// How the list spells the name's field.
    pub(crate) name_field: &'static str,
    pub(crate) name: &'a NamePrefix,
    /// Whether the list has `parent`; without it, `master` is what a link sits on.
    pub(crate) has_parent: bool,
    pub(crate) link_type: &'a LinkType,
    pub(crate) parent: Option<&'a DeviceName>,
    pub(crate) master: Option<&'a DeviceName>,
    pub(crate) details: &'a LinkDetails,
    /// VLANs that its end on the node has to let through besides.
    pub(crate) passes: VlanSet,
    pub(crate) fields: InterfaceFields,
}

impl ListedLink<'_> {
    /// Asks for the interface.
    pub(crate) fn declare(&self, pods: Selector, to: &mut Translator) {
        let at = |field: &str| format!("{}.{field}", self.path);
        let prefix = self.name.read(at(self.name_field), &mut to.problems);
        let name = prefix.map(|prefix| (NameRule::Prefix(prefix), at(self.name_field)));
        let Some(shape) = KNOWN.iter().find(|shape| shape.name == self.link_type.0) else {
            let message = format!(
                "link type `{}` is not known here, it is one of {}",
                self.link_type.0.escape_debug(),
                names().join(", ")
            );
            to.problems.invalid(at("linkType"), message);
            return;
        };
        let (parent, master) = self.seat(shape.sits, to);
        self.check_fields(shape, to);
        let details = self.details.read(&self.path, &mut to.problems);
        let Some(kind) = self.kind(shape, &details, parent.is_some(), &mut to.problems) else { return };
        let remote_pod = details.remote.and_then(FarEnd::into_pod);
        let entry = Entry { path: &self.path, name, pods, kind, parent, master, fields: &self.fields };
        if shape.sits != Sits::WithHostEnd {
            return to.tunnel(entry, remote_pod);
        }
        let mut port = details.port;
        if !self.passes.is_empty() {
            let said = port.take().unwrap_or_default();
            port = Some(BridgePortIntent { tagged: said.tagged.union(&self.passes), ..said });
        }
        to.port(entry, port);
    }

    /// Fields that the kind cannot be without, and fields that say nothing about it.
    fn check_fields(&self, shape: &Shape, to: &mut Translator) {
        let at = |field: &str| format!("{}.{field}", self.path);
        let stated: Vec<&str> = self.details.stated().collect();
        for missing in shape.needs.iter().filter(|field| !stated.contains(*field)) {
            to.problems.invalid(at(missing), needs_field(shape.name, missing));
        }
        for stranger in stated.iter().filter(|field| !shape.has_field(field)) {
            let message = format!("{} {} has no `{stranger}`", article(shape.name), shape.name);
            to.problems.invalid(at(stranger), message);
        }
    }

    /// The link, with everything that no kernel takes said.
    fn kind(&self, shape: &Shape, details: &Details, sits: bool, problems: &mut Problems) -> Option<Kind> {
        let kind = (shape.kind)(details);
        if let (None, Some(mode)) = (&kind, details.mode.filter(|_| shape.has_field("mode"))) {
            let message = format!("{mode:?} is no mode of {} {}", article(shape.name), shape.name);
            problems.invalid(format!("{}.mode", self.path), message.to_lowercase());
        }
        let kind = kind?;
        // The model asks whether there is a parent, not which one: an Uplink's name may be no interface name.
        let mut seated = kind.clone();
        if let (true, Ok(stand_in)) = (sits, IfName::new("parent")) {
            seated.set_parent(stand_in);
        }
        if sits || shape.sits != Sits::OnParent {
            seated.check(&self.path, problems);
        }
        Some(kind)
    }

    /// What it sits on, and what it is a port of.
    fn seat(&self, sits: Sits, to: &mut Translator) -> (Option<String>, Option<String>) {
        let at = |field: &str| format!("{}.{field}", self.path);
        match sits {
            Sits::WithHostEnd => {
                if let Some(parent) = self.parent.filter(|parent| parent.0 != self.name.0) {
                    let message = format!(
                        "`{}` is not used: the parent of a {} is the interface itself",
                        parent.0.escape_debug(),
                        self.link_type.0
                    );
                    to.warn(&at("parent"), &message);
                }
                let master = self.master.map(|master| InterfaceName(master.0.clone()));
                if master.is_none() {
                    to.problems.invalid(at("master"), needs_master(&self.link_type.0));
                }
                let master = master.and_then(|master| master.read(at("master"), &mut to.problems));
                (None, master.map(String::from))
            }
            Sits::OnNothing => {
                if let Some(parent) = self.parent {
                    let (name, kind) = (parent.0.escape_debug(), &self.link_type.0);
                    to.warn(&at("parent"), &format!("`{name}` is not used: a {kind} sits on nothing"));
                }
                let master = self.master.and_then(|master| master.read(at("master"), &mut to.problems));
                (None, master)
            }
            Sits::OnParent | Sits::MaybeOnParent => {
                let (parent, field, master) = match self.has_parent {
                    true => (self.parent, "parent", self.master),
                    false => (self.master, "master", None),
                };
                if parent.is_none() && sits == Sits::OnParent {
                    to.problems.invalid(at(field), needs_parent(&self.link_type.0));
                }
                let parent = parent.and_then(|parent| parent.read(at(field), &mut to.problems));
                let master = master.and_then(|master| master.read(at("master"), &mut to.problems));
                (parent, master)
            }
        }
    }
}

/// The sentence for a link with an end on the node and nothing there to connect it to.
pub(crate) fn needs_master(kind: &str) -> String {
    format!("a {kind} needs a bridge on the node for its other end: name one, it is made if it is missing")
}

/// The sentence for a link that sits on nothing.
pub(crate) fn needs_parent(kind: &str) -> String {
    if kind == HostDevice::NAME {
        return format!("a {kind} needs the Uplink whose NIC it is");
    }
    format!("{} {kind} needs what it sits on: another interface of the pod, or an Uplink", article(kind))
}

/// The sentence for a link without a field that it cannot be without.
fn needs_field(kind: &str, field: &str) -> String {
    let what = match field {
        "vlanID" => "the number of its VLAN, 1 to 4094",
        "vni" => "the number of its network, 0 to 16777215",
        "remote" => "its far end: an address, or the name of a pod",
        "local" => "the near end's address",
        "table" => "the routing table of its ports",
        _ => "it",
    };
    format!("{} {kind} needs {what}", article(kind))
}
