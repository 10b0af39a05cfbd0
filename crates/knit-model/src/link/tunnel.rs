//! Common parts of tunnels: endpoints, headers and their checks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::NumberOrNone;
use crate::name::IfName;
use crate::problem::Problems;

/// Value of a `tos` field that inherits it from the inner packet.
pub const INHERIT_TOS: u8 = 1;

/// Largest IPv6 flow label.
pub const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// Default TTL of tunnels.
pub(super) const DEFAULT_TTL: u8 = 64;

/// Outer header lengths, and the option that carries the encapsulation limit.
pub(super) const IPV4_HEADER: u32 = 20;
pub(super) const IPV6_HEADER: u32 = 40;
const LIMIT_OPTION: u32 = 8;

/// The unspecified address of a family.
pub(super) fn unset(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Whether an endpoint is set.
pub(super) fn is_set(end: Option<IpAddr>) -> bool {
    end.is_some_and(|end| !end.is_unspecified())
}

/// Length of the outer header, including the encapsulation limit option.
pub(super) fn outer_header(ipv6: bool, limit: Option<NumberOrNone>) -> u32 {
    match (ipv6, limit) {
        (false, _) => IPV4_HEADER,
        (true, Some(NumberOrNone(Some(_)))) => IPV6_HEADER + LIMIT_OPTION,
        (true, _) => IPV6_HEADER,
    }
}

/// Checks the identifier and the UDP port of a virtual network.
pub(super) fn check_vni_and_port(vni: u32, port: Option<u16>, path: &str, problems: &mut Problems) {
    if vni >= 1 << 24 {
        let message = format!("VNI {vni} exceeds 24 bits, the largest is 16777215");
        problems.invalid(format!("{path}.vni"), message);
    }
    if port == Some(0) {
        problems.invalid(format!("{path}.port"), "port 0 is not a valid port");
    }
}

/// The endpoints and outer header of GRE and IP tunnels. All but the parent can be changed on an existing link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelFields {
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
    /// Outer DS field; [`INHERIT_TOS`]: inherited from the inner packet.
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

impl TunnelFields {
    /// A tunnel between these endpoints.
    pub fn between(local: Option<IpAddr>, remote: Option<IpAddr>) -> Self {
        Self { local, remote, ..Self::default() }
    }

    /// Every field set that the outer family has, for tests that cover all fields.
    pub(super) fn full_for_tests(ipv6: bool) -> Self {
        let ends = if ipv6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
        let [local, remote] = ends.map(|end| end.parse().ok());
        Self {
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

    /// Length of the outer header, including the encapsulation limit option.
    pub(super) fn header(&self, ipv6: bool) -> u32 {
        outer_header(ipv6, self.encap_limit)
    }

    /// Sets the remote endpoint, and the local one unless it is set.
    pub(super) fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
        self.local = self.local.or(Some(local));
    }

    /// The fields with defaults for unset ones.
    pub(super) fn with_defaults(self, ipv6: bool, ttl: u8, pmtudisc: bool) -> Self {
        let unset = Some(unset(ipv6));
        Self {
            remote: self.remote.or(unset),
            local: self.local.or(unset),
            parent: self.parent,
            ttl: self.ttl.or(Some(ttl)),
            tos: self.tos.or(Some(0)),
            pmtudisc: self.pmtudisc.or(Some(pmtudisc)),
            encap_limit: self.encap_limit.or(Some(NumberOrNone(None))),
            flow_label: self.flow_label.or(Some(0)),
            fwmark: self.fwmark.or(Some(0)),
        }
    }

    /// The field that requires a tunnel to be recreated: whether it has a parent is fixed when it is created, and for
    /// a `point_to_point` tunnel whether it has a remote endpoint.
    pub(super) fn recreate_field(&self, desired: &Self, point_to_point: bool) -> Option<&'static str> {
        if point_to_point && desired.remote.is_some() && is_set(desired.remote) != is_set(self.remote) {
            return Some("remote");
        }
        (desired.parent.is_some() != self.parent.is_some()).then_some("parent")
    }

    /// Checks the fields for a kernel kind over IPv4 or IPv6.
    pub(super) fn check(&self, kind: &str, ipv6: bool, path: &str, problems: &mut Problems) {
        self.check_ends(kind, ipv6, path, problems);
        self.check_ipv6_only(kind, ipv6, path, problems);
        check_ipv4_only(("pmtuDisc", self.pmtudisc.is_some()), kind, ipv6, path, problems);
    }

    /// Checks that both endpoints are of the outer family and that the local one is unicast.
    fn check_ends(&self, kind: &str, ipv6: bool, path: &str, problems: &mut Problems) {
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        for (end, field) in [(self.local, "local"), (self.remote, "remote")] {
            if let Some(end) = end.filter(|end| end.is_ipv6() != ipv6) {
                problems.invalid(
                    format!("{path}.{field}"),
                    format!("{kind} uses {family}, {end} is of the other family"),
                );
            }
        }
        // Over IPv4 the kernel selects the source address by route. Over IPv6 it would use the unspecified address.
        if ipv6 && is_set(self.remote) && !is_set(self.local) {
            problems.invalid(format!("{path}.local"), "a tunnel over IPv6 requires a local address");
        }
        if self.local.is_some_and(|local| local.is_multicast()) {
            problems.invalid(format!("{path}.local"), "the local address must be a unicast address");
        }
    }

    /// Checks fields that only tunnels over IPv6 have.
    fn check_ipv6_only(&self, kind: &str, ipv6: bool, path: &str, problems: &mut Problems) {
        let limit = self.encap_limit.and_then(|NumberOrNone(limit)| limit);
        let stated = [("encapLimit", limit.is_some()), ("flowLabel", self.flow_label.is_some())];
        for (field, _) in stated.iter().filter(|(_, stated)| *stated && !ipv6) {
            let message = format!("{kind} uses IPv4, which has no such field");
            problems.invalid(format!("{path}.{field}"), message);
        }
        if let Some(limit) = limit.filter(|limit| *limit > 255) {
            let message = format!("encapsulation limit {limit} exceeds 255");
            problems.invalid(format!("{path}.encapLimit"), message);
        }
        if let Some(label) = self.flow_label.filter(|label| *label > MAX_FLOW_LABEL) {
            problems.invalid(format!("{path}.flowLabel"), format!("flow label {label} exceeds 20 bits"));
        }
    }
}

/// Checks a field that only tunnels over IPv4 have.
pub(super) fn check_ipv4_only(
    (field, is_set): (&str, bool),
    kind: &str,
    ipv6: bool,
    path: &str,
    problems: &mut Problems,
) {
    if is_set && ipv6 {
        problems.invalid(format!("{path}.{field}"), format!("{kind} uses IPv6, which has no such field"));
    }
}
