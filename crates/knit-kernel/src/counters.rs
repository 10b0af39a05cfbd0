//! Link statistics of a network namespace.

use std::collections::BTreeMap;

use knit_model::IfName;

use crate::error::Result;
use crate::netlink::constants::{IFLA_IFNAME, IFLA_STATS64, RTM_GETLINK};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// The statistics of a link, seen from its own namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Received.
    pub rx: TrafficCounters,
    /// Sent.
    pub tx: TrafficCounters,
}

/// The statistics of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Dropped packets.
    pub dropped: u64,
}

/// The counters of every link in a namespace; `None` if the namespace no longer has this cookie.
pub fn link_counters(netns: &Netns, cookie: u64) -> Result<Option<BTreeMap<IfName, LinkCounters>>> {
    let mut socket = Socket::open_in(netns, Protocol::Route)?;
    if socket.netns_cookie()? != cookie {
        return Ok(None);
    }
    let mut message = Message::new(RTM_GETLINK, 0, "read link statistics");
    message.header(&LinkHeader::default());
    let all = socket.dump(message, |_, body| read(body))?;
    Ok(Some(all.into_iter().collect()))
}

pub(crate) fn read(body: &[u8]) -> Option<(IfName, LinkCounters)> {
    let (_, attributes) = LinkHeader::split(body)?;
    let name = IfName::new(attributes.first(IFLA_IFNAME)?.str()?).ok()?;
    Some((name, decode(attributes.first(IFLA_STATS64)?.value)?))
}

/// `struct rtnl_link_stats64`: packets, bytes, errors and drops, each received and sent. Newer kernels append more.
fn decode(bytes: &[u8]) -> Option<LinkCounters> {
    let number = |position: usize| {
        let bytes = bytes.get(position * 8..position * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let direction = |first: usize| {
        Some(TrafficCounters {
            packets: number(first)?,
            bytes: number(first + 2)?,
            errors: number(first + 4)?,
            dropped: number(first + 6)?,
        })
    };
    Some(LinkCounters { rx: direction(0)?, tx: direction(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_decoded_in_kernel_order_and_short_input_is_rejected() {
        let bytes: Vec<u8> = (1..=8u64).flat_map(u64::to_ne_bytes).collect();
        let rx = TrafficCounters { packets: 1, bytes: 3, errors: 5, dropped: 7 };
        let tx = TrafficCounters { packets: 2, bytes: 4, errors: 6, dropped: 8 };
        assert_eq!(decode(&bytes), Some(LinkCounters { rx, tx }));
        assert_eq!(decode(&bytes[..60]), None);
    }
}
