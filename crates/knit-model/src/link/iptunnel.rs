//! ipip, sit and ip6tnl: IP in IP.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, TunnelFields, tunnel};
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
    /// Endpoints and outer header.
    #[serde(flatten)]
    pub outer: TunnelFields,
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
        let outer = TunnelFields::full_for_tests(form.is_ipv6());
        Self { form, inner: Some(InnerProtocol::Any), outer }
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
        self.outer.header(self.form.is_ipv6())
    }

    fn parent(&self) -> Option<&IfName> {
        self.outer.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.outer.parent = Some(parent);
    }

    fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
        self.outer.set_endpoints(local, remote);
    }

    fn with_defaults(self) -> Self {
        let ttl = if self.outer.pmtudisc == Some(false) { 0 } else { tunnel::DEFAULT_TTL };
        Self {
            form: self.form,
            inner: self.inner.or(Some(self.form.default_inner())),
            outer: self.outer.with_defaults(self.form.is_ipv6(), ttl, true),
        }
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        self.outer.recreate_field(&desired.outer, !desired.form.is_ipv6())
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        self.outer.check(self.form.name(), self.form.is_ipv6(), path, problems);
        // The kernel requires the DF bit with a fixed TTL, so that looping packets cannot grow without bound.
        if self.outer.pmtudisc == Some(false) && self.outer.ttl.is_some_and(|ttl| ttl != 0) {
            let message = "a fixed TTL requires the DF bit: omit `ttl` or set it to 0";
            problems.invalid(format!("{path}.pmtuDisc"), message);
        }
        if self.form == IpTunnelForm::Ipip && self.inner == Some(InnerProtocol::Ipv6) {
            problems.invalid(format!("{path}.inner"), "ipip does not carry IPv6: use `mode: sit`");
        }
        if self.outer.remote.is_some_and(|remote| remote.is_multicast()) {
            problems.invalid(format!("{path}.remote"), "the remote address must be a unicast address");
        }
    }
}
