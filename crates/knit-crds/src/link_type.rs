//! Kinds of links that an entry of a list can have: those whose every field such an entry can say.

use std::borrow::Cow;

use knit_model::intent::{NameRule, Selector};
use knit_model::link::{
    Dummy, Ipvlan, IpvlanFlag, IpvlanMode, Kind, Macvlan, MacvlanMode, TAP_NOBODY, Tap, Veth,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::fields::{DeviceName, InterfaceName, NamePrefix};
use crate::interface::InterfaceFields;
use crate::translate::{Entry, Translator, article};

/// The kinds, by name: one line each.
const KNOWN: &[(&str, Shape)] = &[
    ("veth", Shape { kind: || Kind::Veth(Veth::default()), sits: Sits::WithHostEnd }),
    (
        "macvlan",
        Shape {
            kind: || Kind::Macvlan(Macvlan { parent: None, mode: Some(MacvlanMode::Bridge) }),
            sits: Sits::OnParent,
        },
    ),
    (
        "ipvlan",
        Shape {
            kind: || {
                Kind::Ipvlan(Ipvlan {
                    parent: None,
                    mode: Some(IpvlanMode::L2),
                    flag: Some(IpvlanFlag::Bridge),
                })
            },
            sits: Sits::OnParent,
        },
    ),
    ("dummy", Shape { kind: || Kind::Dummy(Dummy {}), sits: Sits::OnNothing }),
    ("tap", Shape { kind: || Kind::Tap(root_tap()), sits: Sits::OnNothing }),
];

/// What an entry of this kind makes.
struct Shape {
    kind: fn() -> Kind,
    sits: Sits,
}

/// What `parent` and `master` of an entry mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sits {
    /// It has an end on the node, a port of `master`.
    WithHostEnd,
    /// It sits on `parent`.
    OnParent,
    /// It sits on nothing; `master` is a bridge in the pod.
    OnNothing,
}

/// A tap that root alone may open.
fn root_tap() -> Tap {
    Tap { user: Some(TAP_NOBODY), user_group: Some(TAP_NOBODY), multi_queue: Some(false), vnet_hdr: None }
}

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
    KNOWN.iter().map(|(name, _)| *name).collect()
}

/// The API server's rules for an entry: what each kind needs to sit on. Without `parent`, `master` says both.
pub(crate) fn rules(has_parent: bool) -> serde_json::Value {
    let rule = |(name, shape): &(&str, Shape)| {
        let (field, message) = match shape.sits {
            Sits::WithHostEnd => ("master", needs_master(name)),
            Sits::OnParent if has_parent => ("parent", needs_parent(name)),
            Sits::OnParent => ("master", needs_parent(name)),
            Sits::OnNothing => return None,
        };
        let rule = format!("!has(self.linkType) || self.linkType != '{name}' || has(self.{field})");
        Some(serde_json::json!({ "rule": rule, "message": format!("`{field}` is missing: {message}") }))
    };
    KNOWN.iter().filter_map(rule).collect()
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
    pub(crate) fields: InterfaceFields,
}

impl ListedLink<'_> {
    /// Asks for the interface.
    pub(crate) fn declare(&self, pods: Selector, to: &mut Translator) {
        let at = |field: &str| format!("{}.{field}", self.path);
        let prefix = self.name.read(at(self.name_field), &mut to.problems);
        let name = prefix.map(|prefix| (NameRule::Prefix(prefix), at(self.name_field)));
        let known = KNOWN.iter().find(|(name, _)| *name == self.link_type.0);
        let Some((_, shape)) = known else {
            let message = format!(
                "link type `{}` is not known here, it is one of {}",
                self.link_type.0.escape_debug(),
                names().join(", ")
            );
            to.problems.invalid(at("linkType"), message);
            return;
        };
        let (parent, master) = self.seat(shape.sits, to);
        let kind = (shape.kind)();
        to.interface(Entry { path: &self.path, name, pods, kind, parent, master, fields: &self.fields });
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
            Sits::OnParent => {
                let (parent, field, master) = match self.has_parent {
                    true => (self.parent, "parent", self.master),
                    false => (self.master, "master", None),
                };
                if parent.is_none() {
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
    format!("{} {kind} needs what it sits on: another interface of the pod, or an Uplink", article(kind))
}
