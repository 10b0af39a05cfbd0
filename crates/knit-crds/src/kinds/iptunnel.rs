//! IpTunnel: an IP-in-IP tunnel (ipip, sit or ip6tnl) in each selected pod.

use knit_model::Problems;
use knit_model::link::{self, IpTunnelForm, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, Remote, RemoteEndpoint, Rule, Ttl, local_over_ipv6, same_family};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{Details, LinkTypeInfo, LowerLink};
use crate::rules::{MASTER_OR_VRF, UNICAST_REMOTE};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};
use crate::tunnel::TunnelFields;

const POD_LABEL: &str = "podnetwork.opdev.io/iptunnel";

/// IpTunnelSpec selects pods by the label `podnetwork.opdev.io/iptunnel: <object name>` or by `selector`, and describes
/// the tunnel.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "IpTunnel",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "IpTunnel adds an IP-in-IP tunnel (ipip, sit or ip6tnl) to each selected pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kipt"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct IpTunnelSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/iptunnel:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// mode is the kernel link type: `ipip` is IPv4 over IPv4, `sit` is IPv6 over IPv4, `ip6tnl` is IPv4 or IPv6 over
    /// IPv6. Changing it replaces the interface. Defaults to `ipip`.
    #[serde(default)]
    pub mode: TunnelMode,
    /// inner is the inner protocol: `ipv4`, `ipv6`, or `any` for all protocols of the mode. Changing it replaces the
    /// interface. Defaults to `ipv4` for ipip, `ipv6` for sit and `any` for ip6tnl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<InnerProtocol>,
    /// remote is the remote endpoint: an IP address, or the name of a pod in this namespace, whose address is tracked.
    /// It is updated in place. Defaults to none: routes determine the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// ttl is the TTL of outer packets, 0 to 255. 0 copies it from the inner packet. Defaults to 64, or to 0 if
    /// pmtuDisc is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// pmtuDisc enables path MTU discovery, which sets the Don't Fragment bit of outer packets. Only valid over IPv4;
    /// false requires a ttl of 0. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtu_disc: Option<bool>,
    /// master is the name of a VRF in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub tunnel: TunnelFields,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// TunnelMode is the kernel link type of an IP tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum TunnelMode {
    #[default]
    Ipip,
    Sit,
    Ip6tnl,
}

/// InnerProtocol is the inner protocol of an IP tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum InnerProtocol {
    Ipv4,
    Ipv6,
    Any,
}

/// Rules that depend on the mode.
const MODE_RULES: [Rule<'_>; 5] = [
    (
        "!has(self.remote) || !isIP(self.remote) \
         || (has(self.mode) && self.mode == 'ip6tnl') == (ip(self.remote).family() == 6)",
        "remote must be an IPv4 address for ipip and sit, and an IPv6 address for ip6tnl",
    ),
    (
        "!has(self.mode) || self.mode != 'ip6tnl' || !has(self.pmtuDisc)",
        "pmtuDisc must be unset for ip6tnl: it applies to IPv4 only",
    ),
    (
        "(has(self.mode) && self.mode == 'ip6tnl') || (!has(self.encapLimit) && !has(self.flowLabel))",
        "encapLimit and flowLabel must be unset for ipip and sit: they apply to IPv6 only",
    ),
    (
        "!has(self.pmtuDisc) || self.pmtuDisc || !has(self.ttl) || self.ttl == 0",
        "ttl must be 0 or unset if pmtuDisc is false",
    ),
    ("!has(self.hardwareAddr)", "hardwareAddr must be unset: an IP tunnel has no hardware address"),
];

fn rules() -> serde_json::Value {
    rules_with(
        &[&[same_family(), local_over_ipv6(), MASTER_OR_VRF, UNICAST_REMOTE], &MODE_RULES[..]].concat(),
    )
}

impl IpTunnelSpec {
    fn link(&self, remote: Option<&RemoteEndpoint>, problems: &mut Problems) -> link::IpTunnel {
        let tunnel = link::IpTunnel {
            form: match self.mode {
                TunnelMode::Ipip => IpTunnelForm::Ipip,
                TunnelMode::Sit => IpTunnelForm::Sit,
                TunnelMode::Ip6tnl => IpTunnelForm::Ip6tnl,
            },
            inner: self.inner.map(|inner| match inner {
                InnerProtocol::Ipv4 => link::InnerProtocol::Ipv4,
                InnerProtocol::Ipv6 => link::InnerProtocol::Ipv6,
                InnerProtocol::Any => link::InnerProtocol::Any,
            }),
            outer: self.tunnel.read(remote, self.ttl.as_ref(), self.pmtu_disc, problems),
        };
        tunnel.check("spec", problems);
        tunnel
    }
}

impl ResourceKind for IpTunnel {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[
        LinkTypeInfo::new("ipip", LowerLink::Optional, |details| listed(details, IpTunnelForm::Ipip))
            .takes(&["remote", "local"]),
        LinkTypeInfo::new("sit", LowerLink::Optional, |details| listed(details, IpTunnelForm::Sit))
            .takes(&["remote", "local"]),
        LinkTypeInfo::new("ip6tnl", LowerLink::Optional, |details| listed(details, IpTunnelForm::Ip6tnl))
            .needs(&["remote", "local"]),
    ];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let parent = spec.tunnel.read_parent(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.as_ref().and_then(|remote| remote.read("spec.remote", &mut to.problems));
        let tunnel = spec.link(remote.as_ref(), &mut to.problems);
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::IpTunnel(tunnel),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(RemoteEndpoint::into_pod));
    }
}

/// The link of a list entry.
fn listed(details: &Details, form: IpTunnelForm) -> Option<LinkKind> {
    let outer = link::TunnelFields::between(details.local, details.remote_address());
    Some(LinkKind::IpTunnel(link::IpTunnel { form, inner: None, outer }))
}
