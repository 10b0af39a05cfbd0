//! `lo`, which every namespace is born with, down.

use crate::error::Result;
use crate::netlink::constants::{IFF_UP, RTM_NEWLINK};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Message, Socket};

/// `lo` is the first link of every namespace.
const LOOPBACK: i32 = 1;

/// Brings `lo` up in the namespace of a socket.
pub fn bring_up_loopback(socket: &mut Socket) -> Result<()> {
    let mut message = Message::new(RTM_NEWLINK, 0, "set lo up");
    message.header(&LinkHeader { index: LOOPBACK, flags: IFF_UP, change: IFF_UP, ..Default::default() });
    socket.request(message)
}
