//! Geneve: an Ethernet network in UDP packets, from one end to another.

use knit_model::Problems;
use knit_model::link::{self, GeneveDf, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{FarEnd, FlowLabel, InterfaceName, NamePrefix, Port, Remote, Rule, Tos, Ttl, Vni};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::{PORT_OF_ONE, UNICAST_REMOTE};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/geneve";

/// A Geneve tunnel for each of the pods that are labelled `podnetwork.opdev.io/geneve: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Geneve",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A tunnel for each pod that carries Ethernet in UDP packets to one far end. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kgnv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct GeneveSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/geneve: <name of this object>`.
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
    /// The far end: an address, or the name of another pod of this namespace, which is followed when its address
    /// changes. It changes on the living interface; an address of the other family makes it again.
    pub remote: Remote,
    /// The UDP port. Another one makes the interface again. Default: 6081.
    #[serde(default = "default_port")]
    pub port: Port,
    /// Hops that a packet may take, 0 to 255; 0 is the pod's own default. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// Whether hops are copied from the packet inside. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_inherit: Option<bool>,
    /// The DS field of the outer packet, 0 to 255; 1 copies it from the packet inside. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<Tos>,
    /// Over IPv4: whether outer packets must not be fragmented: `unset`, `set`, or `inherit` as the packet inside says.
    /// Default: `unset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub df: Option<Df>,
    /// Over IPv6: the flow label, 0 to 1048575. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<FlowLabel>,
    /// Whether the UDP packets have a checksum. Another value makes the interface again. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_csum: Option<bool>,
    /// A bridge or VRF in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// Whether outer packets must not be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Df {
    Unset,
    Set,
    Inherit,
}

fn default_port() -> Port {
    Port(link::GENEVE_PORT.into())
}

const ONE_TTL: Rule<'_> = (
    "!has(self.ttlInherit) || !self.ttlInherit || !has(self.ttl) || self.ttl == 0",
    "the TTL is stated by `ttl`: state one of them",
);
const NO_LABEL: Rule<'_> = (
    "!has(self.flowLabel) || self.flowLabel == 0 || !isIP(self.remote) || ip(self.remote).family() == 6",
    "a far end of IPv4 has no flow labels",
);

fn rules() -> serde_json::Value {
    rules_with(&[PORT_OF_ONE, UNICAST_REMOTE, ONE_TTL, NO_LABEL])
}

impl GeneveSpec {
    fn link(&self, remote: Option<&FarEnd>, problems: &mut Problems) -> Option<link::Geneve> {
        let vni = self.vni.read("spec.vni", problems);
        let geneve = link::Geneve {
            vni: vni.unwrap_or_default(),
            remote: remote.and_then(FarEnd::address),
            port: self.port.read("spec.port", problems),
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            ttl_inherit: self.ttl_inherit,
            tos: self.tos.as_ref().and_then(|tos| tos.read("spec.tos", problems)),
            df: self.df.map(|df| match df {
                Df::Unset => GeneveDf::Unset,
                Df::Set => GeneveDf::Set,
                Df::Inherit => GeneveDf::Inherit,
            }),
            flow_label: self.flow_label.as_ref().and_then(|label| label.read("spec.flowLabel", problems)),
            udp_csum: self.udp_csum,
        };
        geneve.check("spec", problems);
        vni.map(|_| geneve)
    }
}

impl Kind for Geneve {
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
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.read("spec.remote", &mut to.problems);
        let Some(geneve) = spec.link(remote.as_ref(), &mut to.problems) else { return };
        let entry = Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Geneve(geneve),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(FarEnd::into_pod));
    }
}
