//! Encodes VLAN links.

use knit_model::IfName;
use knit_model::link::{QosMapping, Vlan, VlanProtocol};

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attribute, Attributes, Message};

// if_link.h, IFLA_VLAN_*
const ID: u16 = 1;
const FLAGS: u16 = 2;
const EGRESS_QOS: u16 = 3;
const INGRESS_QOS: u16 = 4;
const PROTOCOL: u16 = 5;
/// `IFLA_VLAN_QOS_MAPPING`, inside both maps.
const QOS_MAPPING: u16 = 1;

// if_vlan.h, VLAN_FLAG_*
const REORDER_HEADER: u32 = 1;
const GVRP: u32 = 2;
const LOOSE_BINDING: u32 = 4;
const MVRP: u32 = 8;

/// The EtherTypes of the tags.
pub(super) const PROTOCOLS: [(VlanProtocol, u16); 2] =
    [(VlanProtocol::Dot1q, 0x8100), (VlanProtocol::Dot1ad, 0x88a8)];

impl WireKind for Vlan {
    const CONFIG: &'static str = "CONFIG_VLAN_8021Q";
    const PROBES: &'static [Probe] = &[Probe::link("vlan", "VLANs", Self::CONFIG, |scratch| {
        scratch.link_on_parent("vlan", |data| {
            data.put_u16(ID, 100);
        })
    })
    .module("8021q")
    .needed_for("tagged networks on an uplink or an interface")];
    /// The kernel rejects a second link with the same VLAN id on the same parent, even while the first is down.
    const ALLOWS_DEFERRED_DELETE: bool = false;

    fn conflicting_link(&self) -> Option<String> {
        let parent = self.parent.as_ref().map_or("its parent", |parent| parent.as_str());
        Some(format!("VLAN {} on {parent}", self.id))
    }

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(id) = selection.select("id", Some(self.id)) {
            data.put_u16(ID, id);
        }
        let protocol = selection.select("protocol", self.protocol);
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| Some(*name) == protocol) {
            data.put_be16(PROTOCOL, *number);
        }
        let (mut on, mut stated) = (0, 0);
        for (field, value, bit) in [
            ("reorder_header", self.reorder_header, REORDER_HEADER),
            ("gvrp", self.gvrp, GVRP),
            ("loose_binding", self.loose_binding, LOOSE_BINDING),
            ("mvrp", self.mvrp, MVRP),
        ] {
            if let Some(value) = selection.select(field, value) {
                stated |= bit;
                on |= if value { bit } else { 0 };
            }
        }
        if stated != 0 {
            data.put_bytes(FLAGS, &pair(on, stated));
        }
        for (kind, field, map) in
            [(INGRESS_QOS, "ingress_qos", &self.ingress_qos), (EGRESS_QOS, "egress_qos", &self.egress_qos)]
        {
            if let Some(map) = selection.select(field, map.as_deref()) {
                put_map(data, kind, map, &removed_priorities(selection, field, map));
            }
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let number = data.first(PROTOCOL).and_then(|protocol| protocol.be16());
        let flags = data.first(FLAGS).and_then(|flags| split_pair(&flags)).map(|(flags, _)| flags);
        let is_on = |bit: u32| flags.map(|flags| flags & bit != 0);
        let id = data.first(ID).and_then(|id| id.u16());
        // The kernel omits an empty map.
        let map = |kind| id.map(|_| data.first(kind).map(read_map).unwrap_or_default());
        Self {
            parent,
            id: id.unwrap_or_default(),
            protocol: PROTOCOLS.iter().find(|(_, other)| Some(*other) == number).map(|(name, _)| *name),
            reorder_header: is_on(REORDER_HEADER),
            gvrp: is_on(GVRP),
            mvrp: is_on(MVRP),
            loose_binding: is_on(LOOSE_BINDING),
            ingress_qos: map(INGRESS_QOS),
            egress_qos: map(EGRESS_QOS),
        }
    }
}

/// Priorities whose mapping a change removes. The kernel keeps mappings that are not mentioned.
fn removed_priorities(selection: FieldSelection<'_>, field: &str, map: &[QosMapping]) -> Vec<u32> {
    let FieldSelection::Changed(changes) = selection else { return Vec::new() };
    let before = changes.iter().find(|change| change.field == field).map(|change| change.from.clone());
    let before: Vec<QosMapping> =
        before.and_then(|before| serde_json::from_value(before).ok()).unwrap_or_default();
    let stays = |priority: &u32| map.iter().any(|(from, _)| from == priority);
    before.into_iter().map(|(from, _)| from).filter(|priority| !stays(priority)).collect()
}

fn put_map(data: &mut Message, kind: u16, map: &[QosMapping], removed: &[u32]) {
    let all = map.iter().copied().chain(removed.iter().map(|priority| (*priority, 0)));
    data.nest(kind, |list| {
        for (from, to) in all {
            list.put_bytes(QOS_MAPPING, &pair(from, to));
        }
    });
}

fn read_map(map: Attribute<'_>) -> Vec<QosMapping> {
    let mappings = map.nested().filter(|mapping| mapping.kind == QOS_MAPPING);
    let mut map: Vec<QosMapping> = mappings.filter_map(|mapping| split_pair(&mapping)).collect();
    map.sort_unstable();
    map
}

/// The layout of `struct ifla_vlan_flags` and `struct ifla_vlan_qos_mapping`.
fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

fn split_pair(attribute: &Attribute<'_>) -> Option<(u32, u32)> {
    let (first, second) = attribute.value.split_at_checked(4)?;
    Some((u32::from_ne_bytes(first.try_into().ok()?), u32::from_ne_bytes(second.try_into().ok()?)))
}
