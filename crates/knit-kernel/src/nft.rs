//! nftables: Knit's tables, read and written over netlink without external programs.
//!
//! Steps on the packet filter become messages of one transaction: all of them take effect at once, or none does. Other
//! programs' tables are never touched.

mod constants;
mod counters;
mod encode;
mod expression;
mod log_support;
mod observe;
mod owner;
mod set;

use std::borrow::Borrow;

use knit_model::filter::FilterStep;
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::netlink::constants::NFNL_SUBSYS_NFTABLES;
use crate::netlink::{Message, Socket, TransactionError};
pub(crate) use counters::decode as decode_counter;
pub use counters::{ChainCounters, RuleCounter, chain_counters};
pub use log_support::can_log;
pub use observe::FilterQuery;
pub(crate) use observe::{decode_messages, observe};
pub use owner::TableOwner;
pub(crate) use owner::supports_owner;

const CONFIG: &str = "CONFIG_NF_TABLES";
const UPDATE: &str = "update nftables";

/// A message of a transaction.
struct FilterMessage {
    /// The step that it belongs to.
    step: usize,
    message: Message,
    /// Whether it only removes something.
    is_removal: bool,
    /// The part of nftables that it needs and that a kernel may lack.
    requirement: Option<Requirement>,
}

/// A part of nftables that a kernel may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    what: String,
    config: &'static str,
}

/// A transaction that was rejected: none of it is applied.
#[derive(Debug)]
pub(crate) struct FilterError {
    /// The step that was rejected.
    pub(crate) step: usize,
    /// Why.
    pub(crate) error: Error,
}

/// The messages for these steps, as one datagram.
pub(crate) fn encode_messages(steps: &[FilterStep]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for FilterMessage { message, .. } in encode::messages(steps.iter().enumerate(), 0) {
        message.append_to(&mut datagram, 0, 0);
    }
    datagram
}

/// Applies steps in one transaction. What is gone already need not be removed.
pub(crate) fn apply<'a>(
    socket: &mut Socket,
    steps: impl IntoIterator<Item = (usize, &'a FilterStep)>,
) -> Result<(), FilterError> {
    apply_messages(socket, encode::messages(steps, 0))
}

fn apply_messages(socket: &mut Socket, mut messages: Vec<FilterMessage>) -> Result<(), FilterError> {
    while !messages.is_empty() {
        let Err(TransactionError { index, error }) =
            socket.transaction(NFNL_SUBSYS_NFTABLES, UPDATE, &messages)
        else {
            return Ok(());
        };
        let Some(index) = index else {
            return Err(FilterError { step: messages[0].step, error: explain_unsupported(error) });
        };
        let FilterMessage { step, is_removal, requirement, .. } = messages.remove(index);
        // The transaction is repeated without the removal of what does not exist.
        if !is_removal || error.errno() != Some(Errno::ENOENT) {
            let error = match requirement {
                Some(requirement) => requirement.explain(error),
                None => error,
            };
            return Err(FilterError { step, error });
        }
    }
    Ok(())
}

impl Borrow<Message> for FilterMessage {
    fn borrow(&self) -> &Message {
        &self.message
    }
}

impl Requirement {
    /// Maps "not found" errors of a family, chain type or expression to the missing feature.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Rejected {
                context,
                errno: Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT | Errno::EPROTONOSUPPORT,
                ..
            } => Error::Unsupported { context, what: self.what.clone(), config: self.config },
            other => other,
        }
    }
}

/// Maps errors of a kernel without netfilter sockets or nftables.
fn explain_unsupported(error: Error) -> Error {
    match error.errno() {
        Some(Errno::EPROTONOSUPPORT | Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => {
            Error::Unsupported { context: UPDATE.into(), what: "nftables".to_owned(), config: CONFIG }
        }
        _ => error,
    }
}
