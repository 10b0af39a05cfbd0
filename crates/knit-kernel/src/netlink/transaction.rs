//! Netfilter transactions: all messages are applied, or none.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::constants::{NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NLM_F_ACK};
use super::frame::Frames;
use super::header::NetfilterHeader;
use super::message::Message;
use super::socket::Socket;
use crate::error::{Context, Error};

/// A transaction that failed: none of it is applied.
#[derive(Debug)]
pub(crate) struct TransactionError {
    /// The first message that was rejected; `None` if it was the transaction as a whole.
    pub(crate) index: Option<usize>,
    /// The error.
    pub(crate) error: Error,
}

impl Socket {
    /// Sends messages to a netfilter subsystem as one transaction, in one datagram.
    pub(crate) fn transaction(
        &mut self,
        subsystem: u16,
        context: impl Into<Context>,
        messages: &[impl Borrow<Message>],
    ) -> Result<(), TransactionError> {
        self.send_transaction(subsystem, context, messages, true)
    }

    /// Whether the kernel accepts a transaction. Without the message that ends it, it is checked and not applied.
    pub(crate) fn check_transaction(
        &mut self,
        subsystem: u16,
        context: impl Into<Context>,
        messages: &[impl Borrow<Message>],
    ) -> Result<(), TransactionError> {
        self.send_transaction(subsystem, context, messages, false)
    }

    fn send_transaction(
        &mut self,
        subsystem: u16,
        context: impl Into<Context>,
        messages: &[impl Borrow<Message>],
        commits: bool,
    ) -> Result<(), TransactionError> {
        let context = context.into();
        let whole = |error| TransactionError { index: None, error };
        let Some(last) = messages.len().checked_sub(1) else { return Ok(()) };
        let delimiter = |kind: u16| {
            let mut message = Message::new(kind, 0, context.clone());
            message.header(&NetfilterHeader { resource: subsystem.to_be(), ..Default::default() });
            message
        };
        let first_sequence = self.reserve_sequence(messages.len() as u32 + 2);
        let mut datagram = Vec::new();
        delimiter(NFNL_MSG_BATCH_BEGIN).append_to(&mut datagram, first_sequence, 0);
        for ((index, message), sequence) in messages.iter().enumerate().zip(first_sequence + 1..) {
            let message: &Message = message.borrow();
            if message.overflowed() {
                let error = Error::TooLong { context: message.context().clone() };
                return Err(TransactionError { index: Some(index), error });
            }
            // Errors are reported in order without a request: the acknowledgement of the last message covers all.
            message.append_to(&mut datagram, sequence, if index == last { NLM_F_ACK } else { 0 });
        }
        if commits {
            let end = first_sequence + messages.len() as u32 + 1;
            delimiter(NFNL_MSG_BATCH_END).append_to(&mut datagram, end, 0);
        }
        self.reserve_send_buffer(datagram.len()).map_err(whole)?;
        self.send(&datagram, &context).map_err(whole)?;

        let mut rejected = BTreeMap::new();
        loop {
            let mut is_done = false;
            for frame in Frames::new(self.receive(&context).map_err(whole)?) {
                let offset = frame.sequence.wrapping_sub(first_sequence) as usize;
                let Some(ack) = frame.ack().filter(|_| offset < messages.len() + 2) else { continue };
                let about = match offset.checked_sub(1).and_then(|index| messages.get(index)) {
                    Some(message) => message.borrow().context(),
                    // An error about the transaction as a whole refers to no message.
                    None => &context,
                };
                is_done |= offset == 0 || offset == last + 1;
                if let Err(rejection) = ack {
                    rejected.insert(offset, rejection.with_context(about.clone()));
                }
            }
            if is_done {
                let Some((offset, error)) = rejected.pop_first() else { return Ok(()) };
                return Err(TransactionError { index: offset.checked_sub(1), error });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::netlink::Protocol;

    #[test]
    fn an_empty_transaction_succeeds_and_a_rejected_one_ends_the_wait() {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        socket.transaction(10, "test", &[] as &[Message]).unwrap();
        // The subsystem does not exist: the begin message is rejected, and nothing else is acknowledged.
        let message = Message::new(0x7f << 8, 0, "test message");
        let rejected = socket.transaction(0x7f, "test", &[message]).unwrap_err();
        assert_eq!(rejected.index, None);
        let expected = [Some(Errno::EOPNOTSUPP), Some(Errno::EINVAL), Some(Errno::EPERM)];
        assert!(expected.contains(&rejected.error.errno()), "{:?}", rejected.error);
    }
}
