//! gre: IP or Ethernet over GRE, over IPv4 or IPv6.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, INHERIT_TOS, LinkKind, NumberOrNone, TunnelFields, tunnel};
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
    /// Endpoints and outer header.
    #[serde(flatten)]
    pub outer: TunnelFields,
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
    /// IPv4 only: whether the DF bit of inner packets is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_df: Option<bool>,
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
        Self {
            form,
            outer: TunnelFields::full_for_tests(ipv6),
            ikey: Some(NumberOrNone(Some(7))),
            okey: Some(NumberOrNone(None)),
            seq: Some(true),
            csum: Some(true),
            ignore_df: Some(true).filter(|_| !ipv6),
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
        let mut with_inherited_tos = Self::full_for_tests(GreForm::Ip6gretap);
        with_inherited_tos.outer.tos = Some(INHERIT_TOS);
        [GreForm::Gre, GreForm::Gretap, GreForm::Ip6gre, GreForm::Ip6gretap]
            .map(Self::full_for_tests)
            .into_iter()
            .chain([with_inherited_tos])
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
        self.outer.header(self.form.is_ipv6()) + HEADER + options + inner
    }

    fn parent(&self) -> Option<&IfName> {
        self.outer.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.outer.parent = Some(parent);
    }

    fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
        self.form = GreForm::new(self.form.is_ethernet(), remote.is_ipv6());
        self.outer.set_endpoints(local, remote);
    }

    fn with_defaults(self) -> Self {
        let pmtudisc = self.ignore_df != Some(true);
        Self {
            form: self.form,
            outer: self.outer.with_defaults(self.form.is_ipv6(), tunnel::DEFAULT_TTL, pmtudisc),
            ikey: self.ikey.or(Some(NumberOrNone(None))),
            okey: self.okey.or(Some(NumberOrNone(None))),
            seq: self.seq.or(Some(false)),
            csum: self.csum.or(Some(false)),
            ignore_df: self.ignore_df.or(Some(false)),
        }
    }

    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        self.outer.recreate_field(&desired.outer, desired.form == GreForm::Gre)
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let (kind, ipv6) = (self.form.name(), self.form.is_ipv6());
        self.outer.check(kind, ipv6, path, problems);
        tunnel::check_ipv4_only(("ignoreDf", self.ignore_df.is_some()), kind, ipv6, path, problems);
        if self.ignore_df == Some(true) && self.outer.pmtudisc == Some(true) {
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
        let mut limited = plain(GreForm::Ip6gre);
        limited.outer.encap_limit = Some(NumberOrNone(Some(4)));
        assert_eq!(limited.overhead(), 52);
    }

    #[test]
    fn the_remote_endpoint_selects_the_family() {
        let mut gre = Gre { form: GreForm::Gretap, ..Gre::default() };
        gre.set_endpoints("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert_eq!(gre.name(), "ip6gretap");
        assert!(LinkKind::is_ethernet(&gre));
    }
}
