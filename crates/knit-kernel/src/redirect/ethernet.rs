//! Ethernet links of the host, by name.

use std::collections::BTreeMap;

use knit_model::{IfName, Mac};
use nix::net::if_::if_nametoindex;

use crate::error::Result;
use crate::netlink::constants::*;
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};

/// The hardware type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

/// An Ethernet link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EthernetLink {
    pub(super) index: u32,
    pub(super) mac: Mac,
}

/// The watched links, as last seen. An unchanged index is not queried again.
#[derive(Debug, Default)]
pub(super) struct EthernetLinks {
    known: BTreeMap<IfName, LastSeen>,
}

/// A link as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastSeen {
    /// Missing, or not queried yet.
    Absent,
    /// Not Ethernet.
    Other(u32),
    Ethernet(EthernetLink),
}

impl EthernetLinks {
    /// Watches exactly these links.
    pub(super) fn set_names<'a>(&mut self, names: impl Iterator<Item = &'a IfName>) {
        let before = std::mem::take(&mut self.known);
        for name in names {
            if !self.known.contains_key(name) {
                let last = before.get(name).copied().unwrap_or(LastSeen::Absent);
                self.known.insert(name.clone(), last);
            }
        }
    }

    /// Refreshes them in the calling thread's namespace. Returns whether any changed.
    pub(super) fn refresh(&mut self) -> Result<bool> {
        let mut is_changed = false;
        for (name, last) in &mut self.known {
            let now = match if_nametoindex(name.as_str()) {
                Ok(index) if last.index() == Some(index) => continue,
                Ok(index) => query(index)?.map_or(LastSeen::Other(index), LastSeen::Ethernet),
                Err(_) => LastSeen::Absent,
            };
            is_changed |= *last != now;
            *last = now;
        }
        Ok(is_changed)
    }

    /// A link, if it exists and is Ethernet.
    pub(super) fn get(&self, name: &IfName) -> Option<EthernetLink> {
        match self.known.get(name)? {
            LastSeen::Ethernet(ethernet) => Some(*ethernet),
            LastSeen::Absent | LastSeen::Other(_) => None,
        }
    }
}

impl LastSeen {
    fn index(self) -> Option<u32> {
        match self {
            Self::Absent => None,
            Self::Other(index) => Some(index),
            Self::Ethernet(ethernet) => Some(ethernet.index),
        }
    }
}

fn query(index: u32) -> Result<Option<EthernetLink>> {
    let mut socket = Socket::open(Protocol::Route)?;
    let mut message = Message::new(RTM_GETLINK, 0, "get an uplink");
    let number = i32::try_from(index).unwrap_or_default();
    message.header(&LinkHeader { index: number, ..LinkHeader::default() });
    message.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    socket.request_reply(message, |_, body| {
        let (header, attributes) = LinkHeader::split(body)?;
        let mac = attributes.first(IFLA_ADDRESS).and_then(|mac| mac.mac()).map(Mac::from_bytes);
        Some(mac.filter(|_| header.hardware == ETHERNET).map(|mac| EthernetLink { index, mac }))
    })
}
