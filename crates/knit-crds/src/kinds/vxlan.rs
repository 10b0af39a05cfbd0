//! Vxlan: an Ethernet overlay over UDP in each selected pod.

use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use knit_model::{IfName, Problems};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{
    DeviceName, InterfaceName, IpText, Port, Remote, RemoteEndpoint, Seconds, Ttl, Vni, same_family,
};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{Details, LinkTypeInfo, LowerLink};
use crate::rules::{MASTER_OR_VRF, MULTICAST_NEEDS_PARENT};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/vxlan";

/// VxlanSpec selects pods by the label `podnetwork.opdev.io/vxlan: <object name>` or by `selector`, and describes the
/// tunnel.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vxlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Vxlan adds a VXLAN tunnel to each selected pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kvx"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct VxlanSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/vxlan: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// vni is the virtual network identifier, 0 to 16777215. Changing it replaces the interface.
    pub vni: Vni,
    /// remote is the remote endpoint: an IP address, a multicast group (requires parent), or the name of a pod in this
    /// namespace, whose address is tracked. It is updated in place. Defaults to none: only entries of the forwarding
    /// database (FDB) are reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// local is the local endpoint address. Changing it replaces the interface. Defaults to the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// port is the UDP destination port. Changing it replaces the interface. Defaults to 4789.
    #[serde(default = "default_port")]
    pub port: Port,
    /// parent is the lower link: another interface of the pod, or an Uplink that allows this namespace. Changing it
    /// replaces the interface. Defaults to none: the pod's routes determine the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// ttl is the TTL of outer packets, 0 to 255. 0 uses the default TTL of the pod. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// learning adds remote endpoints to the forwarding database from received packets. Changing it replaces the
    /// interface. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// ageing is the lifetime of learned FDB entries in seconds. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Seconds>,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

fn default_port() -> Port {
    Port(link::VXLAN_PORT.into())
}

fn rules() -> serde_json::Value {
    rules_with(&[same_family(), MASTER_OR_VRF, MULTICAST_NEEDS_PARENT])
}

impl VxlanSpec {
    fn link(&self, remote: Option<&RemoteEndpoint>, problems: &mut Problems) -> Option<link::Vxlan> {
        let vxlan = link::Vxlan {
            vni: self.vni.read("spec.vni", problems)?,
            remote: remote.and_then(RemoteEndpoint::address),
            local: self.local.as_ref().and_then(|local| local.read("spec.local", problems)),
            port: self.port.read("spec.port", problems),
            parent: None,
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            learning: self.learning,
            fdb_ageing: self.ageing.as_ref().and_then(|ageing| ageing.read("spec.ageing", problems)),
            fdb: None,
            flood: None,
        };
        // The model checks only that a parent is set: the name of an Uplink may be no valid interface name.
        let placeholder = self.parent.as_ref().and_then(|_| IfName::new("parent").ok());
        link::Vxlan { parent: placeholder, ..vxlan.clone() }.check("spec", problems);
        Some(vxlan)
    }
}

impl ResourceKind for Vxlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[LinkTypeInfo::new("vxlan", LowerLink::Optional, listed)
        .needs(&["vni"])
        .takes(&["remote", "local"])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "VNI", type_: "integer", path: ".spec.vni", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let parent = spec.parent.as_ref().and_then(|parent| parent.read("spec.parent", &mut to.problems));
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.as_ref().and_then(|remote| remote.read("spec.remote", &mut to.problems));
        let Some(vxlan) = spec.link(remote.as_ref(), &mut to.problems) else { return };
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Vxlan(vxlan),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(RemoteEndpoint::into_pod));
    }
}

/// The link of a list entry.
fn listed(details: &Details) -> Option<LinkKind> {
    Some(LinkKind::Vxlan(link::Vxlan {
        vni: details.vni?,
        remote: details.remote_address(),
        local: details.local,
        port: Some(link::VXLAN_PORT),
        parent: None,
        ttl: None,
        learning: None,
        fdb_ageing: None,
        fdb: None,
        flood: None,
    }))
}
