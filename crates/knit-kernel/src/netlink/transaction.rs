//! Netfilter's transactions: messages that hold all together or not at all.

use std::collections::BTreeMap;

use super::constants::{NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NLM_F_ACK};
use super::frame::Frames;
use super::header::NetfilterHeader;
use super::message::Message;
use super::socket::Socket;
use crate::error::{Context, Error};

/// A transaction that did not go through: nothing of it holds.
#[derive(Debug)]
pub(crate) struct TransactionError {
    /// Which message was refused first; `None` if it was the transaction as a whole.
    pub(crate) index: Option<usize>,
    /// Why.
    pub(crate) error: Error,
}

impl Socket {
    /// Sends messages to a subsystem of netfilter as one transaction, in one datagram: the kernel takes all or none.
    pub(crate) fn transaction(
        &mut self,
        subsystem: u16,
        context: impl Into<Context>,
        messages: &[Message],
    ) -> Result<(), TransactionError> {
        let context = context.into();
        let whole = |error| TransactionError { index: None, error };
        let Some(last) = messages.len().checked_sub(1) else { return Ok(()) };
        let bracket = |kind: u16| {
            let mut message = Message::new(kind, 0, context.clone());
            message.header(&NetfilterHeader { resource: subsystem.to_be(), ..Default::default() });
            message
        };
        let first_sequence = self.reserve_sequence(messages.len() as u32 + 2);
        let mut datagram = Vec::new();
        bracket(NFNL_MSG_BATCH_BEGIN).append_to(&mut datagram, first_sequence, 0);
        for ((index, message), sequence) in messages.iter().enumerate().zip(first_sequence + 1..) {
            if message.overflowed() {
                let error = Error::TooLong { context: message.context().clone() };
                return Err(TransactionError { index: Some(index), error });
            }
            // A refusal is told unasked, in order: the last one's acknowledgement is that of all.
            message.append_to(&mut datagram, sequence, if index == last { NLM_F_ACK } else { 0 });
        }
        let end = first_sequence + messages.len() as u32 + 1;
        bracket(NFNL_MSG_BATCH_END).append_to(&mut datagram, end, 0);
        self.hold(datagram.len()).map_err(whole)?;
        self.send(&datagram, &context).map_err(whole)?;

        let mut refused = BTreeMap::new();
        loop {
            let mut is_done = false;
            for frame in Frames::new(self.receive(&context).map_err(whole)?) {
                let offset = frame.sequence.wrapping_sub(first_sequence) as usize;
                let Some(verdict) = frame.verdict().filter(|_| offset < messages.len() + 2) else { continue };
                let about = match offset.checked_sub(1).and_then(|index| messages.get(index)) {
                    Some(message) => message.context(),
                    // Whoever refuses the transaction as a whole says nothing of its messages.
                    None => &context,
                };
                is_done |= offset == 0 || offset == last + 1;
                if let Err(refusal) = verdict {
                    refused.insert(offset, refusal.about(about.clone()));
                }
            }
            if is_done {
                let Some((offset, error)) = refused.pop_first() else { return Ok(()) };
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
    fn nothing_to_say_is_said_without_a_word_and_a_refusal_ends_the_wait() {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        socket.transaction(10, "test", &[]).unwrap();
        // There is no such subsystem: the beginning is refused, and nothing else is answered.
        let message = Message::new(0x7f << 8, 0, "say nothing");
        let refused = socket.transaction(0x7f, "test", &[message]).unwrap_err();
        assert_eq!(refused.index, None);
        let expected = [Some(Errno::EOPNOTSUPP), Some(Errno::EINVAL), Some(Errno::EPERM)];
        assert!(expected.contains(&refused.error.errno()), "{:?}", refused.error);
    }
}
