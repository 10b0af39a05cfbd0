//! Generic netlink: families are resolved by name.

use super::constants::*;
use super::header::{GenericHeader, Header};
use super::message::Message;
use super::socket::Socket;
use crate::error::Result;

/// The message type of a generic family, such as `wireguard`. It differs from boot to boot.
pub fn family(socket: &mut Socket, name: &str) -> Result<u16> {
    let mut message = Message::new(GENL_ID_CTRL, 0, format!("resolve the generic netlink family {name}"));
    message.header(&GenericHeader { command: CTRL_CMD_GETFAMILY, version: 1, reserved: 0 });
    message.put_str(CTRL_ATTR_FAMILY_NAME, name);
    socket.request_reply(message, |_, body| {
        let (_, attributes) = GenericHeader::split(body)?;
        attributes.first(CTRL_ATTR_FAMILY_ID)?.u16()
    })
}
