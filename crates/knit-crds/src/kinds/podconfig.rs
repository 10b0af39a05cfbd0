//! PodConfig: interfaces in the pods of a namespace, in the words of the first predecessor.

mod tagged;

use knit_model::provenance::Dialect;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use tagged::TaggedInterface;

use super::Kind;
use crate::fields::{CidrList, DeviceName, NamePrefix, ObjectName};
use crate::interface::InterfaceFields;
use crate::link_type::{LinkDetails, LinkType, ListedLink};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::Translator;

/// Interfaces for the pods that are labelled `podconfig: <name of this object>`, or that `selector` matches.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podconfig.opdev.io",
    version = "v1alpha1",
    kind = "PodConfig",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Interfaces that are added to running pods, and taken away with the object, the entry, the label or the pod.",
    shortname = "pcfg"
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&crate::rules::TAGGED)))]
pub struct PodConfigSpec {
    /// Which pods of this namespace. Default: those with the label `podconfig: <name of this object>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// Interfaces for each pod, at most 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["name"],
    ))]
    pub network_attachments: Vec<NetworkAttachment>,
    /// Tagged interfaces for each pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["parentInterfaceName", "vlanID"],
    ))]
    pub vlans: Vec<TaggedInterface>,
    /// A Deployment of two unprivileged pods to try this object with. It is made in a cluster only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_deployment: Option<SampleDeployment>,
}

/// One interface for each pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::link_type::rules(true)))]
pub struct NetworkAttachment {
    /// The beginning of the interface's name, at most 7 bytes; the number of the pod's sandbox follows. `pc0` becomes
    /// `pc02841804` in the pod and `hpc02841804` on the node. A new name is a new interface.
    pub name: NamePrefix,
    /// The kind of the interface: `veth`, `macvlan`, `ipvlan`, `vlan`, `host-device`, `dummy`, `tap`, `vrf`, `vxlan`,
    /// `geneve`, `gre`, `gretap`, `ipip`, `sit`, `ip6tnl` or `wireguard`. Another kind makes the interface again. Default: `veth`.
    #[serde(default)]
    pub link_type: LinkType,
    /// What the interface sits on: for `macvlan`, `ipvlan`, `vlan` and tunnels another interface of the pod, or an Uplink.
    /// A `veth` sits on nothing, its parent is the interface itself. A new parent makes the interface again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// For `veth`: the bridge on the node that the node's end is a port of. It is made if it is missing, with the first
    /// address of `cidr`, and goes when nothing uses it any more. For others: a bridge in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<DeviceName>,
    /// The address range of the network, such as `192.168.100.0/24`, or several separated by commas. The bridge has the
    /// first address of each, pods the following ones. Default: no address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<CidrList>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub details: LinkDetails,
}

/// A Deployment to try things with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.create) || !self.create || has(self.name)",
    "a Deployment needs a name",
)])))]
pub struct SampleDeployment {
    /// Whether to make it. It goes away when this becomes false. Default: false.
    pub create: bool,
    /// The Deployment's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ObjectName>,
}

impl Kind for PodConfig {
    const POD_LABEL: Option<&'static str> = Some("podconfig");

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods("podconfig", spec.selector.as_ref());
        let carriers = tagged::carriers(spec, to);
        let count = spec.network_attachments.len() + spec.vlans.len() + carriers.len();
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
                passes: tagged::through(spec, &entry.name),
                fields: InterfaceFields { cidr: entry.cidr.clone(), ..InterfaceFields::default() },
            };
            link.declare(pods.clone(), to);
        }
        for (path, entry) in carriers {
            entry.declare_carrier(
                path,
                tagged::through(spec, &entry.parent_interface_name),
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
            to.problems.invalid("spec.sampleDeployment.name", "a Deployment needs a name");
        }
        // Only a cluster has Deployments; a file is read where there may be none.
        if let (true, Some(name), Dialect::File) = (sample.create, valid, to.dialect()) {
            let message =
                format!("no Deployment {name} is made: that needs a cluster, pods here are sandboxes");
            to.warn("spec.sampleDeployment", &message);
        }
    }
}
