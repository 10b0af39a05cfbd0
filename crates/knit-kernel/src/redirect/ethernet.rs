//! Links of the host that carry Ethernet, by name.

use std::collections::{BTreeMap, BTreeSet};

use knit_model::{IfName, Mac};
use nix::net::if_::if_nametoindex;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};

/// The kernel's number for Ethernet among hardware types (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

/// What is known of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ethernet {
    pub(super) index: u32,
    pub(super) mac: Mac,
}

/// Links that were looked at. One that is still the same is not asked for again.
#[derive(Debug, Default)]
pub(super) struct Ethernets {
    /// Nothing for one of another kind.
    known: BTreeMap<IfName, (u32, Option<Ethernet>)>,
}

impl Ethernets {
    /// Looks at exactly these, in the calling thread's namespace.
    pub(super) fn look(&mut self, names: &BTreeSet<&IfName>) -> Result<()> {
        self.known.retain(|name, _| names.contains(name));
        for name in names {
            let Ok(index) = if_nametoindex(name.as_str()) else {
                self.known.remove(*name);
                continue;
            };
            if self.known.get(*name).is_none_or(|(known, _)| *known != index) {
                self.known.insert((*name).clone(), (index, ask(index)?));
            }
        }
        Ok(())
    }

    /// A link, if it is there and carries Ethernet.
    pub(super) fn get(&self, name: &IfName) -> Option<Ethernet> {
        self.known.get(name)?.1
    }
}

fn ask(index: u32) -> Result<Option<Ethernet>> {
    let mut socket = Socket::open(Protocol::Route)?;
    let mut message = Message::new(RTM_GETLINK, 0, "look at a link to other nodes");
    let number = i32::try_from(index).unwrap_or_default();
    message.header(&LinkHeader { index: number, ..LinkHeader::default() });
    message.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    socket.request_reply(message, |_, body| {
        let (header, attributes) = LinkHeader::split(body)?;
        let mac = attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes);
        Some(mac.filter(|_| header.hardware == ETHERNET).map(|mac| Ethernet { index, mac }))
    })
}
