//! ipip, sit and ip6tnl: IP directly in IP.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, OrNone, tunnel};
use crate::name::IfName;
use crate::problem::Problems;

/// An IP tunnel's own fields. All but the form, `inner` and the parent change on the living link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpTunnel {
    /// Which of the kernel's three kinds it is.
    pub form: IpTunnelForm,
    /// What it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<Inner>,
    /// The far end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The near end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// The link that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// Hops; 0 copies those of the packet inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// The outer DS field; [`super::INHERIT_TOS`] copies that of the packet inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// Over IPv4: whether outer packets must not be fragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtudisc: Option<bool>,
    /// Over IPv6: how often packets may be put into tunnels on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap_limit: Option<OrNone>,
    /// Over IPv6: the flow label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<u32>,
    /// The mark by which rules route the outer packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
}

/// The kernel's three kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpTunnelForm {
    /// IPv4 over IPv4.
    #[default]
    Ipip,
    /// IPv6 over IPv4, and IPv4 if asked for.
    Sit,
    /// IPv6 and IPv4 over IPv6.
    Ip6tnl,
}

/// What an IP tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inner {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// All that the form can carry.
    Any,
}

impl IpTunnelForm {
    /// The form by the kernel's word.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ipip, Self::Sit, Self::Ip6tnl].into_iter().find(|form| form.name() == name)
    }

    /// The kernel's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Sit => "sit",
            Self::Ip6tnl => "ip6tnl",
        }
    }

    /// Whether it goes over IPv6.
    pub fn is_ipv6(self) -> bool {
        self == Self::Ip6tnl
    }

    /// What it carries when nobody says anything, as with `ip link`.
    fn default_inner(self) -> Inner {
        match self {
            Self::Ipip => Inner::Ipv4,
            Self::Sit => Inner::Ipv6,
            Self::Ip6tnl => Inner::Any,
        }
    }
}

impl IpTunnel {
    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests(form: IpTunnelForm) -> Self {
        let ipv6 = form.is_ipv6();
        let ends = if ipv6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [local, remote] = ends.map(|end| end.parse().ok());
        Self {
            form,
            inner: Some(Inner::Any),
            remote,
            local,
            parent: IfName::new("up0").ok(),
            ttl: Some(9),
            tos: Some(0x10),
            pmtudisc: Some(false).filter(|_| !ipv6),
            encap_limit: Some(OrNone(Some(4))).filter(|_| ipv6),
            flow_label: Some(0x4_2042).filter(|_| ipv6),
            fwmark: Some(3),
        }
    }
}

impl LinkKind for IpTunnel {
    const NAME: &'static str = "ipip";
    const NAMES: &'static [&'static str] = &["ipip", "sit", "ip6tnl"];
    const RECREATE: &'static [&'static str] = &["inner", "parent"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ETHERNET: bool = false;
    const ON_UPLINK: bool = false;

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

    fn set_ends(&mut self, local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
        self.local = self.local.or(Some(local));
    }

    fn with_defaults(self) -> Self {
        let nothing = Some(tunnel::unset(self.form.is_ipv6()));
        Self {
            inner: self.inner.or(Some(self.form.default_inner())),
            remote: self.remote.or(nothing),
            local: self.local.or(nothing),
            ttl: self.ttl.or(Some(if self.pmtudisc == Some(false) { 0 } else { tunnel::DEFAULT_TTL })),
            tos: self.tos.or(Some(0)),
            pmtudisc: self.pmtudisc.or(Some(true)),
            encap_limit: self.encap_limit.or(Some(OrNone(None))),
            flow_label: self.flow_label.or(Some(0)),
            fwmark: self.fwmark.or(Some(0)),
            ..self
        }
    }

    fn cannot_become(&self, wanted: &Self) -> Option<&'static str> {
        let parents = (&self.parent, &wanted.parent);
        tunnel::cannot_become((self.remote, wanted.remote), parents, !wanted.form.is_ipv6())
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let form = (self.form.name(), self.form.is_ipv6());
        tunnel::check_ends([self.local, self.remote], form, path, problems);
        tunnel::check_ipv6_only((self.encap_limit, self.flow_label), form, path, problems);
        if self.pmtudisc.is_some() && self.form.is_ipv6() {
            problems.invalid(format!("{path}.pmtuDisc"), "ip6tnl goes over IPv6, which has no such field");
        }
        // The kernel forbids fragmenting of packets with hops of their own: they could run in circles and grow.
        if self.pmtudisc == Some(false) && self.ttl.is_some_and(|ttl| ttl != 0) {
            let message = "packets with a TTL of their own are never fragmented: leave `ttl` out, or state 0";
            problems.invalid(format!("{path}.pmtuDisc"), message);
        }
        if self.form == IpTunnelForm::Ipip && self.inner == Some(Inner::Ipv6) {
            problems.invalid(format!("{path}.inner"), "ipip carries no IPv6: that is `mode: sit`");
        }
        if self.remote.is_some_and(|remote| remote.is_multicast()) {
            problems.invalid(format!("{path}.remote"), "the far end must be a unicast address");
        }
    }
}
