//! Vxlan: an Ethernet network in UDP packets.

use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use knit_model::{IfName, Problems};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{
    DeviceName, FarEnd, InterfaceName, IpText, NamePrefix, Port, Remote, Seconds, Ttl, Vni, same_family,
};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::{MULTICAST_NEEDS_PARENT, PORT_OF_ONE};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/vxlan";

/// A VXLAN for each of the pods that are labelled `podnetwork.opdev.io/vxlan: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Vxlan",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A tunnel for each pod that carries an Ethernet network in UDP packets. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kvx"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct VxlanSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/vxlan: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The number of the network, 0 to 16777215. Another number makes the interface again.
    pub vni: Vni,
    /// The far end: an address, a multicast group (which needs `parent`), or the name of another pod of this namespace,
    /// which is followed when its address changes. It changes on the living interface. Default: packets go only where
    /// an entry of the forwarding table says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// The near end's address. Another one makes the interface again. Default: the kernel chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// The UDP port. Another one makes the interface again. Default: 4789.
    #[serde(default = "default_port")]
    pub port: Port,
    /// What carries it: another interface of the pod, or an Uplink that is open to this namespace. A new parent makes
    /// the interface again. Default: the pod's routes decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// Hops that a packet may take, 0 to 255; 0 is the pod's own default. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// Whether far ends are learnt from packets. Another value makes the interface again. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// Seconds after which a silent far end is forgotten. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Seconds>,
    /// A bridge in the pod that it is a port of.
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
    rules_with(&[same_family(), PORT_OF_ONE, MULTICAST_NEEDS_PARENT])
}

impl VxlanSpec {
    fn link(&self, remote: Option<&FarEnd>, problems: &mut Problems) -> Option<link::Vxlan> {
        let vxlan = link::Vxlan {
            vni: self.vni.read("spec.vni", problems)?,
            remote: remote.and_then(FarEnd::address),
            local: self.local.as_ref().and_then(|local| local.read("spec.local", problems)),
            port: self.port.read("spec.port", problems),
            parent: None,
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            learning: self.learning,
            fdb_ageing: self.ageing.as_ref().and_then(|ageing| ageing.read("spec.ageing", problems)),
            fdb: None,
            flood: None,
        };
        // The model asks whether there is a parent, not which one: an Uplink's name may be no interface name.
        let stand_in = self.parent.as_ref().and_then(|_| IfName::new("parent").ok());
        link::Vxlan { parent: stand_in, ..vxlan.clone() }.check("spec", problems);
        Some(vxlan)
    }
}

impl Kind for Vxlan {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "VNI", type_: "integer", path: ".spec.vni", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let parent = spec.parent.as_ref().and_then(|parent| parent.read("spec.parent", &mut to.problems));
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.as_ref().and_then(|remote| remote.read("spec.remote", &mut to.problems));
        let Some(vxlan) = spec.link(remote.as_ref(), &mut to.problems) else { return };
        let entry = Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Vxlan(vxlan),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(FarEnd::into_pod));
    }
}
