//! Permanent neighbours, and addresses that a link answers for.

use knit_model::{Mac, Neighbour, Scope, marks};

use super::Links;
use super::links::{Found, dump_each};
use crate::error::Result;
use crate::kernel::Room;
use crate::netlink::constants::*;
use crate::netlink::header::NeighbourHeader;
use crate::netlink::{Header, Message};

/// Looks at both tables of neighbours, for both families.
pub(super) fn look(
    room: &mut Room<'_>,
    scope: &Scope,
    links: &Links,
    found: &Found,
) -> Result<Vec<Neighbour>> {
    let mut all = Vec::new();
    // Proxy entries are told for all links at once: the kernel filters only the others by link.
    for (flags, links) in [(0, links), (NTF_PROXY, &Links::All)] {
        let request = |index: Option<u32>| {
            let mut message = Message::new(RTM_GETNEIGH, 0, format!("list neighbours of {scope}"));
            message.header(&NeighbourHeader { flags, ..Default::default() });
            if let Some(index) = index {
                message.put_u32(NDA_IFINDEX, index);
            }
            message
        };
        all.extend(dump_each(room, scope, links, found, request, |body| decode(body, found))?);
    }
    Ok(all)
}

fn decode(body: &[u8], found: &Found) -> Option<Neighbour> {
    let (header, attributes) = NeighbourHeader::split(body)?;
    let is_proxy = header.flags & NTF_PROXY != 0;
    if !is_proxy && header.state & NUD_PERMANENT == 0 {
        return None;
    }
    let mac = attributes.first(NDA_LLADDR).and_then(|mac| mac.mac()).map(Mac::from_bytes);
    if !is_proxy && mac.is_none() {
        return None;
    }
    let protocol = attributes.first(NDA_PROTOCOL).and_then(|protocol| protocol.u8());
    Some(Neighbour {
        link: found.name(header.index as u32)?.clone(),
        address: attributes.first(NDA_DST)?.address()?,
        mac: if is_proxy { None } else { mac },
        owned: protocol == Some(marks::PROTOCOL),
    })
}
