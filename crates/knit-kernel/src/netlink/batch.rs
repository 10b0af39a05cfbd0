//! Many messages in one datagram.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Range;

use super::constants::NLM_F_ACK;
use super::frame::Frames;
use super::message::Message;
use super::socket::Socket;
use crate::error::Error;

/// Messages per datagram: their acknowledgements must fit the receive buffer of an unprivileged process.
const DATAGRAM_MESSAGES: usize = 128;
/// Bytes per datagram, well below the default send buffer.
const DATAGRAM_BYTES: usize = 64 << 10;

/// A batch that failed.
#[derive(Debug, thiserror::Error)]
#[error("message {} of {total}: {error}", index + 1)]
pub struct BatchError {
    /// The first message that failed.
    pub index: usize,
    /// The number of messages in the batch.
    pub total: usize,
    /// Its error.
    #[source]
    pub error: Error,
    /// The messages that were applied and need rollback. Some may come *after* `index`.
    pub applied: Vec<usize>,
}

impl Socket {
    /// Sends messages, up to 128 in a datagram, and waits until the kernel has processed all of them.
    ///
    /// The kernel does not stop at a message that fails: it processes the rest of the datagram. Each message is
    /// acknowledged separately, so [`BatchError::applied`] is exact; later datagrams are not sent.
    ///
    /// Without an acknowledgement (a timeout, an overrun) it is unknown whether the messages from `index` on that are
    /// not in `applied` were applied: observe before rolling back.
    pub fn batch(&mut self, messages: &[impl Borrow<Message>]) -> Result<(), BatchError> {
        let total = messages.len();
        let mut applied = Vec::with_capacity(total);
        let mut start = 0;
        while start < total {
            let part = start..start + datagram_size(&messages[start..]);
            start = part.end;
            if let Err((index, error)) = self.send_part(messages, part, &mut applied) {
                return Err(BatchError { index, total, error, applied });
            }
        }
        Ok(())
    }

    /// Sends one datagram and waits for all acknowledgements, also after the first error.
    fn send_part(
        &mut self,
        messages: &[impl Borrow<Message>],
        part: Range<usize>,
        applied: &mut Vec<usize>,
    ) -> Result<(), (usize, Error)> {
        let first_sequence = self.reserve_sequence(part.len() as u32);
        // Messages are processed in order, and errors are reported without a request: the acknowledgement of the last
        // message covers all.
        let last = part.end - 1;
        let mut datagram = Vec::new();
        for (index, sequence) in part.clone().zip(first_sequence..) {
            let message: &Message = messages[index].borrow();
            if message.overflowed() {
                return Err((index, Error::TooLong { context: message.context().clone() }));
            }
            let flags = if index == last { NLM_F_ACK } else { 0 };
            message.append_to(&mut datagram, sequence, flags);
        }
        let context_of = |index: usize| messages[index].borrow().context();
        let first_context = context_of(part.start);
        self.send(&datagram, first_context).map_err(|error| (part.start, error))?;

        let mut rejected: BTreeMap<usize, Error> = BTreeMap::new();
        let mut is_done = false;
        while !is_done {
            let reply = self.receive(first_context).map_err(|error| (part.start, error))?;
            for frame in Frames::new(reply) {
                let index = part.start + frame.sequence.wrapping_sub(first_sequence) as usize;
                let Some(ack) = frame.ack().filter(|_| part.contains(&index)) else { continue };
                is_done |= index == last;
                if let Err(rejection) = ack {
                    rejected.insert(index, rejection.with_context(context_of(index).clone()));
                }
            }
        }
        applied.extend(part.filter(|index| !rejected.contains_key(index)));
        rejected.pop_first().map_or(Ok(()), Err)
    }
}

/// The number of messages that fit into one datagram; at least one.
fn datagram_size(messages: &[impl Borrow<Message>]) -> usize {
    let mut bytes = 0;
    let fitting = messages.iter().take(DATAGRAM_MESSAGES).take_while(|message| {
        bytes += (*message).borrow().as_bytes().len();
        bytes <= DATAGRAM_BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_bounded_in_messages_and_bytes() {
        let small = Message::new(16, 0, "small");
        assert_eq!(datagram_size(&vec![small.clone(); 500]), DATAGRAM_MESSAGES);
        let mut large = Message::new(16, 0, "large");
        large.put_bytes(1, &vec![0; 40 << 10]);
        assert_eq!(datagram_size(&[large.clone(), large.clone(), small]), 1);
        large.put_bytes(1, &vec![0; 40 << 10]);
        assert_eq!(datagram_size(&[large]), 1);
    }

    #[test]
    fn a_batch_error_counts_from_one() {
        let error = Error::Overrun { context: "add address 10.0.0.1/24 to eth0".into() };
        let error = BatchError { index: 2, total: 4, error, applied: vec![0, 1] };
        assert!(error.to_string().starts_with("message 3 of 4: add address 10.0.0.1/24 to eth0: "));
    }
}
