//! Addresses, and what keeps one from being used.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::{Address, Scope, marks};

use super::ScopeLook;
use super::links::{Found, dump_each};
use crate::error::Result;
use crate::kernel::Room;
use crate::netlink::constants::*;
use crate::netlink::header::AddressHeader;
use crate::netlink::{Header, Message};

/// An address, and what the model does not hold of it.
#[derive(Debug)]
pub(crate) struct SeenAddress {
    pub(crate) address: Address,
    /// Duplicate detection is under way.
    pub(crate) tentative: bool,
    /// Duplicate detection found that someone else has it.
    pub(crate) duplicate: bool,
}

/// Looks at the addresses of links.
pub(crate) fn look(
    room: &mut Room<'_>,
    scope: &Scope,
    look: &ScopeLook,
    found: &Found,
) -> Result<Vec<SeenAddress>> {
    let request = |index: Option<u32>| {
        let mut message = Message::new(RTM_GETADDR, 0, format!("list addresses of {scope}"));
        message.header(&AddressHeader {
            family: look.family(),
            index: index.unwrap_or(0),
            ..Default::default()
        });
        message
    };
    dump_each(room, scope, &look.links, found, request, |body| decode(body, found))
}

fn decode(body: &[u8], found: &Found) -> Option<SeenAddress> {
    let (header, attributes) = AddressHeader::split(body)?;
    let link = found.name(header.index)?.clone();
    // With a point-to-point peer, IFA_ADDRESS is the peer's.
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
        owned: protocol == Some(marks::PROTOCOL),
    };
    Some(SeenAddress {
        address,
        tentative: flags & IFA_F_TENTATIVE != 0,
        duplicate: flags & IFA_F_DADFAILED != 0,
    })
}
