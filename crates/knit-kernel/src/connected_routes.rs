//! Reads the connected routes of the host.
//!
//! They are read with one dump of the main routing table: a cluster has thousands of nodes, and a route lookup for
//! each of them is one round trip to the kernel every time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::connected_routes::ConnectedRoutes;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, RouteHeader};
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// Reads the routing table.
pub fn connected_routes(host: &Netns) -> Result<ConnectedRoutes> {
    let mut socket = Socket::open_in(host, Protocol::Route)?;
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let mut message = Message::new(RTM_GETROUTE, 0, "list the host's routes");
        message.header(&RouteHeader { family, ..Default::default() });
        message.put_u32(RTA_TABLE, RT_TABLE_MAIN.into());
        found.extend(socket.dump(message, |_, body| decode(body))?);
    }
    let mut names: BTreeMap<u32, Option<IfName>> = BTreeMap::new();
    for index in found.iter().filter_map(|(_, _, index)| *index) {
        if let Entry::Vacant(unknown) = names.entry(index) {
            unknown.insert(socket.link_name(index)?.and_then(|name| IfName::new(name).ok()));
        }
    }
    let name = |index: Option<u32>| names.get(&index?).cloned().flatten();
    Ok(ConnectedRoutes::new(found.into_iter().map(|(to, metric, index)| (to, metric, name(index)))))
}

/// The link of the host that holds this address.
pub fn link_by_address(host: &Netns, address: IpAddr) -> Result<Option<IfName>> {
    let mut socket = Socket::open_in(host, Protocol::Route)?;
    let mut message = Message::new(RTM_GETADDR, 0, "list the host's addresses");
    message.header(&AddressHeader::default());
    let found = socket.dump(message, |_, body| {
        let (header, attributes) = AddressHeader::split(body)?;
        let local = attributes.first(IFA_LOCAL).or_else(|| attributes.first(IFA_ADDRESS))?;
        (local.address()? == address).then_some(header.index)
    })?;
    let Some(index) = found.first() else { return Ok(None) };
    Ok(socket.link_name(*index)?.and_then(|name| IfName::new(name).ok()))
}

/// Decodes one route: destination, metric, and the link if it has no gateway.
pub(crate) fn decode(body: &[u8]) -> Option<(IpNet, u32, Option<u32>)> {
    let (header, attributes) = RouteHeader::split(body)?;
    let table = attributes.first(RTA_TABLE).and_then(|table| table.u32()).unwrap_or(header.table.into());
    // A kernel without dump filtering returns all tables.
    if table != u32::from(RT_TABLE_MAIN) || header.flags & RTM_F_CLONED != 0 {
        return None;
    }
    let unspecified = match header.family {
        AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let to = attributes.first(RTA_DST).and_then(|to| to.address()).unwrap_or(unspecified);
    let metric = attributes.first(RTA_PRIORITY).and_then(|metric| metric.u32()).unwrap_or(0);
    let is_direct = header.kind == RTN_UNICAST
        && [RTA_GATEWAY, RTA_VIA, RTA_ENCAP].iter().all(|kind| attributes.first(*kind).is_none());
    let link = is_direct.then(|| attributes.first(RTA_OIF)?.u32()).flatten();
    Some((IpNet::new(to, header.destination_length).ok()?.trunc(), metric, link))
}
