//! Where packets of the host leave, and which link has an address: what a route to another node needs.

mod links;

use std::net::IpAddr;

use knit_model::IfName;
use nix::errno::Errno;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::{AddressHeader, RouteHeader};
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

pub use links::Links;

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The link that packets leave by.
    pub link: IfName,
    /// The router that they go to; `None`: the address is on the link itself.
    pub gateway: Option<IpAddr>,
}

/// The host's way to an address, by its routes as they are now; `None` if there is none.
pub fn way_to(host: &Netns, to: IpAddr) -> Result<Option<Way>> {
    let mut socket = Socket::open_in(host, Protocol::Route)?;
    let (family, length) = if to.is_ipv4() { (AF_INET, 32) } else { (AF_INET6, 128) };
    let mut message = Message::new(RTM_GETROUTE, 0, format!("find the way to {to}"));
    message.header(&RouteHeader { family, destination_length: length, ..Default::default() });
    message.put_address(RTA_DST, to);
    let answer = socket.request_reply(message, |_, body| {
        let (_, attributes) = RouteHeader::split(body)?;
        let link = attributes.first(RTA_OIF).and_then(|link| link.u32());
        let gateway = attributes.first(RTA_GATEWAY).and_then(|gateway| gateway.address());
        Some((link, gateway))
    });
    let (link, gateway) = match answer {
        Ok((Some(link), gateway)) => (link, gateway),
        Ok((None, _)) => return Ok(None),
        Err(why) if [Errno::ENETUNREACH, Errno::EHOSTUNREACH].iter().any(|no| why.errno() == Some(*no)) => {
            return Ok(None);
        }
        Err(why) => return Err(why),
    };
    let name = socket.link_name(link)?.and_then(|name| IfName::new(name).ok());
    Ok(name.map(|link| Way { link, gateway }))
}

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
