//! Netlink: a small encoding and transport layer.
//!
//! A [`Message`] is built, a [`Socket`] sends it and waits for the acknowledgement, [`Attributes`] decodes the reply.
//! Knit sends many messages in one datagram ([`Socket::batch`]) and uses attributes that general libraries support
//! late (a link's group at creation, alternative names, the protocol of an address), so it has its own layer. It is
//! independent of link kinds.

pub mod attributes;
mod batch;
pub mod constants;
pub(crate) mod frame;
pub mod generic;
pub mod header;
pub mod message;
mod request;
pub mod socket;
mod transaction;

pub use attributes::{Attribute, Attributes};
pub use batch::BatchError;
pub use header::Header;
pub use message::Message;
pub use socket::{Protocol, Socket};
pub(crate) use transaction::TransactionError;

/// Netlink pads every header and attribute to four bytes.
pub(crate) fn align(length: usize) -> usize {
    (length + 3) & !3
}
