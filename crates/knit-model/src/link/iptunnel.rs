//! ipip, sit and ip6tnl: IP in IP.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, NumberOrNone, tunnel};
use crate::name::IfName;
use crate::problem::Problems;

/// Fields of an IP tunnel. All but the form, `inner` and the parent can be changed on an existing link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpTunnel {
    /// Which of the kernel's three IP tunnel kinds it is.
    pub form: IpTunnelForm,
    /// Inner protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<InnerProtocol>,
    /// Remote endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// Local endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Parent link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// TTL; 0: inherited from the inner packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Outer DS field; [`super::INHERIT_TOS`]: inherited from the inner packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// IPv4 only: DF bit of outer packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtudisc: Option<bool>,
    /// IPv6 only: encapsulation limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap_limit: Option<NumberOrNone>,
    /// IPv6 only: flow label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<u32>,
    /// Firewall mark of outer packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
}

/// The kernel's IP tunnel kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpTunnelForm {
    /// IPv4 over IPv4.
    #[default]
    Ipip,
    /// IPv6 over IPv4, optionally IPv4 too.
    Sit,
    /// IPv6 and IPv4 over IPv6.
    Ip6tnl,
}

/// Inner protocol of an IP tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InnerProtocol {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only.
    Ipv6,
    /// All protocols that the form supports.
    Any,
}

impl IpTunnelForm {
    /// The form with this kernel name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ipip, Self::Sit, Self::Ip6tnl].into_iter().find(|form| form.name() == name)
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
            Self::Ip6tnl => "ip6tnl",
        }
    }

    /// Whether the outer protocol is IPv6.
    pub fn is_ipv6(self) -> bool {
        self == Self::Ip6tnl
    }

    /// Default inner protocol, as in `ip link`.
    fn default_inner(self) -> InnerProtocol {
        match self {
            Self::Ipip => InnerProtocol::Ipv4,
            Self::Sit => InnerProtocol::Ipv6,
            Self::Ip6tnl => InnerProtocol::Any,
        }
    }
}

impl IpTunnel {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests(form: IpTunnelForm) -> Self {
        let ipv6 = form.is_ipv6();
        let ends = if ipv6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [local, remote] = ends.map(|end| end.parse().ok());
        Self {
            form,
            inner: Some(InnerProtocol::Any),
            remote,
            local,
            parent: IfName::new("up0").ok(),
            ttl: Some(9),
            tos: Some(0x10),
            pmtudisc: Some(false).filter(|_| !ipv6),
            encap_limit: Some(NumberOrNone(Some(4))).filter(|_| ipv6),
            flow_label: Some(0x4_2042).filter(|_| ipv6),
            fwmark: Some(3),
        }
    }
}

impl LinkKind for IpTunnel {
    const NAME: &'static str = "ipip";
    const NAMES: &'static [&'static str] = &["ipip", "sit", "ip6tnl"];
    const IMMUTABLE: &'static [&'static str] = &["inner", "parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ETHERNET: bool = false;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        [IpTunnelForm::Ipip, IpTunnelForm::Sit, IpTunnelForm::Ip6tnl].map(Self::full_for_tests).into()
    }

    fn name(&self) -> &'static str {
        self.form.name()
    }

    fn overhead(&self) -> u32 {
        tunnel::outer_header(self.form.is_ipv6(), self.encap_limit)
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
        self.local = self.local.or(Some(local));
    }

    fn with_defaults(self) -> Self {
        let unset = Some(tunnel::unset(self.form.is_ipv6()));
        Self {
            inner: self.inner.or(Some(self.form.default_inner())),
            remote: self.remote.or(unset),
            local: self.local.or(unset),
            ttl: self.ttl.or(Some(if self.pmtudisc == Some(false) { 0 } else { tunnel::DEFAULT_TTL })),
            tos: self.tos.or(Some(0)),
            pmtudisc: self.pmtudisc.or(Some(true)),
            encap_limit: self.encap_limit.or(Some(NumberOrNone(None))),
            flow_label: self.flow_label.or(Some(0)),
            fwmark: self.fwmark.or(Some(0)),
            ..self
        }
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        let parents = (&self.parent, &desired.parent);
        tunnel::recreate_field((self.remote, desired.remote), parents, !desired.form.is_ipv6())
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let form = (self.form.name(), self.form.is_ipv6());
        tunnel::check_ends([self.local, self.remote], form, path, problems);
        tunnel::check_ipv6_only((self.encap_limit, self.flow_label), form, path, problems);
        if self.pmtudisc.is_some() && self.form.is_ipv6() {
            problems.invalid(format!("{path}.pmtuDisc"), "ip6tnl uses IPv6, which has no such field");
        }
        // The kernel requires the DF bit with a fixed TTL, so that looping packets cannot grow without bound.
        if self.pmtudisc == Some(false) && self.ttl.is_some_and(|ttl| ttl != 0) {
            let message = "a fixed TTL requires the DF bit: omit `ttl` or set it to 0";
            problems.invalid(format!("{path}.pmtuDisc"), message);
        }
        if self.form == IpTunnelForm::Ipip && self.inner == Some(InnerProtocol::Ipv6) {
            problems.invalid(format!("{path}.inner"), "ipip does not carry IPv6: use `mode: sit`");
        }
        if self.remote.is_some_and(|remote| remote.is_multicast()) {
            problems.invalid(format!("{path}.remote"), "the remote address must be a unicast address");
        }
    }
}
