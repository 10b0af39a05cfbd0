//! Encodes routes.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::route::{NextHop, RouteAction, RouteScope};
use knit_model::{Route, Scope, kernel_ids};

use crate::netlink::constants::*;
use crate::netlink::header::{HopHeader, RouteHeader};
use crate::netlink::{Header, Message};

/// Whether it is the link-local route that the kernel adds with a link's IPv6 address.
pub(super) fn is_added_by_kernel(route: &Route) -> bool {
    !route.owned && matches!(route.to, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

/// Adds a route. `indexes` are those of its next hops' links, in order.
pub(super) fn add(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let context = format!("add route {route} on {scope}");
    full(NLM_F_CREATE | NLM_F_EXCL, context, route, indexes)
}

/// Replaces the route of the same identity atomically.
pub(super) fn replace(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let context = format!("replace route {route} on {scope}");
    full(NLM_F_CREATE | NLM_F_REPLACE, context, route, indexes)
}

/// Removes a route of Knit's: the kernel compares the protocol.
pub(super) fn remove(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let mut message = Message::new(RTM_DELROUTE, 0, format!("remove route {route} on {scope}"));
    message.header(&RouteHeader { scope: RT_SCOPE_NOWHERE, kind: 0, ..header(route) });
    destination(&mut message, route);
    // A multipath route is deleted as a whole; naming one next hop would remove only that.
    if let [index] = indexes {
        message.put_u32(RTA_OIF, *index);
    }
    message
}

fn full(flags: u16, context: String, route: &Route, indexes: &[u32]) -> Message {
    let mut message = Message::new(RTM_NEWROUTE, flags, context);
    let mut header = header(route);
    if let [only] = route.via.as_slice()
        && only.onlink
    {
        header.flags |= RTNH_F_ONLINK;
    }
    message.header(&header);
    destination(&mut message, route);
    if let Some(source) = route.source {
        message.put_address(RTA_PREFSRC, source);
    }
    if let Some(mtu) = route.mtu {
        message.nest(RTA_METRICS, |metrics| {
            metrics.put_u32(RTAX_MTU, mtu);
        });
    }
    match (route.via.as_slice(), indexes) {
        ([only], [index]) => {
            gateway(&mut message, route, only);
            message.put_u32(RTA_OIF, *index);
        }
        (several, indexes) if !several.is_empty() => {
            message.nest_unmarked(RTA_MULTIPATH, |list| {
                for (hop, index) in several.iter().zip(indexes) {
                    add_hop(list, route, hop, *index);
                }
            });
        }
        _ => {}
    }
    message
}

fn header(route: &Route) -> RouteHeader {
    let is_ipv4 = route.to.addr().is_ipv4();
    let scope = match route.scope {
        RouteScope::Link if is_ipv4 => RT_SCOPE_LINK,
        RouteScope::Host if is_ipv4 => RT_SCOPE_HOST,
        _ => RT_SCOPE_UNIVERSE,
    };
    let kind = match route.action {
        RouteAction::Forward => RTN_UNICAST,
        RouteAction::Blackhole => RTN_BLACKHOLE,
        RouteAction::Unreachable => RTN_UNREACHABLE,
        RouteAction::Prohibit => RTN_PROHIBIT,
    };
    RouteHeader {
        family: if is_ipv4 { AF_INET } else { AF_INET6 },
        destination_length: route.to.prefix_len(),
        // `RTA_TABLE` has the whole number; tables above 255 do not fit here.
        table: u8::try_from(route.table).unwrap_or(0),
        protocol: if route.owned { kernel_ids::PROTOCOL } else { RTPROT_STATIC },
        scope,
        kind,
        ..Default::default()
    }
}

/// Writes the identity of a route: destination, table, metric.
fn destination(message: &mut Message, route: &Route) {
    let key = route.key();
    message.put_address(RTA_DST, key.to.addr()).put_u32(RTA_TABLE, key.table);
    if key.metric != 0 {
        message.put_u32(RTA_PRIORITY, key.metric);
    }
}

fn gateway(message: &mut Message, route: &Route, hop: &NextHop) {
    match hop.gateway {
        Some(IpAddr::V6(gateway)) if route.to.addr().is_ipv4() => {
            let mut via = u16::from(AF_INET6).to_ne_bytes().to_vec();
            via.extend_from_slice(&gateway.octets());
            message.put_bytes(RTA_VIA, &via);
        }
        Some(gateway) => {
            message.put_address(RTA_GATEWAY, gateway);
        }
        None => {}
    }
}

fn add_hop(list: &mut Message, route: &Route, hop: &NextHop, index: u32) {
    // The next hop's attributes are encoded first, because its header contains their length.
    let mut attributes = Message::new(0, 0, "");
    let before = attributes.as_bytes().len();
    gateway(&mut attributes, route, hop);
    let attributes = &attributes.as_bytes()[before..];
    list.header(&HopHeader {
        length: (HopHeader::LENGTH + attributes.len()) as u16,
        flags: if hop.onlink { RTNH_F_ONLINK as u8 } else { 0 },
        hops: hop.weight.saturating_sub(1).min(255) as u8,
        index: index as i32,
    });
    list.append(attributes);
}
