//! What went through the links of a namespace, as the kernel counts it.

use std::collections::BTreeMap;

use knit_model::IfName;

use crate::error::Result;
use crate::netlink::constants::{IFLA_IFNAME, IFLA_STATS64, RTM_GETLINK};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Message, Protocol, Socket};
use crate::netns::Netns;

/// What went through a link since it was made, seen from its own namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What came in.
    pub rx: Way,
    /// What went out.
    pub tx: Way,
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were broken.
    pub errors: u64,
    /// Packets that there was no room for.
    pub dropped: u64,
}

/// The counters of every link in a namespace that still has this cookie; `None` if it is another by now.
pub fn counters(netns: &Netns, cookie: u64) -> Result<Option<BTreeMap<IfName, Counters>>> {
    let mut socket = Socket::open_in(netns, Protocol::Route)?;
    if socket.netns_cookie()? != cookie {
        return Ok(None);
    }
    let mut message = Message::new(RTM_GETLINK, 0, "count what went through links");
    message.header(&LinkHeader::default());
    let all = socket.dump(message, |_, body| read(body))?;
    Ok(Some(all.into_iter().collect()))
}

fn read(body: &[u8]) -> Option<(IfName, Counters)> {
    let (_, attributes) = LinkHeader::split(body)?;
    let name = IfName::new(attributes.first(IFLA_IFNAME)?.str()?).ok()?;
    Some((name, decode(attributes.first(IFLA_STATS64)?.value)?))
}

/// `struct rtnl_link_stats64`: packets, bytes, errors and drops, each in and out. Newer kernels add more behind them.
fn decode(bytes: &[u8]) -> Option<Counters> {
    let number = |place: usize| {
        let bytes = bytes.get(place * 8..place * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    let way = |first: usize| {
        Some(Way {
            packets: number(first)?,
            bytes: number(first + 2)?,
            errors: number(first + 4)?,
            dropped: number(first + 6)?,
        })
    };
    Some(Counters { rx: way(0)?, tx: way(1)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_the_kernels_order_and_a_short_answer_is_none() {
        let bytes: Vec<u8> = (1..=8u64).flat_map(u64::to_ne_bytes).collect();
        let rx = Way { packets: 1, bytes: 3, errors: 5, dropped: 7 };
        let tx = Way { packets: 2, bytes: 4, errors: 6, dropped: 8 };
        assert_eq!(decode(&bytes), Some(Counters { rx, tx }));
        assert_eq!(decode(&bytes[..60]), None);
    }
}
