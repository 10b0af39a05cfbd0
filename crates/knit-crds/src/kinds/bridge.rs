//! Bridge: a bridge on the nodes.

use knit_model::Problems;
use knit_model::intent::{BridgeIntent, IntentSpec};
use knit_model::link::{self, Attrs, LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind, VlanProtocol};
use crate::fields::{
    AliasText, CidrList, DefaultVlan, HardwareAddr, InterfaceName, LinkGroup, Mtu, QueueLength, Seconds,
    StpPriority,
};
use crate::port::PortVlan;
use crate::status::BridgeStatus;
use crate::translate::Translator;

/// What the bridge should be. All fields but the name change on the living bridge.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Bridge",
    namespaced,
    status = "BridgeStatus",
    derive = "PartialEq",
    doc = "A bridge on the nodes that interfaces of pods are ports of. It goes away when the object is deleted and no interface uses it any more.",
    shortname = "kbr"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.vlan) || !has(self.vlanFiltering) || self.vlanFiltering",
    NO_FILTER,
), (
    "!has(self.stp) || !self.stp || !has(self.forwardDelay) || (self.forwardDelay >= 2 && self.forwardDelay <= 30)",
    "the forward delay is from 2 to 30 seconds while spanning tree is on",
)])))]
pub struct BridgeSpec {
    /// The bridge's name on the node, 1 to 15 bytes. If another namespace has a bridge of that name, this one gets a
    /// derived name and the status says so. It does not change: make another Bridge instead.
    #[schemars(extend("x-kubernetes-validations" = InterfaceName::rules_with(&[("self == oldSelf", NAME_STAYS)])))]
    pub name: InterfaceName,
    /// The address range on the bridge, such as `192.168.100.0/24`, or several separated by commas. The bridge has the
    /// first address of each. Default: the bridge has no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    /// The largest packet, in bytes, 68 to 65535. Default: the smallest MTU of its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// The hardware address, such as `02:00:00:00:00:01`. Default: a stable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<HardwareAddr>,
    /// How many packets may wait. Default: the kernel's (usually 1000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txqueuelen: Option<QueueLength>,
    /// A text for people, at most 255 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// The link group. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<LinkGroup>,
    /// Whether the node takes packets on it that are for others. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// Whether the node takes all multicast packets on it. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_multicast: Option<bool>,
    /// Whether it does multicast at all. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// Whether the node answers and asks by ARP on it. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// Spanning tree. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// Seconds before a new port forwards, 2 to 30 while spanning tree is on. Default: 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_delay: Option<Seconds>,
    /// Seconds after which a silent hardware address is forgotten. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Seconds>,
    /// The bridge's spanning tree priority. Default: 32768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<StpPriority>,
    /// Whether ports are members of VLANs. Default: true while a port says which (`vlan` of a Veth, say), else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// The VLAN of ports that say nothing, 0 to 4094; 0 is none. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pvid: Option<DefaultVlan>,
    /// The kind of tag that the bridge looks at: `802.1Q`, or `802.1ad` for the outer of two tags. Default: `802.1Q`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_protocol: Option<VlanProtocol>,
    /// The VLANs of the node itself, as if it were a port: its address on the bridge is then in this VLAN. Default: access
    /// to `defaultPvid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    /// Whether multicast goes only to ports that asked for it. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast_snooping: Option<bool>,
}

const NO_FILTER: &str = "a bridge with `vlanFiltering: false` has no VLANs";
const NAME_STAYS: &str = "a bridge does not change its name: make another Bridge";

impl Kind for Bridge {
    const COLUMNS: &'static [Column] = &[
        Column { name: "Bridge", type_: "string", path: ".spec.name", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let problems = &mut to.problems;
        let attrs = Attrs {
            mtu: spec.mtu.as_ref().and_then(|mtu| mtu.read("spec.mtu", problems)),
            mac: spec.address.as_ref().and_then(|mac| mac.read("spec.address", problems)),
            txqueuelen: spec.txqueuelen.as_ref().and_then(|length| length.read("spec.txqueuelen", problems)),
            alias: spec.alias.as_ref().map(|alias| alias.0.clone()),
            group: spec.group.as_ref().and_then(|group| group.read("spec.group", problems)),
            up: None,
            promisc: spec.promisc,
            allmulticast: spec.all_multicast,
            multicast: spec.multicast,
            arp: spec.arp,
            master: None,
            vlans: None,
            hairpin: None,
            limit: None,
        };
        attrs.check("spec", problems);
        let seconds = |field: &Option<Seconds>, name, problems: &mut Problems| {
            field.as_ref().and_then(|seconds| seconds.read(name, problems))
        };
        let bridge = link::Bridge {
            stp: spec.stp,
            forward_delay: seconds(&spec.forward_delay, "spec.forwardDelay", problems),
            ageing: seconds(&spec.ageing, "spec.ageing", problems),
            priority: spec.priority.as_ref().and_then(|priority| priority.read("spec.priority", problems)),
            vlan_filtering: spec.vlan_filtering,
            default_pvid: spec.default_pvid.as_ref().and_then(|vlan| vlan.read("spec.defaultPvid", problems)),
            vlan_protocol: spec.vlan_protocol.map(VlanProtocol::model),
            multicast_snooping: spec.multicast_snooping,
        };
        bridge.check("spec", problems);
        let ranges = spec.cidr.as_ref().map(|cidr| cidr.read("spec.cidr", problems)).unwrap_or_default();
        let port = spec.vlan.as_ref().and_then(|vlan| vlan.read("spec.vlan", problems));
        if port.is_some() && spec.vlan_filtering == Some(false) {
            problems.invalid("spec.vlan", NO_FILTER);
        }
        let Some(name) = spec.name.read("spec.name", problems) else { return };
        to.want("spec", IntentSpec::Bridge(BridgeIntent { name, ranges, attrs, bridge, port }));
    }

    fn check_change(&self, old: &Self, problems: &mut Problems) {
        if self.spec.name != old.spec.name {
            problems.invalid("spec.name", NAME_STAYS);
        }
    }
}
