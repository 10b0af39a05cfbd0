//! Observes permanent neighbour entries and proxy entries.

use knit_model::{Mac, Neighbour, Scope, kernel_ids};

use super::LinkFilter;
use super::links::{LinkTable, dump_each};
use crate::error::Result;
use crate::kernel::Session;
use crate::netlink::constants::*;
use crate::netlink::header::NeighbourHeader;
use crate::netlink::{Header, Message};

/// Observes neighbour and proxy entries of both address families.
pub(super) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    links: &LinkFilter,
    found: &LinkTable,
) -> Result<Vec<Neighbour>> {
    let mut all = Vec::new();
    // Proxy entries are dumped for all links: the kernel filters only neighbour entries by link.
    for (flags, links) in [(0, links), (NTF_PROXY, &LinkFilter::All)] {
        let request = |index: Option<u32>| {
            let mut message = Message::new(RTM_GETNEIGH, 0, format!("list neighbours of {scope}"));
            message.header(&NeighbourHeader { flags, ..Default::default() });
            if let Some(index) = index {
                message.put_u32(NDA_IFINDEX, index);
            }
            message
        };
        all.extend(dump_each(session, scope, links, found, request, |body| decode(body, found))?);
    }
    Ok(all)
}

pub(crate) fn decode(body: &[u8], found: &LinkTable) -> Option<Neighbour> {
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
        owned: protocol == Some(kernel_ids::PROTOCOL),
    })
}
