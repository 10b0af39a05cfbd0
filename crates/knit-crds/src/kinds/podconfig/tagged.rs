//! `vlans` of a PodConfig: tagged interfaces on a bridge of the node.
//!
//! Such an interface is a VLAN on another interface of the pod, whose end on the node is a port of the bridge and lets the
//! tag through. The other interface is an attachment of the same object, or a pair that is made for it.

use knit_model::IfName;
use knit_model::intent::{NameRule, Selector};
use knit_model::link::{Kind as LinkKind, VlanSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NetworkAttachment, PodConfigSpec};
use crate::fields::{CidrList, DeviceName, InterfaceName, NamePrefix, VlanId};
use crate::interface::InterfaceFields;
use crate::link_type::{LinkDetails, LinkType, ListedLink, plain_vlan};
use crate::translate::{Entry, Translator, article};

/// One tagged interface for each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaggedInterface {
    /// The interface of the pod that carries it, by the `name` of a `veth` of `networkAttachments`. If there is none of
    /// that name, a pair of that name is made, without an address.
    pub parent_interface_name: NamePrefix,
    /// The number of the VLAN, 1 to 4094. Another number is another interface.
    #[serde(rename = "vlanID")]
    pub vlan_id: VlanId,
    /// The bridge on the node that the carrying interface is a port of; it is made if it is missing. A bridge that filters
    /// VLANs lets this one through there.
    pub bridge_name: InterfaceName,
    /// The beginning of the interface's name, at most 7 bytes; the number of the pod's sandbox follows. Default: `v` and the
    /// VLAN, so that `v100` becomes `v1002841804`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NamePrefix>,
    /// The address range of the VLAN, such as `192.168.100.0/24`, or several separated by commas. Default: no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
}

/// The VLANs that an interface has to carry. Numbers that are none are told of where they are read.
pub(super) fn through(spec: &PodConfigSpec, name: &NamePrefix) -> VlanSet {
    let on_it = spec.vlans.iter().filter(|entry| entry.parent_interface_name == *name);
    let ids = on_it.filter_map(|entry| u16::try_from(entry.vlan_id.0).ok());
    VlanSet::new(ids.filter(|id| VlanSet::all().contains(*id)).map(|id| (id, id)))
}

/// The entries whose carrying interface has to be made, each with its path; of several on the same one, the first.
pub(super) fn carriers<'a>(
    spec: &'a PodConfigSpec,
    to: &mut Translator,
) -> Vec<(String, &'a TaggedInterface)> {
    let mut carriers: Vec<(String, &TaggedInterface)> = Vec::new();
    for (index, entry) in spec.vlans.iter().enumerate() {
        let path = format!("spec.vlans[{index}]");
        let carrier = &entry.parent_interface_name;
        let attachments = spec.network_attachments.iter().enumerate();
        if let Some((at, attachment)) =
            attachments.clone().find(|(_, attachment)| attachment.name == *carrier)
        {
            entry.check_attachment(&path, attachment, &format!("spec.networkAttachments[{at}]"), to);
            continue;
        }
        match carriers.iter().find(|(_, first)| first.parent_interface_name == *carrier) {
            Some((first, other)) if other.bridge_name != entry.bridge_name => {
                let (bridge, here) = (&other.bridge_name.0, entry.bridge_name.0.escape_debug());
                let message = format!(
                    "{} is a port of one bridge: {first} says {}, not {here}",
                    carrier.0.escape_debug(),
                    bridge.escape_debug()
                );
                to.problems.invalid(format!("{path}.bridgeName"), message);
            }
            Some(_) => {}
            None => carriers.push((path, entry)),
        }
    }
    carriers
}

impl TaggedInterface {
    fn check_attachment(&self, path: &str, carrier: &NetworkAttachment, at: &str, to: &mut Translator) {
        let (name, kind) = (self.parent_interface_name.0.escape_debug(), &carrier.link_type.0);
        if kind != "veth" {
            let message = format!(
                "{name} is {} {}, which is no port of a bridge of the node: only a veth is",
                article(kind),
                kind.escape_debug()
            );
            to.problems.invalid(format!("{path}.parentInterfaceName"), message);
            return;
        }
        if let Some(master) = carrier.master.as_ref().filter(|master| master.0 != self.bridge_name.0) {
            let message = format!(
                "{name} is a port of {}, as {at}.master says, not of {}",
                master.0.escape_debug(),
                self.bridge_name.0.escape_debug()
            );
            to.problems.invalid(format!("{path}.bridgeName"), message);
        }
    }

    /// Asks for the interface that carries it.
    pub(super) fn declare_carrier(&self, path: String, passes: VlanSet, pods: Selector, to: &mut Translator) {
        // What is wrong with the bridge is said once, of the tagged interface.
        if IfName::new(self.bridge_name.0.as_str()).is_err() {
            return;
        }
        let master = DeviceName(self.bridge_name.0.clone());
        let link = ListedLink {
            path,
            name_field: "parentInterfaceName",
            name: &self.parent_interface_name,
            has_parent: true,
            link_type: &LinkType::default(),
            parent: None,
            master: Some(&master),
            details: &LinkDetails::default(),
            passes,
            fields: InterfaceFields::default(),
        };
        link.declare(pods, to);
    }

    /// Asks for the tagged interface.
    pub(super) fn declare(&self, path: &str, pods: Selector, to: &mut Translator) {
        let at = |field: &str| format!("{path}.{field}");
        self.bridge_name.read(at("bridgeName"), &mut to.problems);
        let Some(id) = self.vlan_id.read(at("vlanID"), &mut to.problems) else { return };
        let (prefix, field) = match &self.name {
            Some(name) => (name.clone(), "name"),
            None => (NamePrefix(format!("v{id}")), "vlanID"),
        };
        let name =
            prefix.read(at(field), &mut to.problems).map(|prefix| (NameRule::Prefix(prefix), at(field)));
        to.interface(Entry {
            path,
            name,
            pods,
            kind: LinkKind::Vlan(plain_vlan(id)),
            parent: Some(self.parent_interface_name.0.clone()),
            master: None,
            fields: &InterfaceFields { cidr: self.cidr.clone(), ..InterfaceFields::default() },
        });
    }
}
