//! Common parts of tunnels: endpoints, headers and their checks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// Checks that both endpoints are of the outer family and that the local one is unicast.
pub(super) fn check_ends(
    [local, remote]: [Option<IpAddr>; 2],
    (kind, ipv6): (&str, bool),
    path: &str,
    problems: &mut Problems,
) {
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    for (end, field) in [(local, "local"), (remote, "remote")] {
        if let Some(end) = end.filter(|end| end.is_ipv6() != ipv6) {
            problems.invalid(
                format!("{path}.{field}"),
                format!("{kind} uses {family}, {end} is of the other family"),
            );
        }
    }
    // Over IPv4 the kernel selects the source address by route. Over IPv6 it would use the unspecified address.
    if ipv6 && is_set(remote) && !is_set(local) {
        problems.invalid(format!("{path}.local"), "a tunnel over IPv6 requires a local address");
    }
    if local.is_some_and(|local| local.is_multicast()) {
        problems.invalid(format!("{path}.local"), "the local address must be a unicast address");
    }
}

/// Checks fields that only tunnels over IPv6 have.
pub(super) fn check_ipv6_only(
    (limit, label): (Option<NumberOrNone>, Option<u32>),
    (kind, ipv6): (&str, bool),
    path: &str,
    problems: &mut Problems,
) {
    let stated =
        [("encapLimit", matches!(limit, Some(NumberOrNone(Some(_))))), ("flowLabel", label.is_some())];
    for (field, _) in stated.iter().filter(|(_, stated)| *stated && !ipv6) {
        let message = format!("{kind} uses IPv4, which has no such field");
        problems.invalid(format!("{path}.{field}"), message);
    }
    if let Some(NumberOrNone(Some(limit))) = limit
        && limit > 255
    {
        problems.invalid(format!("{path}.encapLimit"), format!("encapsulation limit {limit} exceeds 255"));
    }
    if let Some(label) = label.filter(|label| *label > MAX_FLOW_LABEL) {
        problems.invalid(format!("{path}.flowLabel"), format!("flow label {label} exceeds 20 bits"));
    }
}

/// The field that requires a tunnel to be recreated: whether it has a parent is fixed when it is created, and for a
/// `point_to_point` tunnel whether it has a remote endpoint.
pub(super) fn recreate_field(
    (observed, desired): (Option<IpAddr>, Option<IpAddr>),
    (observed_parent, desired_parent): (&Option<IfName>, &Option<IfName>),
    point_to_point: bool,
) -> Option<&'static str> {
    if point_to_point && desired.is_some() && is_set(desired) != is_set(observed) {
        return Some("remote");
    }
    (desired_parent.is_some() != observed_parent.is_some()).then_some("parent")
}
