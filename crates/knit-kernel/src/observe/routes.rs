//! Routes of every table but the kernel's local one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::route::{Action, NextHop, RouteScope};
use knit_model::{Route, Scope, ScopeState, marks};

use super::links::Found;
use super::{Links, ScopeLook};
use crate::error::Result;
use crate::kernel::{Room, absent_is_none};
use crate::netlink::constants::*;
use crate::netlink::header::{HopHeader, RouteHeader};
use crate::netlink::{Attributes, Header, Message};

/// Looks at routes. The kernel filters by table or by link, so that a host with many routes does not tell them all. It walks
/// through all of them nonetheless, each time: so it is not asked for links that are ports of a bridge, of which a host has
/// most. Those have only what the kernel gives every link of IPv6 by itself.
pub(crate) fn look(
    room: &mut Room<'_>,
    scope: &Scope,
    look: &ScopeLook,
    found: &Found,
) -> Result<Vec<Route>> {
    let mut filters: Vec<(Option<u32>, Option<u32>)> = Vec::new();
    match (&look.tables, &look.links) {
        (Some(tables), _) => filters.extend(tables.iter().map(|table| (Some(*table), None))),
        (None, Links::All) => filters.push((None, None)),
        (None, Links::Named(_)) => {
            filters.extend(found.with_routes().into_iter().map(|link| (None, Some(link))));
        }
    }
    let mut routes = Vec::new();
    if look.dead_ends {
        let message = request(scope, look.family(), Some(marks::HOST_TABLE), None);
        let dead_ends = room.socket(scope)?.dump(message, |_, body| {
            decode(body, found).filter(|route| route.owned && route.action != Action::Forward)
        });
        routes.extend(absent_is_none(dead_ends)?.unwrap_or_default());
    }
    for (table, link) in filters {
        let message = request(scope, look.family(), table, link);
        let some = room.socket(scope)?.dump(message, |_, body| decode(body, found));
        routes.extend(absent_is_none(some)?.unwrap_or_default());
    }
    Ok(routes)
}

/// Puts a route in. IPv6 holds several routes of one identity where others made them (one `fe80::/64` per link);
/// Knit's own is never hidden by them.
pub(crate) fn insert(state: &mut ScopeState, route: Route) {
    if route.owned || !state.routes.contains_key(&route.key()) {
        state.add_route(route);
    }
}

/// Asks for one family, or for both at once.
fn request(scope: &Scope, family: u8, table: Option<u32>, link: Option<u32>) -> Message {
    let mut message = Message::new(RTM_GETROUTE, 0, format!("list routes of {scope}"));
    message.header(&RouteHeader { family, ..Default::default() });
    if let Some(table) = table {
        message.put_u32(RTA_TABLE, table);
    }
    if let Some(link) = link {
        message.put_u32(RTA_OIF, link);
    }
    message
}

/// Reads one route. `None` for the kernel's own bookkeeping, and for routes over links that are no part of the look.
fn decode(body: &[u8], found: &Found) -> Option<Route> {
    let (header, attributes) = RouteHeader::split(body)?;
    let table = attributes.first(RTA_TABLE).and_then(|table| table.u32()).unwrap_or(header.table.into());
    if table == RT_TABLE_LOCAL || header.flags & RTM_F_CLONED != 0 {
        return None;
    }
    let action = match header.kind {
        RTN_UNICAST => Action::Forward,
        RTN_BLACKHOLE => Action::Blackhole,
        RTN_UNREACHABLE => Action::Unreachable,
        RTN_PROHIBIT => Action::Prohibit,
        _ => return None,
    };
    let anywhere = match header.family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let to = attributes.first(RTA_DST).and_then(|to| to.address()).unwrap_or(anywhere);
    let via = if action == Action::Forward { hops(&header, attributes, found)? } else { Vec::new() };
    let metrics = attributes.first(RTA_METRICS).map(|metrics| metrics.nested());
    Some(Route {
        to: IpNet::new(to, header.destination_length).ok()?,
        action,
        via,
        table,
        metric: attributes.first(RTA_PRIORITY).and_then(|metric| metric.u32()).unwrap_or(0),
        source: attributes.first(RTA_PREFSRC).and_then(|source| source.address()),
        scope: match header.scope {
            RT_SCOPE_LINK => RouteScope::Link,
            RT_SCOPE_HOST => RouteScope::Host,
            _ => RouteScope::Global,
        },
        mtu: metrics.and_then(|metrics| metrics.first(RTAX_MTU)?.u32()),
        owned: header.protocol == marks::PROTOCOL,
    })
}

/// The next hops. `None` when no link of the look is among them.
fn hops(header: &RouteHeader, attributes: Attributes<'_>, found: &Found) -> Option<Vec<NextHop>> {
    let Some(several) = attributes.first(RTA_MULTIPATH) else {
        let link = found.name(attributes.first(RTA_OIF)?.u32()?)?.clone();
        let onlink = header.flags & RTNH_F_ONLINK != 0;
        return Some(vec![NextHop { gateway: gateway(attributes), link, weight: 1, onlink }]);
    };
    let mut hops = Vec::new();
    let mut rest = several.value;
    while let Some((hop, attributes, after)) = split_hop(rest) {
        rest = after;
        // A hop over a link that was not looked at cannot be named; the route is still one of the look's.
        if let Some(link) = found.name(hop.index as u32) {
            hops.push(NextHop {
                gateway: gateway(attributes),
                link: link.clone(),
                weight: u16::from(hop.hops) + 1,
                onlink: u32::from(hop.flags) & RTNH_F_ONLINK != 0,
            });
        }
    }
    (!hops.is_empty()).then_some(hops)
}

/// One hop with its attributes, and what follows.
fn split_hop(bytes: &[u8]) -> Option<(HopHeader, Attributes<'_>, &[u8])> {
    let hop = HopHeader::decode(bytes)?;
    let length = usize::from(hop.length);
    let attributes = Attributes::new(bytes.get(HopHeader::LENGTH..length)?);
    Some((hop, attributes, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn gateway(attributes: Attributes<'_>) -> Option<IpAddr> {
    let same_family = attributes.first(RTA_GATEWAY).and_then(|gateway| gateway.address());
    // An IPv4 route through an IPv6 router: two bytes of family, then the address.
    let other_family = || {
        let via = attributes.first(RTA_VIA)?;
        let octets: [u8; 16] = via.value.get(2..)?.try_into().ok()?;
        Some(IpAddr::from(octets))
    };
    same_family.or_else(other_family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_of_an_impossible_length_ends_the_walk() {
        let rest = |bytes: &'static [u8]| split_hop(bytes).map(|(_, _, rest)| rest);
        assert_eq!(rest(&[4, 0, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(rest(&[12, 0, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(rest(&[8, 0, 0, 0, 1, 0, 0, 0, 9]), Some(&[9][..]));
        assert_eq!(rest(&[]), None);
    }
}
