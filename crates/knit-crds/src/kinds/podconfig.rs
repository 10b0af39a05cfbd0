//! PodConfig: interfaces for the pods of a namespace, in the API of the pod-network-operator's first kind.

mod vlans;

use knit_model::provenance::Dialect;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use vlans::VlanAttachment;

use super::ResourceKind;
use crate::fields::{CidrList, DeviceName, NamePrefix, ObjectName};
use crate::interface::InterfaceFields;
use crate::link_type::{LinkDetails, LinkType, ListedLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::Translator;

/// PodConfigSpec selects pods by the label `podconfig: <object name>` or by `selector`, and lists their interfaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podconfig.opdev.io",
    version = "v1alpha1",
    kind = "PodConfig",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "PodConfig adds interfaces to running pods. They are removed with the object, the list entry, the label or the pod.",
    shortname = "pcfg"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&crate::rules::POD_CONFIG)))]
pub struct PodConfigSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podconfig: <object name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// networkAttachments lists the interfaces of each pod, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["name"],
    ))]
    pub network_attachments: Vec<NetworkAttachment>,
    /// vlans lists the VLAN interfaces of each pod, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["parentInterfaceName", "vlanID"],
    ))]
    pub vlans: Vec<VlanAttachment>,
    /// sampleDeployment creates a Deployment of two unprivileged pods to try this object. It is ignored outside a
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_deployment: Option<SampleDeployment>,
}

/// NetworkAttachment describes one interface of each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(true)))]
pub struct NetworkAttachment {
    /// name is the prefix of the interface name, 1 to 7 bytes. The pod's sandbox number is appended: `pc0` becomes
    /// `pc02841804` in the pod and `hpc02841804` on the node. Changing it replaces the interface.
    pub name: NamePrefix,
    /// linkType is the type of the interface, such as `veth` or `macvlan`: the kind of object that describes it alone, or
    /// one of its forms. Changing it replaces the interface. Defaults to `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// parent is the lower link of a `macvlan`, `ipvlan`, `vlan` or tunnel: another interface of the pod, or an Uplink.
    /// A `veth` has no lower link; its parent is the interface itself. Changing it replaces the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// master is, for a `veth`, the bridge on the node that the host end is a port of. It is created if it does not
    /// exist, with the first address of cidr, and removed when it is no longer used. For other types it is a bridge in
    /// the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// cidr is the subnet of the network, such as `192.168.100.0/24`, or up to 4 subnets separated by commas. The
    /// bridge has the first address of each, pods get the following ones. Defaults to no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub details: LinkDetails,
}

/// SampleDeployment describes a Deployment to try a PodConfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.create) || !self.create || has(self.name)",
    "name must be set if create is true",
)])))]
pub struct SampleDeployment {
    /// create creates the Deployment. Setting it to false deletes it. Defaults to false.
    pub create: bool,
    /// name is the name of the Deployment. Required if create is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ObjectName>,
}

impl ResourceKind for PodConfig {
    const POD_LABEL: Option<&'static str> = Some("podconfig");

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods("podconfig", spec.selector.as_ref());
        let lower_links = vlans::lower_links(spec, to);
        let count = spec.network_attachments.len() + spec.vlans.len() + lower_links.len();
        to.count_interfaces("spec.networkAttachments", count);
        for (index, entry) in spec.network_attachments.iter().enumerate() {
            let link = ListedLink {
                path: format!("spec.networkAttachments[{index}]"),
                name_field: "name",
                name: &entry.name,
                has_parent: true,
                link_type: &entry.link_type,
                parent: entry.parent.as_ref(),
                master: entry.master.as_ref(),
                details: &entry.details,
                allowed_vlans: vlans::vlans_of(spec, &entry.name),
                fields: InterfaceFields { cidr: entry.cidr.clone(), ..InterfaceFields::default() },
            };
            link.declare(pods.clone(), to);
        }
        for (path, entry) in lower_links {
            entry.declare_lower_link(
                path,
                vlans::vlans_of(spec, &entry.parent_interface_name),
                pods.clone(),
                to,
            );
        }
        for (index, entry) in spec.vlans.iter().enumerate() {
            entry.declare(&format!("spec.vlans[{index}]"), pods.clone(), to);
        }
        let Some(sample) = &spec.sample_deployment else { return };
        let name = sample.name.as_ref();
        let valid = name.and_then(|name| name.read("spec.sampleDeployment.name", &mut to.problems));
        if sample.create && name.is_none() {
            to.problems.invalid("spec.sampleDeployment.name", "name must be set if create is true");
        }
        // Deployments exist in a cluster only.
        if let (true, Some(name), Dialect::File) = (sample.create, valid, to.dialect()) {
            let message = format!("Deployment {name} is not created outside a cluster");
            to.warn("spec.sampleDeployment", &message);
        }
    }
}
