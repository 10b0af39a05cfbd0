//! The loopback link, which is down in a new namespace.

use crate::error::Result;
use crate::netlink::constants::{IFF_UP, RTM_NEWLINK};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Message, Socket};

/// The index of `lo` in every namespace.
pub(crate) const LOOPBACK: i32 = 1;

/// Sets `lo` up in the namespace of a socket.
pub fn bring_up_loopback(socket: &mut Socket) -> Result<()> {
    let mut message = Message::new(RTM_NEWLINK, 0, "set lo up");
    message.header(&LinkHeader { index: LOOPBACK, flags: IFF_UP, change: IFF_UP, ..Default::default() });
    socket.request(message)
}
