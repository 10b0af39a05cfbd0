//! Bridge: a bridge on the nodes.

use knit_model::Problems;
use knit_model::intent::{BridgeIntent, IntentSpec};
use knit_model::link::{self, Attrs, LinkKind};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind, VlanProtocol};
use crate::fields::{
    AliasText, CidrList, DefaultVlan, HardwareAddr, InterfaceName, LinkGroup, Mtu, QueueLength, Seconds,
    StpPriority,
};
use crate::port::PortVlan;
use crate::status::BridgeStatus;
use crate::translate::Translator;

/// BridgeSpec describes the bridge. All fields except name are updated in place.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Bridge",
    namespaced,
    status = "BridgeStatus",
    derive = "PartialEq",
    doc = "Bridge is a bridge on the nodes that pod interfaces are ports of. It is removed when the object is deleted and no interface uses it.",
    shortname = "kbr"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.vlan) || !has(self.vlanFiltering) || self.vlanFiltering",
    VLAN_NEEDS_FILTERING,
), (
    "!has(self.stp) || !self.stp || !has(self.forwardDelay) || (self.forwardDelay >= 2 && self.forwardDelay <= 30)",
    "forwardDelay must be between 2 and 30 seconds if stp is true",
)])))]
pub struct BridgeSpec {
    /// name is the name of the bridge on the node, 1 to 15 bytes. If another namespace uses the name, the bridge gets a
    /// derived name, which the status reports. Immutable.
    #[schemars(extend("x-kubernetes-validations" = InterfaceName::rules_with(&[("self == oldSelf", NAME_IMMUTABLE)])))]
    pub name: InterfaceName,
    /// cidr is the subnet of the bridge, such as `192.168.100.0/24`, or up to 4 subnets separated by commas. The bridge
    /// has the first address of each. Defaults to no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    /// mtu is the MTU in bytes, 68 to 65535. Defaults to the smallest MTU of the ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// address is the hardware address, such as `02:00:00:00:00:01`. Defaults to a stable derived address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<HardwareAddr>,
    /// txqueuelen is the transmit queue length in packets. Defaults to the kernel's (usually 1000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txqueuelen: Option<QueueLength>,
    /// alias is the interface alias, at most 255 bytes, as shown by `ip link show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// group is the link group. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<LinkGroup>,
    /// promisc enables promiscuous mode. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// allMulticast receives all multicast packets. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_multicast: Option<bool>,
    /// multicast enables multicast. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// arp enables ARP. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arp: Option<bool>,
    /// stp enables the spanning tree protocol. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stp: Option<bool>,
    /// forwardDelay is the time in seconds before a new port forwards, 2 to 30 while stp is true. Defaults to 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_delay: Option<Seconds>,
    /// ageing is the lifetime of learned FDB entries in seconds. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Seconds>,
    /// priority is the bridge priority of the spanning tree protocol, 0 to 65535. Defaults to 32768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<StpPriority>,
    /// vlanFiltering enables VLAN filtering. Defaults to true while a port sets its VLANs (such as `vlan` of a Veth),
    /// otherwise to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_filtering: Option<bool>,
    /// defaultPvid is the VLAN of ports that set no VLANs, 0 to 4094. 0 is none. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_pvid: Option<DefaultVlan>,
    /// vlanProtocol is the tag protocol: `802.1Q`, or `802.1ad` for the outer tag of QinQ. Defaults to `802.1Q`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_protocol: Option<VlanProtocol>,
    /// vlan is the VLAN membership of the bridge itself, which determines the VLAN of its addresses. Defaults to access
    /// to defaultPvid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<PortVlan>,
    /// multicastSnooping forwards multicast only to ports with a listener (IGMP and MLD snooping). Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast_snooping: Option<bool>,
}

const VLAN_NEEDS_FILTERING: &str = "vlan must be unset if vlanFiltering is false";
const NAME_IMMUTABLE: &str = "name is immutable: create another Bridge";

impl ResourceKind for Bridge {
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
            ip_filter: None,
        };
        bridge.check("spec", problems);
        let ranges = spec.cidr.as_ref().map(|cidr| cidr.read("spec.cidr", problems)).unwrap_or_default();
        let port = spec.vlan.as_ref().and_then(|vlan| vlan.read("spec.vlan", problems));
        if port.is_some() && spec.vlan_filtering == Some(false) {
            problems.invalid("spec.vlan", VLAN_NEEDS_FILTERING);
        }
        let Some(name) = spec.name.read("spec.name", problems) else { return };
        to.intent("spec", IntentSpec::Bridge(BridgeIntent { name, ranges, attrs, bridge, port }));
    }

    fn check_change(&self, old: &Self, problems: &mut Problems) {
        if self.spec.name != old.spec.name {
            problems.invalid("spec.name", NAME_IMMUTABLE);
        }
    }
}
