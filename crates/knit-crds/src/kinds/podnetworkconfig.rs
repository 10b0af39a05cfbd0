//! PodNetworkConfig: interfaces in the pods of a namespace, in the words of both generations of the second predecessor.

use knit_model::IfName;
use knit_model::link::VlanSet;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, PrimaryFields};
use crate::fields::{AliasText, CidrList, DeviceName, HardwareAddr, Mtu, NamePrefix};
use crate::interface::InterfaceFields;
use crate::link_type::{LinkDetails, LinkType, ListedLink};
use crate::selector::PodSelector;
use crate::status::PodNetworkConfigStatus;
use crate::translate::Translator;

/// Interfaces for the pods that are labelled `podNetworkConfig: <name of this object>`, or that `selector` matches.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodNetworkConfig",
    namespaced,
    status = "PodNetworkConfigStatus",
    derive = "PartialEq",
    doc = "Changes of the first interface of running pods, and interfaces that are added to them. All of it is taken back with the object, the entry, the label or the pod.",
    shortname = "pnc"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("(has(self.links) ? size(self.links) : 0) + (has(self.additionalNetworks) ? size(self.additionalNetworks) : 0) <= 32",
     "one object makes at most 32 interfaces in a pod"),
    ("!has(self.links) || !has(self.additionalNetworks) \
      || self.links.all(l, self.additionalNetworks.all(n, n.networkName != l.namePrefix))",
     "the same interface is asked for in `links` and in `additionalNetworks`"),
])))]
pub struct PodNetworkConfigSpec {
    /// Which pods of this namespace. Default: those with the label `podNetworkConfig: <name of this object>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// Changes of the pod's first interface, which the main CNI plugin made. The old values come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth0: Option<PrimaryFields>,
    /// Interfaces for each pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["namePrefix"],
    ))]
    pub links: Vec<LinkEntry>,
    /// Interfaces for each pod, by the network that they are for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["networkName"],
    ))]
    pub additional_networks: Vec<AdditionalNetwork>,
}

/// One interface for each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(true)))]
pub struct LinkEntry {
    /// The beginning of the interface's name, at most 7 bytes; the number of the pod's sandbox follows. A new prefix
    /// is a new interface.
    pub name_prefix: NamePrefix,
    /// The kind of the interface: `veth`, `macvlan`, `ipvlan`, `vlan`, `host-device`, `dummy`, `tap`, `vrf`, `vxlan`,
    /// `geneve`, `gre`, `gretap`, `ipip`, `sit`, `ip6tnl` or `wireguard`. Another kind makes the interface again. Default: `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// What the interface sits on: for `macvlan`, `ipvlan`, `vlan` and tunnels another interface of the pod, or an Uplink.
    /// A `veth` sits on nothing. A new parent makes the interface again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// For `veth`: the bridge on the node that the node's end is a port of, made if it is missing. For others: a
    /// bridge in the pod. A new master moves the port, the interface stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// The largest packet, in bytes, 68 to 65535. It changes on the living interface. Default: the kernel's (usually 1500).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// The address range of the network, such as `192.168.100.0/24`, or several separated by commas. The bridge has the
    /// first address of each, pods the following ones. Default: no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub details: LinkDetails,
}

/// One network for each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(false)))]
pub struct AdditionalNetwork {
    /// The beginning of the interface's name, at most 7 bytes; the number of the pod's sandbox follows. A new name is a
    /// new interface.
    pub network_name: NamePrefix,
    /// What the network is for. It becomes the interface's alias unless `alias` is stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_description: Option<AliasText>,
    /// The kind of the interface: `veth`, `macvlan`, `ipvlan`, `vlan`, `host-device`, `dummy`, `tap`, `vrf`, `vxlan`,
    /// `geneve`, `gre`, `gretap`, `ipip`, `sit`, `ip6tnl` or `wireguard`. Another kind makes the interface again. Default: `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// For `veth`: the bridge on the node that the node's end is a port of, made if it is missing. For
    /// `macvlan`, `ipvlan`, `vlan` and tunnels: what it sits on, another interface of the pod or an Uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// The largest packet, in bytes, 68 to 65535. It changes on the living interface. Default: the kernel's (usually 1500).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// The hardware address, such as `02:00:00:00:00:01`. Every pod that matches gets the same one, so it makes sense
    /// with one pod. Default: a stable one for each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// A text for people, at most 255 bytes, as `ip link show` prints it. Default: `networkDescription`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// The address range of the network, such as `192.168.100.0/24`, or several separated by commas. The bridge has the
    /// first address of each, pods the following ones. Default: no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub details: LinkDetails,
}

impl LinkEntry {
    fn listed(&self, path: String) -> ListedLink<'_> {
        let fields =
            InterfaceFields { cidr: self.cidr.clone(), mtu: self.mtu.clone(), ..InterfaceFields::default() };
        ListedLink {
            path,
            name_field: "namePrefix",
            name: &self.name_prefix,
            has_parent: true,
            link_type: &self.link_type,
            parent: self.parent.as_ref(),
            master: self.master.as_ref(),
            details: &self.details,
            passes: VlanSet::default(),
            fields,
        }
    }
}

impl AdditionalNetwork {
    fn listed(&self, path: String) -> ListedLink<'_> {
        let fields = InterfaceFields {
            cidr: self.cidr.clone(),
            mtu: self.mtu.clone(),
            hardware_addr: self.hardware_addr.clone(),
            alias: self.alias.clone().or_else(|| self.network_description.clone()),
            ..InterfaceFields::default()
        };
        ListedLink {
            path,
            name_field: "networkName",
            name: &self.network_name,
            has_parent: false,
            link_type: &self.link_type,
            parent: None,
            master: self.master.as_ref(),
            details: &self.details,
            passes: VlanSet::default(),
            fields,
        }
    }
}

impl Kind for PodNetworkConfig {
    const POD_LABEL: Option<&'static str> = Some("podNetworkConfig");

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods("podNetworkConfig", spec.selector.as_ref());
        to.count_interfaces("spec", spec.links.len() + spec.additional_networks.len());
        if let Some(eth0) = &spec.eth0 {
            let name = IfName::new("eth0").expect("a valid name");
            eth0.declare("spec.eth0", name, pods.clone(), to);
        }
        for (index, entry) in spec.links.iter().enumerate() {
            entry.listed(format!("spec.links[{index}]")).declare(pods.clone(), to);
        }
        for (index, entry) in spec.additional_networks.iter().enumerate() {
            entry.listed(format!("spec.additionalNetworks[{index}]")).declare(pods.clone(), to);
        }
    }
}
