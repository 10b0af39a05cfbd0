//! What tunnels have in common: two ends, and what is wrong with a pair of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::OrNone;
use crate::name::IfName;
use crate::problem::Problems;

/// This value of a `tos` field is no value: it is copied from the packet inside.
pub const INHERIT_TOS: u8 = 1;

/// The largest flow label of IPv6.
pub const MAX_FLOW_LABEL: u32 = 0xf_ffff;

/// The hops that a tunnel's packets may take when nobody says anything.
pub(super) const DEFAULT_TTL: u8 = 64;

/// The bytes of an outer header, and of the option that carries the encapsulation limit.
pub(super) const IPV4_HEADER: u32 = 20;
pub(super) const IPV6_HEADER: u32 = 40;
const LIMIT_OPTION: u32 = 8;

/// The address that says "none" in a family.
pub(super) fn unset(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Whether an end is set.
pub(super) fn is_set(end: Option<IpAddr>) -> bool {
    end.is_some_and(|end| !end.is_unspecified())
}

/// The bytes of the outer header, with its option where there is one.
pub(super) fn outer_header(ipv6: bool, limit: Option<OrNone>) -> u32 {
    match (ipv6, limit) {
        (false, _) => IPV4_HEADER,
        (true, Some(OrNone(Some(_)))) => IPV6_HEADER + LIMIT_OPTION,
        (true, _) => IPV6_HEADER,
    }
}

/// Both ends are of the family that the tunnel goes over, and the near one is an address of one host.
pub(super) fn check_ends(
    [local, remote]: [Option<IpAddr>; 2],
    (kind, ipv6): (&str, bool),
    path: &str,
    problems: &mut Problems,
) {
    let family = if ipv6 { "IPv6" } else { "IPv4" };
    for (end, field) in [(local, "local"), (remote, "remote")] {
        if let Some(end) = end.filter(|end| end.is_ipv6() != ipv6) {
            problems.invalid(format!("{path}.{field}"), format!("{kind} goes over {family}, {end} is not"));
        }
    }
    // Over IPv4 the kernel takes the address of the route to the far end. Over IPv6 it would send from no address.
    if ipv6 && is_set(remote) && !is_set(local) {
        problems.invalid(format!("{path}.local"), "over IPv6 the near end's address must be stated");
    }
    if local.is_some_and(|local| local.is_multicast()) {
        problems.invalid(format!("{path}.local"), "the local address must be a unicast address");
    }
}

/// Fields that only tunnels over IPv6 have.
pub(super) fn check_ipv6_only(
    (limit, label): (Option<OrNone>, Option<u32>),
    (kind, ipv6): (&str, bool),
    path: &str,
    problems: &mut Problems,
) {
    let stated = [("encapLimit", matches!(limit, Some(OrNone(Some(_))))), ("flowLabel", label.is_some())];
    for (field, _) in stated.iter().filter(|(_, stated)| *stated && !ipv6) {
        let message = format!("{kind} goes over IPv4, which has no such field");
        problems.invalid(format!("{path}.{field}"), message);
    }
    if let Some(OrNone(Some(limit))) = limit
        && limit > 255
    {
        problems.invalid(format!("{path}.encapLimit"), format!("encapsulation limit {limit} is above 255"));
    }
    if let Some(label) = label.filter(|label| *label > MAX_FLOW_LABEL) {
        problems.invalid(format!("{path}.flowLabel"), format!("flow label {label} needs more than 20 bits"));
    }
}

/// The field that keeps a living tunnel from becoming the wanted one: also whether it has a parent is fixed at birth, and
/// where it is `point_to_point`, whether it has a far end.
pub(super) fn cannot_become(
    (seen, wanted): (Option<IpAddr>, Option<IpAddr>),
    (seen_parent, wanted_parent): (&Option<IfName>, &Option<IfName>),
    point_to_point: bool,
) -> Option<&'static str> {
    if point_to_point && wanted.is_some() && is_set(wanted) != is_set(seen) {
        return Some("remote");
    }
    (wanted_parent.is_some() != seen_parent.is_some()).then_some("parent")
}
