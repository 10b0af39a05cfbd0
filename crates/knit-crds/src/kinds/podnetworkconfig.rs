//! PodNetworkConfig: interfaces for the pods of a namespace, in both generations of the pod-network-operator API.

use knit_model::IfName;
use knit_model::link::VlanSet;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PrimaryFields, ResourceKind};
use crate::fields::{AliasText, CidrList, DeviceName, HardwareAddr, Mtu, NamePrefix};
use crate::interface::InterfaceFields;
use crate::link_type::{LinkDetails, LinkType, ListedLink};
use crate::selector::PodSelector;
use crate::status::PodNetworkConfigStatus;
use crate::translate::Translator;

/// PodNetworkConfigSpec selects pods by the label `podNetworkConfig: <object name>` or by `selector`, and lists their
/// interfaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodNetworkConfig",
    namespaced,
    status = "PodNetworkConfigStatus",
    derive = "PartialEq",
    doc = "PodNetworkConfig changes the primary interface of running pods and adds interfaces to them. All changes are rolled back with the object, the list entry, the label or the pod.",
    shortname = "pnc"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("(has(self.links) ? size(self.links) : 0) + (has(self.additionalNetworks) ? size(self.additionalNetworks) : 0) <= 32",
     "links and additionalNetworks must have at most 32 entries together"),
    ("!has(self.links) || !has(self.additionalNetworks) \
      || self.links.all(l, self.additionalNetworks.all(n, n.networkName != l.namePrefix))",
     "namePrefix of links and networkName of additionalNetworks must be unique"),
])))]
pub struct PodNetworkConfigSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podNetworkConfig: <object name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// eth0 changes the primary interface of the pod, which the primary CNI plugin created. The original values are
    /// restored when the change is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eth0: Option<PrimaryFields>,
    /// links lists the interfaces of each pod, at most 32 together with additionalNetworks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["namePrefix"],
    ))]
    pub links: Vec<LinkEntry>,
    /// additionalNetworks lists the interfaces of each pod by network, at most 32 together with links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["networkName"],
    ))]
    pub additional_networks: Vec<AdditionalNetwork>,
}

/// LinkEntry describes one interface of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(true)))]
pub struct LinkEntry {
    /// namePrefix is the prefix of the interface name, 1 to 7 bytes. The pod's sandbox number is appended. Changing it
    /// replaces the interface.
    pub name_prefix: NamePrefix,
    /// linkType is the type of the interface, such as `veth` or `macvlan`: the kind of object that describes it alone, or
    /// one of its forms. Changing it replaces the interface. Defaults to `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// parent is the lower link of a `macvlan`, `ipvlan`, `vlan` or tunnel: another interface of the pod, or an Uplink.
    /// A `veth` has no lower link. Changing it replaces the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// master is, for a `veth`, the bridge on the node that the host end is a port of, created if it does not exist.
    /// For other types it is a bridge in the pod. Changing it moves the port and keeps the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// mtu is the MTU in bytes, 68 to 65535. It is updated in place. Defaults to the kernel's (usually 1500).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// cidr is the subnet of the network, such as `192.168.100.0/24`, or up to 4 subnets separated by commas. The
    /// bridge has the first address of each, pods get the following ones. Defaults to no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub details: LinkDetails,
}

/// AdditionalNetwork describes one network of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(false)))]
pub struct AdditionalNetwork {
    /// networkName is the prefix of the interface name, 1 to 7 bytes. The pod's sandbox number is appended. Changing it
    /// replaces the interface.
    pub network_name: NamePrefix,
    /// networkDescription describes the network. It is the default of alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_description: Option<AliasText>,
    /// linkType is the type of the interface, such as `veth` or `macvlan`: the kind of object that describes it alone, or
    /// one of its forms. Changing it replaces the interface. Defaults to `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// master is, for a `veth`, the bridge on the node that the host end is a port of, created if it does not exist.
    /// For a `macvlan`, `ipvlan`, `vlan` or tunnel it is the lower link: another interface of the pod, or an Uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// mtu is the MTU in bytes, 68 to 65535. It is updated in place. Defaults to the kernel's (usually 1500).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// hardwareAddr is the hardware address, such as `02:00:00:00:00:01`. Every selected pod gets the same address, so
    /// use it with one pod. Defaults to a stable address for each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// alias is the interface alias, at most 255 bytes, as shown by `ip link show`. Defaults to networkDescription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<AliasText>,
    /// cidr is the subnet of the network, such as `192.168.100.0/24`, or up to 4 subnets separated by commas. The
    /// bridge has the first address of each, pods get the following ones. Defaults to no address.
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
            allowed_vlans: VlanSet::default(),
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
            allowed_vlans: VlanSet::default(),
            fields,
        }
    }
}

impl ResourceKind for PodNetworkConfig {
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
