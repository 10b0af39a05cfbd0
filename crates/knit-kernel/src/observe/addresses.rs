//! Observes addresses and the state of duplicate address detection.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::{Address, Scope, kernel_ids};

use super::ScopeQuery;
use super::links::{LinkTable, dump_each};
use crate::error::Result;
use crate::kernel::Session;
use crate::netlink::constants::*;
use crate::netlink::header::AddressHeader;
use crate::netlink::{Header, Message};

/// An address, with details that are not part of the model.
#[derive(Debug)]
pub(crate) struct ObservedAddress {
    pub(crate) address: Address,
    /// Duplicate address detection is in progress.
    pub(crate) tentative: bool,
    /// Duplicate address detection found another owner.
    pub(crate) duplicate: bool,
}

/// Observes the addresses of links.
pub(crate) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    query: &ScopeQuery,
    found: &LinkTable,
) -> Result<Vec<ObservedAddress>> {
    let request = |index: Option<u32>| {
        let mut message = Message::new(RTM_GETADDR, 0, format!("list addresses of {scope}"));
        message.header(&AddressHeader {
            family: query.family(),
            index: index.unwrap_or(0),
            ..Default::default()
        });
        message
    };
    dump_each(session, scope, &query.links, found, request, |body| decode(body, found))
}

pub(crate) fn decode(body: &[u8], found: &LinkTable) -> Option<ObservedAddress> {
    let (header, attributes) = AddressHeader::split(body)?;
    let link = found.name(header.index)?.clone();
    // With a point-to-point peer, IFA_ADDRESS is the peer's address.
    let own = attributes.first(IFA_LOCAL).or_else(|| attributes.first(IFA_ADDRESS))?.address()?;
    let flags = attributes.first(IFA_FLAGS).and_then(|flags| flags.u32()).unwrap_or(header.flags.into());
    let broadcast = attributes.first(IFA_BROADCAST).and_then(|broadcast| broadcast.address());
    let protocol = attributes.first(IFA_PROTO).and_then(|protocol| protocol.u8());
    let address = Address {
        link,
        address: IpNet::new(own, header.prefix_length).ok()?,
        noprefixroute: flags & IFA_F_NOPREFIXROUTE != 0,
        broadcast: match broadcast {
            Some(IpAddr::V4(broadcast)) => Some(broadcast),
            _ => None,
        },
        deprecated: flags & IFA_F_DEPRECATED != 0,
        owned: protocol == Some(kernel_ids::PROTOCOL),
    };
    Some(ObservedAddress {
        address,
        tentative: flags & IFA_F_TENTATIVE != 0,
        duplicate: flags & IFA_F_DADFAILED != 0,
    })
}
