//! Encodes netlink messages.

use std::fmt;
use std::net::IpAddr;

use super::align;
use super::constants::{NLA_F_NESTED, NLM_F_REQUEST};
use super::header::Header;
use crate::error::Context;

/// The length of `struct nlmsghdr`.
pub(crate) const MESSAGE_HEADER: usize = 16;
/// The length of `struct nlattr`.
pub(crate) const ATTRIBUTE_HEADER: usize = 4;

/// A netlink message: header, fixed structure, attributes.
///
/// Lengths and padding are always correct. The context describes the operation (`create link pnobr0`) and is part of
/// every error about the message.
#[derive(Clone)]
pub struct Message {
    bytes: Vec<u8>,
    context: Context,
    overflowed: bool,
}

impl Message {
    /// An empty message of a type (`RTM_*`). `NLM_F_REQUEST` is always set; the socket adds further flags.
    pub fn new(kind: u16, flags: u16, context: impl Into<Context>) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let mut message = Self { bytes, context: context.into(), overflowed: false };
        message.write_length();
        message
    }

    /// The type.
    pub(crate) fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[4], self.bytes[5]])
    }

    /// Appends the fixed structure, which precedes the attributes (also at the start of a nested veth peer).
    pub fn header(&mut self, header: &impl Header) -> &mut Self {
        header.encode(&mut self.bytes);
        self.write_length();
        self
    }

    /// Appends an attribute of one byte.
    pub fn put_u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.put_bytes(kind, &[value])
    }

    /// Appends an attribute of two bytes in host byte order.
    pub fn put_u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.put_bytes(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute of four bytes in host byte order.
    pub fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put_bytes(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute of eight bytes in host byte order.
    pub fn put_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.put_bytes(kind, &value.to_ne_bytes())
    }

    /// Appends an attribute of two bytes in network byte order.
    pub fn put_be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.put_bytes(kind, &value.to_be_bytes())
    }

    /// Appends an attribute of four bytes in network byte order.
    pub fn put_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put_bytes(kind, &value.to_be_bytes())
    }

    /// Appends a string, with the NUL that the kernel expects at its end.
    pub fn put_str(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attribute(kind, |message| {
            message.bytes.extend_from_slice(value.as_bytes());
            message.bytes.push(0);
        })
    }

    /// Appends an address: four or sixteen bytes.
    pub fn put_address(&mut self, kind: u16, value: IpAddr) -> &mut Self {
        match value {
            IpAddr::V4(address) => self.put_bytes(kind, &address.octets()),
            IpAddr::V6(address) => self.put_bytes(kind, &address.octets()),
        }
    }

    /// Appends an attribute without a value.
    pub fn put_flag(&mut self, kind: u16) -> &mut Self {
        self.put_bytes(kind, &[])
    }

    /// Appends an attribute of any bytes.
    pub fn put_bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.attribute(kind, |message| message.bytes.extend_from_slice(value))
    }

    /// Appends an attribute that holds what the closure appends, marked as nested.
    pub fn nest(&mut self, kind: u16, contents: impl FnOnce(&mut Self)) -> &mut Self {
        self.attribute(kind | NLA_F_NESTED, contents)
    }

    /// Appends nested attributes without the nested flag: some kernel interfaces predate it and compare the whole
    /// type.
    pub fn nest_unmarked(&mut self, kind: u16, contents: impl FnOnce(&mut Self)) -> &mut Self {
        self.attribute(kind, contents)
    }

    /// Appends encoded attributes, padding included.
    pub(crate) fn append(&mut self, attributes: &[u8]) {
        self.bytes.extend_from_slice(attributes);
        self.write_length();
    }

    /// The description of the operation.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The encoded message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether an attribute exceeds netlink's 16-bit length. Such a message is never sent.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    pub(crate) fn into_context(self) -> Context {
        self.context
    }

    pub(crate) fn add_flags(&mut self, flags: u16) {
        let old = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes[6..8].copy_from_slice(&(old | flags).to_ne_bytes());
    }

    pub(crate) fn set_sequence(&mut self, sequence: u32) {
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }

    /// Appends the message to a datagram, with its sequence number and additional flags.
    pub(crate) fn append_to(&self, datagram: &mut Vec<u8>, sequence: u32, flags: u16) {
        let start = datagram.len();
        datagram.extend_from_slice(&self.bytes);
        let flags = flags | u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        datagram[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
        datagram[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, contents: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTRIBUTE_HEADER]);
        self.bytes[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        contents(self);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
        self.bytes.resize(align(self.bytes.len()), 0);
        self.write_length();
        self
    }

    fn write_length(&mut self) {
        match u32::try_from(self.bytes.len()) {
            Ok(length) => self.bytes[0..4].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
    }
}

/// Omits the contents: they may include a private key.
impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Message({}, {} bytes)", self.context, self.bytes.len())
    }
}

#[cfg(test)]
mod tests;
