//! Routes on the wire.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::route::{Action, NextHop, RouteScope};
use knit_model::{Route, Scope, marks};

use crate::netlink::constants::*;
use crate::netlink::header::{HopHeader, RouteHeader};
use crate::netlink::{Header, Message};

/// The kernel's route to the neighbours on each link, which comes with the link's own IPv6 address.
pub(super) fn comes_by_itself(route: &Route) -> bool {
    !route.owned && matches!(route.to, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

/// Adds a route. The numbers are those of its hops' links, in order.
pub(super) fn add(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let context = format!("add route {route} on {scope}");
    full(NLM_F_CREATE | NLM_F_EXCL, context, route, indexes)
}

/// Puts a route in the place of the one of the same identity, with no moment without either.
pub(super) fn replace(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let context = format!("replace route {route} on {scope}");
    full(NLM_F_CREATE | NLM_F_REPLACE, context, route, indexes)
}

/// Removes a route, which must carry Knit's mark: the kernel compares it.
pub(super) fn remove(scope: &Scope, route: &Route, indexes: &[u32]) -> Message {
    let mut message = Message::new(RTM_DELROUTE, 0, format!("remove route {route} on {scope}"));
    message.header(&RouteHeader { scope: RT_SCOPE_NOWHERE, kind: 0, ..header(route) });
    destination(&mut message, route);
    // Several hops go with their route; naming one would take only that.
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
        Action::Forward => RTN_UNICAST,
        Action::Blackhole => RTN_BLACKHOLE,
        Action::Unreachable => RTN_UNREACHABLE,
        Action::Prohibit => RTN_PROHIBIT,
    };
    RouteHeader {
        family: if is_ipv4 { AF_INET } else { AF_INET6 },
        destination_length: route.to.prefix_len(),
        // The attribute says it all; a table above 255 has no place here.
        table: u8::try_from(route.table).unwrap_or(0),
        protocol: if route.owned { marks::PROTOCOL } else { RTPROT_STATIC },
        scope,
        kind,
        ..Default::default()
    }
}

/// What makes up a route's identity.
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
    // The hop's own attributes are written apart first: its length comes before them.
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
