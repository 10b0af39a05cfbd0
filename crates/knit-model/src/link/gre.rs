//! gre: IP or Ethernet over GRE, over IPv4 or IPv6.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, INHERIT_TOS, LinkKind, NumberOrNone, tunnel};
use crate::name::IfName;
use crate::problem::Problems;

/// GRE header without options, and each option.
const HEADER: u32 = 4;
const OPTION: u32 = 4;
const ETHERNET_HEADER: u32 = 14;

/// GRE-specific fields. All but the form, the parent and `ignore_df` can be changed on an existing link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gre {
    /// Which of the kernel's four GRE kinds it is.
    pub form: GreForm,
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
    /// Key of ingress packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ikey: Option<NumberOrNone>,
    /// Key of egress packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub okey: Option<NumberOrNone>,
    /// Whether packets have sequence numbers and late ones are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<bool>,
    /// Whether packets have a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csum: Option<bool>,
    /// IPv4 only: DF bit of outer packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtudisc: Option<bool>,
    /// IPv4 only: whether the DF bit of inner packets is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_df: Option<bool>,
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

/// Inner and outer protocol of a GRE tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GreForm {
    /// IP over IPv4.
    #[default]
    Gre,
    /// Ethernet over IPv4.
    Gretap,
    /// IP over IPv6.
    Ip6gre,
    /// Ethernet over IPv6.
    Ip6gretap,
}

impl GreForm {
    /// The form for Ethernet or IP, over IPv6 or IPv4.
    pub fn new(ethernet: bool, ipv6: bool) -> Self {
        match (ethernet, ipv6) {
            (false, false) => Self::Gre,
            (true, false) => Self::Gretap,
            (false, true) => Self::Ip6gre,
            (true, true) => Self::Ip6gretap,
        }
    }

    /// The form with this kernel name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Gre, Self::Gretap, Self::Ip6gre, Self::Ip6gretap].into_iter().find(|form| form.name() == name)
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Gretap => "gretap",
            Self::Ip6gre => "ip6gre",
            Self::Ip6gretap => "ip6gretap",
        }
    }

    /// Whether it carries Ethernet.
    pub fn is_ethernet(self) -> bool {
        matches!(self, Self::Gretap | Self::Ip6gretap)
    }

    /// Whether the outer protocol is IPv6.
    pub fn is_ipv6(self) -> bool {
        matches!(self, Self::Ip6gre | Self::Ip6gretap)
    }
}

impl Gre {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests(form: GreForm) -> Self {
        let ipv6 = form.is_ipv6();
        let ends = if ipv6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [local, remote] = ends.map(|end| end.parse().ok());
        Self {
            form,
            remote,
            local,
            parent: IfName::new("up0").ok(),
            ttl: Some(9),
            tos: Some(0x10),
            ikey: Some(NumberOrNone(Some(7))),
            okey: Some(NumberOrNone(None)),
            seq: Some(true),
            csum: Some(true),
            pmtudisc: Some(false).filter(|_| !ipv6),
            ignore_df: Some(true).filter(|_| !ipv6),
            encap_limit: Some(NumberOrNone(Some(4))).filter(|_| ipv6),
            flow_label: Some(0x4_2042).filter(|_| ipv6),
            fwmark: Some(3),
        }
    }
}

impl LinkKind for Gre {
    const NAME: &'static str = "gre";
    const NAMES: &'static [&'static str] = &["gre", "gretap", "ip6gre", "ip6gretap"];
    const IMMUTABLE: &'static [&'static str] = &["parent", "ignore_df"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        [GreForm::Gre, GreForm::Gretap, GreForm::Ip6gre, GreForm::Ip6gretap]
            .map(Self::full_for_tests)
            .into_iter()
            .chain([Self { tos: Some(INHERIT_TOS), ..Self::full_for_tests(GreForm::Ip6gretap) }])
            .collect()
    }

    fn name(&self) -> &'static str {
        self.form.name()
    }

    fn is_ethernet(&self) -> bool {
        self.form.is_ethernet()
    }

    fn overhead(&self) -> u32 {
        let options = [
            self.csum == Some(true),
            matches!(self.okey, Some(NumberOrNone(Some(_)))),
            self.seq == Some(true),
        ];
        let options = options.into_iter().filter(|is_on| *is_on).map(|_| OPTION).sum::<u32>();
        let inner = if self.form.is_ethernet() { ETHERNET_HEADER } else { 0 };
        tunnel::outer_header(self.form.is_ipv6(), self.encap_limit) + HEADER + options + inner
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
        self.form = GreForm::new(self.form.is_ethernet(), remote.is_ipv6());
        self.remote = Some(remote);
        self.local = self.local.or(Some(local));
    }

    fn with_defaults(self) -> Self {
        let unset = Some(tunnel::unset(self.form.is_ipv6()));
        Self {
            remote: self.remote.or(unset),
            local: self.local.or(unset),
            ttl: self.ttl.or(Some(tunnel::DEFAULT_TTL)),
            tos: self.tos.or(Some(0)),
            ikey: self.ikey.or(Some(NumberOrNone(None))),
            okey: self.okey.or(Some(NumberOrNone(None))),
            seq: self.seq.or(Some(false)),
            csum: self.csum.or(Some(false)),
            pmtudisc: self.pmtudisc.or(Some(self.ignore_df != Some(true))),
            ignore_df: self.ignore_df.or(Some(false)),
            encap_limit: self.encap_limit.or(Some(NumberOrNone(None))),
            flow_label: self.flow_label.or(Some(0)),
            fwmark: self.fwmark.or(Some(0)),
            ..self
        }
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        let point_to_point = desired.form == GreForm::Gre;
        tunnel::recreate_field((self.remote, desired.remote), (&self.parent, &desired.parent), point_to_point)
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let form = (self.form.name(), self.form.is_ipv6());
        tunnel::check_ends([self.local, self.remote], form, path, problems);
        tunnel::check_ipv6_only((self.encap_limit, self.flow_label), form, path, problems);
        let ipv4_only = [("pmtuDisc", self.pmtudisc), ("ignoreDf", self.ignore_df)];
        for (field, _) in ipv4_only.iter().filter(|(_, stated)| stated.is_some() && self.form.is_ipv6()) {
            let message = format!("{} uses IPv6, which has no such field", self.form.name());
            problems.invalid(format!("{path}.{field}"), message);
        }
        if self.ignore_df == Some(true) && self.pmtudisc == Some(true) {
            let message = "mutually exclusive with `pmtuDisc`";
            problems.invalid(format!("{path}.ignoreDf"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_depends_on_form_and_options() {
        let plain = |form| Gre { form, ..Gre::default() };
        let bytes = [GreForm::Gre, GreForm::Gretap, GreForm::Ip6gre, GreForm::Ip6gretap]
            .map(|form| plain(form).overhead());
        assert_eq!(bytes, [24, 38, 44, 58]);
        assert_eq!(Gre { okey: Some(NumberOrNone(Some(0))), ..plain(GreForm::Gre) }.overhead(), 28);
        assert_eq!(Gre { encap_limit: Some(NumberOrNone(Some(4))), ..plain(GreForm::Ip6gre) }.overhead(), 52);
    }

    #[test]
    fn the_remote_endpoint_selects_the_family() {
        let mut gre = Gre { form: GreForm::Gretap, ..Gre::default() };
        gre.set_endpoints("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert_eq!(gre.name(), "ip6gretap");
        assert!(LinkKind::is_ethernet(&gre));
    }
}
