//! Which addresses are on which link of the host, and which link has an address: what a route to another node needs.

mod links;

use std::net::IpAddr;

use knit_model::IfName;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::AddressHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

pub use links::Links;

/// The link of the host that has an address.
pub fn link_with(host: &Netns, address: IpAddr) -> Result<Option<IfName>> {
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
