//! Encodes neighbour entries.

use knit_model::{Neighbour, Scope, kernel_ids};

use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::NeighbourHeader;

/// Adds or replaces a neighbour entry.
pub(super) fn add(scope: &Scope, neighbour: &Neighbour, index: u32) -> Message {
    let context = format!("add neighbour {neighbour} on {scope}");
    let mut message = message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, context, neighbour, index);
    if let Some(mac) = neighbour.mac {
        message.put_bytes(NDA_LLADDR, &mac.bytes());
    }
    if neighbour.owned {
        message.put_u8(NDA_PROTOCOL, kernel_ids::PROTOCOL);
    }
    message
}

/// Removes a neighbour.
pub(super) fn remove(scope: &Scope, neighbour: &Neighbour, index: u32) -> Message {
    message(RTM_DELNEIGH, 0, format!("remove neighbour {neighbour} on {scope}"), neighbour, index)
}

fn message(kind: u16, flags: u16, context: String, neighbour: &Neighbour, index: u32) -> Message {
    let mut message = Message::new(kind, flags, context);
    message.header(&NeighbourHeader {
        family: if neighbour.address.is_ipv4() { AF_INET } else { AF_INET6 },
        index: index as i32,
        state: NUD_PERMANENT,
        flags: if neighbour.mac.is_none() { NTF_PROXY } else { 0 },
        ..Default::default()
    });
    message.put_address(NDA_DST, neighbour.address);
    message
}
