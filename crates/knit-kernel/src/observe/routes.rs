//! Observes routes of every table except `local`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::route::{NextHop, RouteAction, RouteScope};
use knit_model::{Route, Scope, ScopeState, kernel_ids};

use super::links::LinkTable;
use super::{LinkFilter, ScopeQuery};
use crate::error::Result;
use crate::kernel::{Session, absent_is_none};
use crate::netlink::constants::*;
use crate::netlink::header::{HopHeader, RouteHeader};
use crate::netlink::{Attributes, Header, Message};

/// Observes routes. The kernel filters by table or link, so that a host with many routes does not report all of them.
/// It still walks all of them for each request, so bridge ports, which most links of a host are, are not queried:
/// they only have the IPv6 routes that the kernel adds to every link.
pub(crate) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    query: &ScopeQuery,
    found: &LinkTable,
) -> Result<Vec<Route>> {
    let mut filters: Vec<(Option<u32>, Option<u32>)> = Vec::new();
    match (&query.tables, &query.links) {
        (Some(tables), _) => filters.extend(tables.iter().map(|table| (Some(*table), None))),
        (None, LinkFilter::All) => filters.push((None, None)),
        (None, LinkFilter::Named(_)) => {
            filters.extend(found.with_routes().into_iter().map(|link| (None, Some(link))));
        }
    }
    let mut routes = Vec::new();
    if query.blackhole_routes {
        let message = request(scope, query.family(), Some(kernel_ids::HOST_TABLE), None);
        let blackhole_routes = session.socket(scope)?.dump(message, |_, body| {
            decode(body, found).filter(|route| route.owned && route.action != RouteAction::Forward)
        });
        routes.extend(absent_is_none(blackhole_routes)?.unwrap_or_default());
    }
    for (table, link) in filters {
        let message = request(scope, query.family(), table, link);
        let some = session.socket(scope)?.dump(message, |_, body| decode(body, found));
        routes.extend(absent_is_none(some)?.unwrap_or_default());
    }
    Ok(routes)
}

/// Adds a route. IPv6 may hold several routes of one identity (one `fe80::/64` per link); Knit's route takes
/// precedence.
pub(crate) fn insert(state: &mut ScopeState, route: Route) {
    if route.owned || !state.routes.contains_key(&route.key()) {
        state.add_route(route);
    }
}

/// A dump request for one address family, or for both.
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

/// Decodes one route. `None` for cached routes, the local table, and routes through links that were not observed.
pub(crate) fn decode(body: &[u8], found: &LinkTable) -> Option<Route> {
    let (header, attributes) = RouteHeader::split(body)?;
    let table = attributes.first(RTA_TABLE).and_then(|table| table.u32()).unwrap_or(header.table.into());
    if table == RT_TABLE_LOCAL || header.flags & RTM_F_CLONED != 0 {
        return None;
    }
    let action = match header.kind {
        RTN_UNICAST => RouteAction::Forward,
        RTN_BLACKHOLE => RouteAction::Blackhole,
        RTN_UNREACHABLE => RouteAction::Unreachable,
        RTN_PROHIBIT => RouteAction::Prohibit,
        _ => return None,
    };
    let unspecified = match header.family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let to = attributes.first(RTA_DST).and_then(|to| to.address()).unwrap_or(unspecified);
    let via = if action == RouteAction::Forward { hops(&header, attributes, found)? } else { Vec::new() };
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
        owned: header.protocol == kernel_ids::PROTOCOL,
    })
}

/// The next hops. `None` if none of their links was observed.
fn hops(header: &RouteHeader, attributes: Attributes<'_>, found: &LinkTable) -> Option<Vec<NextHop>> {
    let Some(several) = attributes.first(RTA_MULTIPATH) else {
        let link = found.name(attributes.first(RTA_OIF)?.u32()?)?.clone();
        let onlink = header.flags & RTNH_F_ONLINK != 0;
        return Some(vec![NextHop { gateway: gateway(attributes), link, weight: 1, onlink }]);
    };
    let mut hops = Vec::new();
    let mut rest = several.value;
    while let Some((hop, attributes, after)) = split_hop(rest) {
        rest = after;
        // A next hop through an unobserved link is left out; the route is still reported.
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

/// Splits off one next hop with its attributes.
fn split_hop(bytes: &[u8]) -> Option<(HopHeader, Attributes<'_>, &[u8])> {
    let hop = HopHeader::decode(bytes)?;
    let length = usize::from(hop.length);
    let attributes = Attributes::new(bytes.get(HopHeader::LENGTH..length)?);
    Some((hop, attributes, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn gateway(attributes: Attributes<'_>) -> Option<IpAddr> {
    let same_family = attributes.first(RTA_GATEWAY).and_then(|gateway| gateway.address());
    // An IPv4 route with an IPv6 gateway: two bytes of family, then the address.
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
    fn a_next_hop_of_invalid_length_ends_the_list() {
        let rest = |bytes: &'static [u8]| split_hop(bytes).map(|(_, _, rest)| rest);
        assert_eq!(rest(&[4, 0, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(rest(&[12, 0, 0, 0, 1, 0, 0, 0]), None);
        assert_eq!(rest(&[8, 0, 0, 0, 1, 0, 0, 0, 9]), Some(&[9][..]));
        assert_eq!(rest(&[]), None);
    }
}
