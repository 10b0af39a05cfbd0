//! vlan: the packets of one VLAN on another link.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_VLAN};
use crate::name::IfName;
use crate::problem::Problems;

/// A priority and what it becomes.
pub type QosMapping = (u32, u32);

/// A VLAN's own fields. All but the first three change on the living link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// The link it sits on, in the scope it is born from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// The number in the tag, 1 to 4094.
    pub id: u16,
    /// The kind of tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<VlanProtocol>,
    /// Whether the tag is taken out of packets before the system sees them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_header: Option<bool>,
    /// Whether it is registered with switches by GVRP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gvrp: Option<bool>,
    /// Whether it is registered with switches by MVRP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mvrp: Option<bool>,
    /// Whether it stays up while its parent is down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loose_binding: Option<bool>,
    /// Tag priority -> the system's, in order. What is not named becomes 0, so 0 is never a target here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_qos: Option<Vec<QosMapping>>,
    /// The system's priority -> the tag's, in order. What is not named becomes 0, so 0 is never a target here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_qos: Option<Vec<QosMapping>>,
}

/// The kind of tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// The usual tag, of one network.
    #[serde(rename = "802.1Q")]
    Dot1q,
    /// The outer tag of two, of a provider (QinQ).
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// A tag has three bits for its priority.
const MAX_PRIORITY: u32 = 7;

impl Vlan {
    /// Every field stated, for tests that go over all fields.
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
    const RECREATE: &'static [&'static str] = &["parent", "id", "protocol"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "a VLAN needs the link it sits on");
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
                    format!("priority {priority} does not fit into a tag, which has 0 to {MAX_PRIORITY}"),
                );
            }
        }
    }
}
