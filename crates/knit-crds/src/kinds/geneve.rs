//! Geneve: a point-to-point Ethernet tunnel over UDP in each selected pod.

use knit_model::Problems;
use knit_model::link::{self, GeneveDf, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{FlowLabel, InterfaceName, Port, Remote, RemoteEndpoint, Rule, Tos, Ttl, Vni};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{Details, LinkTypeInfo, LowerLink};
use crate::rules::{MASTER_OR_VRF, UNICAST_REMOTE};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/geneve";

/// GeneveSpec selects pods by the label `podnetwork.opdev.io/geneve: <object name>` or by `selector`, and describes the
/// tunnel.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Geneve",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Geneve adds a GENEVE tunnel with one remote endpoint to each selected pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kgnv"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct GeneveSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/geneve:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// vni is the virtual network identifier, 0 to 16777215. Changing it replaces the interface.
    pub vni: Vni,
    /// remote is the remote endpoint: an IP address, or the name of a pod in this namespace, whose address is tracked.
    /// It is updated in place; changing the address family replaces the interface.
    pub remote: Remote,
    /// port is the UDP destination port. Changing it replaces the interface. Defaults to 6081.
    #[serde(default = "default_port")]
    pub port: Port,
    /// ttl is the TTL of outer packets, 0 to 255. 0 uses the default TTL of the pod. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// ttlInherit copies the TTL from the inner packet. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_inherit: Option<bool>,
    /// tos is the DS field of outer packets, 0 to 255. 1 copies it from the inner packet. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<Tos>,
    /// df controls the Don't Fragment bit of outer IPv4 packets: `unset`, `set`, or `inherit` from the inner packet.
    /// Defaults to `unset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub df: Option<DontFragment>,
    /// flowLabel is the IPv6 flow label of outer packets, 0 to 1048575. Only valid over IPv6. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<FlowLabel>,
    /// udpCsum enables UDP checksums. Changing it replaces the interface. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_csum: Option<bool>,
    /// master is the name of a bridge or VRF in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// DontFragment controls the Don't Fragment bit of outer packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum DontFragment {
    Unset,
    Set,
    Inherit,
}

fn default_port() -> Port {
    Port(link::GENEVE_PORT.into())
}

const TTL_OR_INHERIT: Rule<'_> = (
    "!has(self.ttlInherit) || !self.ttlInherit || !has(self.ttl) || self.ttl == 0",
    "ttl must be 0 or unset if ttlInherit is true",
);
const FLOW_LABEL_NEEDS_IPV6: Rule<'_> = (
    "!has(self.flowLabel) || self.flowLabel == 0 || !isIP(self.remote) || ip(self.remote).family() == 6",
    "flowLabel must be unset if remote is an IPv4 address",
);

fn rules() -> serde_json::Value {
    rules_with(&[MASTER_OR_VRF, UNICAST_REMOTE, TTL_OR_INHERIT, FLOW_LABEL_NEEDS_IPV6])
}

impl GeneveSpec {
    fn link(&self, remote: Option<&RemoteEndpoint>, problems: &mut Problems) -> Option<link::Geneve> {
        let vni = self.vni.read("spec.vni", problems);
        let geneve = link::Geneve {
            vni: vni.unwrap_or_default(),
            remote: remote.and_then(RemoteEndpoint::address),
            port: self.port.read("spec.port", problems),
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            ttl_inherit: self.ttl_inherit,
            tos: self.tos.as_ref().and_then(|tos| tos.read("spec.tos", problems)),
            df: self.df.map(|df| match df {
                DontFragment::Unset => GeneveDf::Unset,
                DontFragment::Set => GeneveDf::Set,
                DontFragment::Inherit => GeneveDf::Inherit,
            }),
            flow_label: self.flow_label.as_ref().and_then(|label| label.read("spec.flowLabel", problems)),
            udp_csum: self.udp_csum,
        };
        geneve.check("spec", problems);
        vni.map(|_| geneve)
    }
}

impl ResourceKind for Geneve {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("geneve", LowerLink::None, listed).needs(&["vni", "remote"])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "VNI", type_: "integer", path: ".spec.vni", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.read("spec.remote", &mut to.problems);
        let Some(geneve) = spec.link(remote.as_ref(), &mut to.problems) else { return };
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Geneve(geneve),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(RemoteEndpoint::into_pod));
    }
}

/// The link of a list entry.
fn listed(details: &Details) -> Option<LinkKind> {
    let (vni, remote) = (details.vni?, details.remote_address());
    details.remote.as_ref()?;
    let port = Some(link::GENEVE_PORT);
    Some(LinkKind::Geneve(link::Geneve { vni, remote, port, ..link::Geneve::default() }))
}
