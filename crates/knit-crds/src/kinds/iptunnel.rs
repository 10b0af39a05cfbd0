//! IpTunnel: IP directly in IP, as the kernel's ipip, sit or ip6tnl.

use knit_model::Problems;
use knit_model::link::{self, IpTunnelForm, Kind as LinkKind, LinkKind as _, OrNone};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{
    DeviceName, EncapLimit, FarEnd, FlowLabel, InterfaceName, IpText, Mark, NamePrefix, Remote, Rule, Tos,
    Ttl, local_over_ipv6, same_family,
};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::{PORT_OF_ONE, UNICAST_REMOTE};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/iptunnel";

/// An IP tunnel for each of the pods that are labelled `podnetwork.opdev.io/iptunnel: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "IpTunnel",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A tunnel for each pod that carries IP packets directly in IP packets (ipip, sit, ip6tnl). It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kipt"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct IpTunnelSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/iptunnel: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The kernel's kind: `ipip` is IPv4 over IPv4, `sit` IPv6 over IPv4, `ip6tnl` both over IPv6. Another one makes the
    /// interface again. Default: `ipip`.
    #[serde(default)]
    pub mode: TunnelMode,
    /// What it carries: `ipv4`, `ipv6`, or `any` for all that the mode can carry. Another value makes the interface
    /// again. Default: `ipv4` for ipip, `ipv6` for sit, `any` for ip6tnl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<Inner>,
    /// The far end: an address, or the name of another pod of this namespace, which is followed when its address
    /// changes. It changes on the living interface. Default: none, packets go where routes say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// The near end's address. It changes on the living interface. Default: with a pod as far end this pod's address on
    /// the same network, else the kernel chooses; over IPv6 it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// The interface of the pod that carries it. A new parent makes the interface again. Default: the pod's routes decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// Hops that a packet may take, 0 to 255; 0 copies those of the packet inside. Default: 64, or 0
    /// with `pmtuDisc: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// The DS field of the outer packet, 0 to 255; 1 copies it from the packet inside. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<Tos>,
    /// Over IPv4: whether outer packets must not be fragmented. False needs a `ttl` of 0, which is the default then.
    /// Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtu_disc: Option<bool>,
    /// Over IPv6: how often packets may be put into further tunnels on the way, 0 to 255. Default: no limit is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap_limit: Option<EncapLimit>,
    /// Over IPv6: the flow label, 0 to 1048575. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<FlowLabel>,
    /// A mark by which the pod's rules route the outer packets. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// A VRF in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// The kernel's kinds of IP tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum TunnelMode {
    #[default]
    Ipip,
    Sit,
    Ip6tnl,
}

/// What an IP tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Inner {
    Ipv4,
    Ipv6,
    Any,
}

/// What the kinds of tunnels do not have in common.
const FORMS: [Rule<'_>; 5] = [
    (
        "!has(self.remote) || !isIP(self.remote) \
         || (has(self.mode) && self.mode == 'ip6tnl') == (ip(self.remote).family() == 6)",
        "ipip and sit go over IPv4, ip6tnl over IPv6: `remote` is of the other family",
    ),
    (
        "!has(self.mode) || self.mode != 'ip6tnl' || !has(self.pmtuDisc)",
        "ip6tnl goes over IPv6, which has no `pmtuDisc`",
    ),
    (
        "(has(self.mode) && self.mode == 'ip6tnl') || (!has(self.encapLimit) && !has(self.flowLabel))",
        "ipip and sit go over IPv4, which has neither `encapLimit` nor `flowLabel`",
    ),
    (
        "!has(self.pmtuDisc) || self.pmtuDisc || !has(self.ttl) || self.ttl == 0",
        "packets with a TTL of their own are never fragmented: leave `ttl` out, or state 0",
    ),
    ("!has(self.hardwareAddr)", "an IP tunnel has no hardware address of its own"),
];

fn rules() -> serde_json::Value {
    rules_with(&[&[same_family(), local_over_ipv6(), PORT_OF_ONE, UNICAST_REMOTE], &FORMS[..]].concat())
}

impl IpTunnelSpec {
    fn link(&self, remote: Option<&FarEnd>, problems: &mut Problems) -> link::IpTunnel {
        let tunnel = link::IpTunnel {
            form: match self.mode {
                TunnelMode::Ipip => IpTunnelForm::Ipip,
                TunnelMode::Sit => IpTunnelForm::Sit,
                TunnelMode::Ip6tnl => IpTunnelForm::Ip6tnl,
            },
            inner: self.inner.map(|inner| match inner {
                Inner::Ipv4 => link::Inner::Ipv4,
                Inner::Ipv6 => link::Inner::Ipv6,
                Inner::Any => link::Inner::Any,
            }),
            remote: remote.and_then(FarEnd::address),
            local: self.local.as_ref().and_then(|local| local.read("spec.local", problems)),
            parent: None,
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            tos: self.tos.as_ref().and_then(|tos| tos.read("spec.tos", problems)),
            pmtudisc: self.pmtu_disc,
            encap_limit: self
                .encap_limit
                .as_ref()
                .and_then(|limit| limit.read("spec.encapLimit", problems))
                .map(|limit| OrNone(Some(limit))),
            flow_label: self.flow_label.as_ref().and_then(|label| label.read("spec.flowLabel", problems)),
            fwmark: self.fwmark.as_ref().and_then(|mark| mark.read("spec.fwmark", problems)),
        };
        tunnel.check("spec", problems);
        tunnel
    }
}

impl Kind for IpTunnel {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
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
        let tunnel = spec.link(remote.as_ref(), &mut to.problems);
        let entry = Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::IpTunnel(tunnel),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(FarEnd::into_pod));
    }
}
