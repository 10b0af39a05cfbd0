//! Links of the host that carry Ethernet, by name.

use std::collections::BTreeMap;

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

/// Links of interest, as they were last. One that is still the same is not asked for again.
#[derive(Debug, Default)]
pub(super) struct Ethernets {
    known: BTreeMap<IfName, Last>,
}

/// What a link was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// It was not there, or nobody has looked yet.
    Absent,
    /// Of another kind.
    Other(u32),
    Ethernet(Ethernet),
}

impl Ethernets {
    /// These are of interest, and no others.
    pub(super) fn name<'a>(&mut self, names: impl Iterator<Item = &'a IfName>) {
        let before = std::mem::take(&mut self.known);
        for name in names {
            if !self.known.contains_key(name) {
                let last = before.get(name).copied().unwrap_or(Last::Absent);
                self.known.insert(name.clone(), last);
            }
        }
    }

    /// Looks at them, in the calling thread's namespace. Says whether any is another than before.
    pub(super) fn look(&mut self) -> Result<bool> {
        let mut is_news = false;
        for (name, last) in &mut self.known {
            let now = match if_nametoindex(name.as_str()) {
                Ok(index) if last.index() == Some(index) => continue,
                Ok(index) => ask(index)?.map_or(Last::Other(index), Last::Ethernet),
                Err(_) => Last::Absent,
            };
            is_news |= *last != now;
            *last = now;
        }
        Ok(is_news)
    }

    /// A link, if it is there and carries Ethernet.
    pub(super) fn get(&self, name: &IfName) -> Option<Ethernet> {
        match self.known.get(name)? {
            Last::Ethernet(ethernet) => Some(*ethernet),
            Last::Absent | Last::Other(_) => None,
        }
    }
}

impl Last {
    fn index(self) -> Option<u32> {
        match self {
            Self::Absent => None,
            Self::Other(index) => Some(index),
            Self::Ethernet(ethernet) => Some(ethernet.index),
        }
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
