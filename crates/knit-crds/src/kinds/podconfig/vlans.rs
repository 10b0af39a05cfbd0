//! `vlans` of a PodConfig: VLAN interfaces on a bridge of the node.
//!
//! Each is a VLAN interface on another interface of the pod, the lower link, whose host end is a port of the bridge and
//! a member of the VLAN. The lower link is an attachment of the same object, or a veth pair that is created for it.

use knit_model::IfName;
use knit_model::intent::{NameRule, Selector};
use knit_model::link::{Kind as LinkKind, VlanSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NetworkAttachment, PodConfigSpec};
use crate::fields::{CidrList, DeviceName, InterfaceName, NamePrefix, VlanId};
use crate::interface::InterfaceFields;
use crate::kinds::plain_vlan;
use crate::link_type::{LinkDetails, LinkType, ListedLink};
use crate::translate::{InterfaceEntry, Translator, article};

/// VlanAttachment describes one VLAN interface of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VlanAttachment {
    /// parentInterfaceName is the lower link in the pod, by the `name` of a `veth` of networkAttachments. If there is
    /// none, a veth pair of that name without an address is created.
    pub parent_interface_name: NamePrefix,
    /// vlanID is the VLAN ID, 1 to 4094. Changing it replaces the interface.
    #[serde(rename = "vlanID")]
    pub vlan_id: VlanId,
    /// bridgeName is the bridge on the node that the lower link is a port of. It is created if it does not exist. If it
    /// filters VLANs, the port becomes a tagged member of this VLAN.
    pub bridge_name: InterfaceName,
    /// name is the prefix of the interface name, 1 to 7 bytes. The pod's sandbox number is appended. Defaults to `v`
    /// and the VLAN ID: `v100` becomes `v1002841804`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NamePrefix>,
    /// cidr is the subnet of the VLAN, such as `192.168.100.0/24`, or up to 4 subnets separated by commas. Defaults to
    /// no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
}

/// The VLANs that an interface must carry. Invalid IDs are reported where they are read.
pub(super) fn vlans_of(spec: &PodConfigSpec, name: &NamePrefix) -> VlanSet {
    let attached = spec.vlans.iter().filter(|entry| entry.parent_interface_name == *name);
    let ids = attached.filter_map(|entry| u16::try_from(entry.vlan_id.0).ok());
    VlanSet::new(ids.filter(|id| VlanSet::all().contains(*id)).map(|id| (id, id)))
}

/// The entries whose lower link must be created, each with its path; the first entry of each lower link.
pub(super) fn lower_links<'a>(
    spec: &'a PodConfigSpec,
    to: &mut Translator,
) -> Vec<(String, &'a VlanAttachment)> {
    let mut lower_links: Vec<(String, &VlanAttachment)> = Vec::new();
    for (index, entry) in spec.vlans.iter().enumerate() {
        let path = format!("spec.vlans[{index}]");
        let lower_link = &entry.parent_interface_name;
        let attachments = spec.network_attachments.iter().enumerate();
        if let Some((at, attachment)) =
            attachments.clone().find(|(_, attachment)| attachment.name == *lower_link)
        {
            entry.check_attachment(&path, attachment, &format!("spec.networkAttachments[{at}]"), to);
            continue;
        }
        match lower_links.iter().find(|(_, first)| first.parent_interface_name == *lower_link) {
            Some((first, other)) if other.bridge_name != entry.bridge_name => {
                let (bridge, here) = (&other.bridge_name.0, entry.bridge_name.0.escape_debug());
                let message = format!(
                    "{} must be a port of one bridge: {first} has {}, got {here}",
                    lower_link.0.escape_debug(),
                    bridge.escape_debug()
                );
                to.problems.invalid(format!("{path}.bridgeName"), message);
            }
            Some(_) => {}
            None => lower_links.push((path, entry)),
        }
    }
    lower_links
}

impl VlanAttachment {
    fn check_attachment(&self, path: &str, attachment: &NetworkAttachment, at: &str, to: &mut Translator) {
        let (name, kind) = (self.parent_interface_name.0.escape_debug(), &attachment.link_type.0);
        if kind != "veth" {
            let message = format!(
                "must name a veth: {name} is {} {}, which cannot be a port of a bridge of the node",
                article(kind),
                kind.escape_debug()
            );
            to.problems.invalid(format!("{path}.parentInterfaceName"), message);
            return;
        }
        if let Some(master) = attachment.master.as_ref().filter(|master| master.0 != self.bridge_name.0) {
            let message = format!(
                "must be {}, the {at}.master of {name}, got {}",
                master.0.escape_debug(),
                self.bridge_name.0.escape_debug()
            );
            to.problems.invalid(format!("{path}.bridgeName"), message);
        }
    }

    /// Declares the lower link.
    pub(super) fn declare_lower_link(
        &self,
        path: String,
        allowed_vlans: VlanSet,
        pods: Selector,
        to: &mut Translator,
    ) {
        // An invalid bridge name is reported once, for the VLAN interface.
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
            allowed_vlans,
            fields: InterfaceFields::default(),
        };
        link.declare(pods, to);
    }

    /// Declares the VLAN interface.
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
        to.interface(InterfaceEntry {
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
