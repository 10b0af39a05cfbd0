//! Netlink: a small wire layer of Knit's own.
//!
//! A [`Message`] is built, a [`Socket`] sends it and waits for the kernel's word on it; [`Attributes`] reads what comes
//! back. Knit sends many messages in one datagram ([`Socket::batch`]) and uses attributes that general libraries come
//! to late (a link's group at birth, alternative names, the protocol of an address), so it keeps this layer itself.
//! What the attributes of a link kind mean is not known here.

pub mod attributes;
mod batch;
pub mod constants;
mod frame;
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
