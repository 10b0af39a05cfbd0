//! vlan: one VLAN of a parent link.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_VLAN};
use crate::name::IfName;
use crate::problem::Problems;

/// A mapping of one priority to another.
pub type QosMapping = (u32, u32);

/// VLAN-specific fields. All but the first three can be changed on an existing link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// Parent link, in the parent scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// VLAN ID, 1 to 4094.
    pub id: u16,
    /// Tag protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<VlanProtocol>,
    /// Whether the tag is removed from received packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_header: Option<bool>,
    /// GVRP registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gvrp: Option<bool>,
    /// MVRP registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mvrp: Option<bool>,
    /// Whether it stays up while its parent is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loose_binding: Option<bool>,
    /// 802.1p priority to `skb` priority, sorted. Unlisted priorities map to 0, so 0 is never a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_qos: Option<Vec<QosMapping>>,
    /// `skb` priority to 802.1p priority, sorted. Unlisted priorities map to 0, so 0 is never a target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_qos: Option<Vec<QosMapping>>,
}

/// VLAN tag protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// The customer tag.
    #[serde(rename = "802.1Q")]
    Dot1q,
    /// The outer service tag (QinQ).
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// Largest 802.1p priority.
const MAX_PRIORITY: u32 = 7;

impl Vlan {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            parent: Some(IfName::new("up0").expect("a valid name")),
            id: 100,
            protocol: Some(VlanProtocol::Dot1ad),
            reorder_header: Some(false),
            gvrp: Some(true),
            mvrp: Some(false),
            loose_binding: Some(true),
            ingress_qos: Some(vec![(1, 6), (7, 2)]),
            egress_qos: Some(vec![(2, 7), (65_536, 1)]),
        }
    }
}

impl LinkKind for Vlan {
    const NAME: &'static str = "vlan";
    const IMMUTABLE: &'static [&'static str] = &["parent", "id", "protocol"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn samples() -> Vec<Self> {
        vec![Self::full_for_tests()]
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "a VLAN needs a parent link");
        }
        if !(1..=MAX_VLAN).contains(&self.id) {
            problems.invalid(
                format!("{path}.id"),
                format!("VLAN {} is outside 1 to {MAX_VLAN}: 0 and 4095 are reserved", self.id),
            );
        }
        let tags = |map: &Option<Vec<QosMapping>>, tag: fn(&QosMapping) -> u32| {
            map.iter().flatten().map(tag).find(|priority| *priority > MAX_PRIORITY)
        };
        for (field, wrong) in [
            ("ingressQos", tags(&self.ingress_qos, |(from, _)| *from)),
            ("egressQos", tags(&self.egress_qos, |(_, to)| *to)),
        ] {
            if let Some(priority) = wrong {
                problems.invalid(
                    format!("{path}.{field}"),
                    format!("priority {priority} is outside 0 to {MAX_PRIORITY}"),
                );
            }
        }
    }
}
