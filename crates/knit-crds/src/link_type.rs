//! Link types of list entries: every type by name, with its required fields.

mod details;
mod registry;

use std::borrow::Cow;

use knit_model::intent::{BridgePortIntent, NameRule, Selector};
use knit_model::link::{HostDevice, Kind, LinkKind, VlanSet};
use knit_model::{IfName, Problems};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub(crate) use details::Details;
pub use details::{LinkDetails, LinkMode};
pub use registry::LinkTypeInfo;
pub(crate) use registry::LowerLink;

use crate::fields::{DeviceName, InterfaceName, NamePrefix, RemoteEndpoint, rule_list, same_family};
use crate::interface::InterfaceFields;
use crate::rules::{LISTED_FAMILIES, LISTED_MULTICAST};
use crate::translate::{InterfaceEntry, Translator, article};
use registry::link_types;

/// A link type by name.
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
    link_types().iter().map(|info| info.name).collect()
}

/// The CEL rules of a list entry: the lower link and the fields of each link type. Without `parent`, `master` is the
/// lower link.
pub(crate) fn rules(has_parent: bool) -> serde_json::Value {
    let needs = |name: &str, field: &str, message: String| {
        let rule = format!("!has(self.linkType) || self.linkType != '{name}' || has(self.{field})");
        serde_json::json!({ "rule": rule, "message": format!("{field} must be set: {message}") })
    };
    let lower_links = link_types().iter().filter_map(|info| {
        let (field, message) = match info.lower_link {
            LowerLink::HostEnd => ("master", needs_master(info.name)),
            LowerLink::Required if has_parent => ("parent", needs_parent(info.name)),
            LowerLink::Required => ("master", needs_parent(info.name)),
            LowerLink::Optional | LowerLink::None => return None,
        };
        Some(needs(info.name, field, message))
    });
    let fields = link_types().iter().flat_map(|info| {
        info.needs.iter().map(move |field| needs(info.name, field, needs_field(info.name, field)))
    });
    let unsupported = LinkDetails::FIELDS.iter().map(|field| {
        let kinds: Vec<&str> =
            link_types().iter().filter(|info| info.has_field(field)).map(|info| info.name).collect();
        let list: Vec<String> = kinds.iter().map(|kind| format!("'{kind}'")).collect();
        let rule =
            format!("!has(self.{field}) || !has(self.linkType) || self.linkType in [{}]", list.join(", "));
        serde_json::json!({ "rule": rule, "message": format!("{field} must be unset unless linkType is one of {}", kinds.join(", ")) })
    });
    let multicast = LISTED_MULTICAST[usize::from(!has_parent)];
    let modes = link_types().iter().filter(|info| !info.modes.is_empty()).map(mode_rule);
    let more = [&LISTED_FAMILIES[..], &[same_family(), multicast]].concat();
    let more = rule_list(&more);
    lower_links
        .chain(fields)
        .chain(unsupported)
        .chain(modes)
        .chain(more.as_array().into_iter().flatten().cloned())
        .collect()
}

/// The CEL rule of the modes of a link type.
fn mode_rule(info: &LinkTypeInfo) -> serde_json::Value {
    let names: Vec<String> = info.modes.iter().map(|mode| mode.name()).collect();
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    let rule = format!(
        "!has(self.mode) || !has(self.linkType) || self.linkType != '{}' || self.mode in [{}]",
        info.name,
        quoted.join(", ")
    );
    let (last, first) = names.split_last().map_or(("", &[][..]), |(last, first)| (last.as_str(), first));
    let message =
        format!("mode must be {} or {last} for {} {}", first.join(", "), article(info.name), info.name);
    serde_json::json!({ "rule": rule, "message": message })
}

/// An entry of a list of links.
pub(crate) struct ListedLink<'a> {
    pub(crate) path: String,
    /// The name of the field that contains the name prefix.
    pub(crate) name_field: &'static str,
    pub(crate) name: &'a NamePrefix,
    /// Whether the list has `parent`; without it, `master` is the lower link.
    pub(crate) has_parent: bool,
    pub(crate) link_type: &'a LinkType,
    pub(crate) parent: Option<&'a DeviceName>,
    pub(crate) master: Option<&'a DeviceName>,
    pub(crate) details: &'a LinkDetails,
    /// VLANs that the host end must also allow.
    pub(crate) allowed_vlans: VlanSet,
    pub(crate) fields: InterfaceFields,
}

impl ListedLink<'_> {
    /// Declares the interface.
    pub(crate) fn declare(&self, pods: Selector, to: &mut Translator) {
        let at = |field: &str| format!("{}.{field}", self.path);
        let prefix = self.name.read(at(self.name_field), &mut to.problems);
        let name = prefix.map(|prefix| (NameRule::Prefix(prefix), at(self.name_field)));
        let Some(info) = link_types().iter().find(|info| info.name == self.link_type.0) else {
            let message =
                format!("must be one of {}, got `{}`", names().join(", "), self.link_type.0.escape_debug());
            to.problems.invalid(at("linkType"), message);
            return;
        };
        let (parent, master) = self.lower_link_and_master(info.lower_link, to);
        self.check_fields(info, to);
        let details = self.details.read(&self.path, &mut to.problems);
        let Some(kind) = self.kind(info, &details, parent.is_some(), &mut to.problems) else { return };
        let remote_pod = details.remote.and_then(RemoteEndpoint::into_pod);
        let entry =
            InterfaceEntry { path: &self.path, name, pods, kind, parent, master, fields: &self.fields };
        if info.lower_link != LowerLink::HostEnd {
            return to.tunnel(entry, remote_pod);
        }
        let mut port = details.port;
        if !self.allowed_vlans.is_empty() {
            let given = port.take().unwrap_or_default();
            port = Some(BridgePortIntent { tagged: given.tagged.union(&self.allowed_vlans), ..given });
        }
        to.port(entry, port);
    }

    /// Checks for missing and for unsupported fields.
    fn check_fields(&self, info: &LinkTypeInfo, to: &mut Translator) {
        let at = |field: &str| format!("{}.{field}", self.path);
        let given: Vec<&str> = self.details.given().collect();
        for missing in info.needs.iter().filter(|field| !given.contains(*field)) {
            to.problems.invalid(at(missing), must_be_set(&needs_field(info.name, missing)));
        }
        for field in given.iter().filter(|field| !info.has_field(field)) {
            let message = format!("must be unset: {} {} does not support it", article(info.name), info.name);
            to.problems.invalid(at(field), message);
        }
    }

    /// The link, validated by the model.
    fn kind(
        &self,
        info: &LinkTypeInfo,
        details: &Details,
        has_lower_link: bool,
        problems: &mut Problems,
    ) -> Option<Kind> {
        let kind = (info.kind)(details);
        if let (None, Some(mode)) = (&kind, details.mode.filter(|_| info.has_field("mode"))) {
            let message = format!("must be a mode of {} {}, got {mode:?}", article(info.name), info.name);
            problems.invalid(format!("{}.mode", self.path), message.to_lowercase());
        }
        let kind = kind?;
        // The model checks only that a parent is set: the name of an Uplink may be no valid interface name.
        let mut checked = kind.clone();
        if let (true, Ok(placeholder)) = (has_lower_link, IfName::new("parent")) {
            checked.set_parent(placeholder);
        }
        if has_lower_link || info.lower_link != LowerLink::Required {
            checked.check(&self.path, problems);
        }
        Some(kind)
    }

    /// The lower link and the master.
    fn lower_link_and_master(
        &self,
        lower_link: LowerLink,
        to: &mut Translator,
    ) -> (Option<String>, Option<String>) {
        let at = |field: &str| format!("{}.{field}", self.path);
        match lower_link {
            LowerLink::HostEnd => {
                if let Some(parent) = self.parent.filter(|parent| parent.0 != self.name.0) {
                    let message = format!(
                        "`{}` is ignored: the parent of a {} is the interface itself",
                        parent.0.escape_debug(),
                        self.link_type.0
                    );
                    to.warn(&at("parent"), &message);
                }
                let master = self.master.map(|master| InterfaceName(master.0.clone()));
                if master.is_none() {
                    to.problems.invalid(at("master"), must_be_set(&needs_master(&self.link_type.0)));
                }
                let master = master.and_then(|master| master.read(at("master"), &mut to.problems));
                (None, master.map(String::from))
            }
            LowerLink::None => {
                if let Some(parent) = self.parent {
                    let (name, kind) = (parent.0.escape_debug(), &self.link_type.0);
                    to.warn(&at("parent"), &format!("`{name}` is ignored: a {kind} has no lower link"));
                }
                let master = self.master.and_then(|master| master.read(at("master"), &mut to.problems));
                (None, master)
            }
            LowerLink::Required | LowerLink::Optional => {
                let (parent, field, master) = match self.has_parent {
                    true => (self.parent, "parent", self.master),
                    false => (self.master, "master", None),
                };
                if parent.is_none() && lower_link == LowerLink::Required {
                    to.problems.invalid(at(field), must_be_set(&needs_parent(&self.link_type.0)));
                }
                let parent = parent.and_then(|parent| parent.read(at(field), &mut to.problems));
                let master = master.and_then(|master| master.read(at("master"), &mut to.problems));
                (parent, master)
            }
        }
    }
}

/// The message for a required field that is not set.
pub(crate) fn must_be_set(why: &str) -> String {
    format!("must be set: {why}")
}

/// The message for a link with a host end but no bridge on the node.
pub(crate) fn needs_master(kind: &str) -> String {
    format!("a {kind} needs a bridge on the node, which is created if it does not exist")
}

/// The message for a link without its lower link.
pub(crate) fn needs_parent(kind: &str) -> String {
    if kind == HostDevice::NAME {
        return format!("a {kind} needs the Uplink of its NIC");
    }
    format!("{} {kind} needs a lower link: another interface of the pod, or an Uplink", article(kind))
}

/// The message for a link without a required field.
fn needs_field(kind: &str, field: &str) -> String {
    let what = match field {
        "vlanID" => "a VLAN ID, 1 to 4094",
        "vni" => "a VNI, 0 to 16777215",
        "remote" => "a remote endpoint: an IP address, or the name of a pod",
        "local" => "a local endpoint address",
        "table" => "a routing table",
        _ => "it",
    };
    format!("{} {kind} needs {what}", article(kind))
}
