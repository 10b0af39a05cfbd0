//! gre: IP or Ethernet behind a small header, over IPv4 or IPv6.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, OrNone, tunnel};
use crate::name::IfName;
use crate::problem::Problems;

/// The GRE header without options, and each option.
const HEADER: u32 = 4;
const OPTION: u32 = 4;
const ETHERNET_HEADER: u32 = 14;

/// A GRE tunnel's own fields. All but the form, the parent and `ignore_df` change on the living link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gre {
    /// Which of the kernel's four kinds it is.
    pub form: GreForm,
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
    /// The key that packets come with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ikey: Option<OrNone>,
    /// The key that packets go with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub okey: Option<OrNone>,
    /// Whether packets are numbered, and late ones dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<bool>,
    /// Whether packets have a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csum: Option<bool>,
    /// Over IPv4: whether outer packets must not be fragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtudisc: Option<bool>,
    /// Over IPv4: whether packets inside are fragmented although they forbid it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_df: Option<bool>,
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

/// What a GRE tunnel carries, and over what.
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
    /// The form that carries Ethernet or IP, over IPv6 or IPv4.
    pub fn new(ethernet: bool, ipv6: bool) -> Self {
        match (ethernet, ipv6) {
            (false, false) => Self::Gre,
            (true, false) => Self::Gretap,
            (false, true) => Self::Ip6gre,
            (true, true) => Self::Ip6gretap,
        }
    }

    /// The form by the kernel's word.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Gre, Self::Gretap, Self::Ip6gre, Self::Ip6gretap].into_iter().find(|form| form.name() == name)
    }

    /// The kernel's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gre => "gre",
            Self::Gretap => "gretap",
            Self::Ip6gre => "ip6gre",
            Self::Ip6gretap => "ip6gretap",
        }
    }

    /// Whether Ethernet is inside.
    pub fn is_ethernet(self) -> bool {
        matches!(self, Self::Gretap | Self::Ip6gretap)
    }

    /// Whether it goes over IPv6.
    pub fn is_ipv6(self) -> bool {
        matches!(self, Self::Ip6gre | Self::Ip6gretap)
    }
}

impl Gre {
    /// Every field stated, for tests that go over all fields.
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
            ikey: Some(OrNone(Some(7))),
            okey: Some(OrNone(None)),
            seq: Some(true),
            csum: Some(true),
            pmtudisc: Some(false).filter(|_| !ipv6),
            ignore_df: Some(true).filter(|_| !ipv6),
            encap_limit: Some(OrNone(Some(4))).filter(|_| ipv6),
            flow_label: Some(0x4_2042).filter(|_| ipv6),
            fwmark: Some(3),
        }
    }
}

impl LinkKind for Gre {
    const NAME: &'static str = "gre";
    const NAMES: &'static [&'static str] = &["gre", "gretap", "ip6gre", "ip6gretap"];
    const RECREATE: &'static [&'static str] = &["parent", "ignore_df"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn name(&self) -> &'static str {
        self.form.name()
    }

    fn is_ethernet(&self) -> bool {
        self.form.is_ethernet()
    }

    fn overhead(&self) -> u32 {
        let options =
            [self.csum == Some(true), matches!(self.okey, Some(OrNone(Some(_)))), self.seq == Some(true)];
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

    fn set_ends(&mut self, local: IpAddr, remote: IpAddr) {
        self.form = GreForm::new(self.form.is_ethernet(), remote.is_ipv6());
        self.remote = Some(remote);
        self.local = self.local.or(Some(local));
    }

    fn with_defaults(self) -> Self {
        let nothing = Some(tunnel::unset(self.form.is_ipv6()));
        Self {
            remote: self.remote.or(nothing),
            local: self.local.or(nothing),
            ttl: self.ttl.or(Some(tunnel::DEFAULT_TTL)),
            tos: self.tos.or(Some(0)),
            ikey: self.ikey.or(Some(OrNone(None))),
            okey: self.okey.or(Some(OrNone(None))),
            seq: self.seq.or(Some(false)),
            csum: self.csum.or(Some(false)),
            pmtudisc: self.pmtudisc.or(Some(self.ignore_df != Some(true))),
            ignore_df: self.ignore_df.or(Some(false)),
            encap_limit: self.encap_limit.or(Some(OrNone(None))),
            flow_label: self.flow_label.or(Some(0)),
            fwmark: self.fwmark.or(Some(0)),
            ..self
        }
    }

    fn cannot_become(&self, wanted: &Self) -> Option<&'static str> {
        let point_to_point = wanted.form == GreForm::Gre;
        tunnel::cannot_become((self.remote, wanted.remote), (&self.parent, &wanted.parent), point_to_point)
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let form = (self.form.name(), self.form.is_ipv6());
        tunnel::check_ends([self.local, self.remote], form, path, problems);
        tunnel::check_ipv6_only((self.encap_limit, self.flow_label), form, path, problems);
        let ipv4_only = [("pmtuDisc", self.pmtudisc), ("ignoreDf", self.ignore_df)];
        for (field, _) in ipv4_only.iter().filter(|(_, stated)| stated.is_some() && self.form.is_ipv6()) {
            let message = format!("{} goes over IPv6, which has no such field", self.form.name());
            problems.invalid(format!("{path}.{field}"), message);
        }
        if self.ignore_df == Some(true) && self.pmtudisc == Some(true) {
            let message = "`ignoreDf` fragments what `pmtuDisc` forbids to fragment: state one of them";
            problems.invalid(format!("{path}.ignoreDf"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_follows_from_the_form_and_its_options() {
        let plain = |form| Gre { form, ..Gre::default() };
        let bytes = [GreForm::Gre, GreForm::Gretap, GreForm::Ip6gre, GreForm::Ip6gretap]
            .map(|form| plain(form).overhead());
        assert_eq!(bytes, [24, 38, 44, 58]);
        assert_eq!(Gre { okey: Some(OrNone(Some(0))), ..plain(GreForm::Gre) }.overhead(), 28);
        assert_eq!(Gre { encap_limit: Some(OrNone(Some(4))), ..plain(GreForm::Ip6gre) }.overhead(), 52);
    }

    #[test]
    fn the_far_end_decides_the_family() {
        let mut gre = Gre { form: GreForm::Gretap, ..Gre::default() };
        gre.set_ends("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        assert_eq!(gre.name(), "ip6gretap");
        assert!(LinkKind::is_ethernet(&gre));
    }
}
