//! Requests with an acknowledgement, a reply, or a dump.

use nix::errno::Errno;

use super::constants::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR};
use super::frame::{Frame, Frames};
use super::message::Message;
use super::socket::Socket;
use crate::error::{Error, Result};

/// Attempts to get a consistent dump.
const DUMP_ATTEMPTS: u32 = 8;
/// Requests in one datagram: their replies must fit the receive buffer of an unprivileged process.
const REQUESTS_PER_DATAGRAM: usize = 64;

impl Socket {
    /// Sends a request and waits for its acknowledgement.
    pub fn request(&mut self, mut message: Message) -> Result<()> {
        message.add_flags(NLM_F_ACK);
        let sequence = self.dispatch(&mut message)?;
        loop {
            // Late replies to timed out requests have other sequence numbers.
            for frame in self.replies(&message, sequence)? {
                if let Some(ack) = frame.ack() {
                    return ack.map_err(|rejection| rejection.with_context(message.into_context()));
                }
            }
        }
    }

    /// Sends a request with a single reply, and returns what `decode` returns for it. No acknowledgement is
    /// requested: the kernel replies or rejects.
    pub fn request_reply<T>(
        &mut self,
        mut message: Message,
        decode: impl FnOnce(u16, &[u8]) -> Option<T>,
    ) -> Result<T> {
        self.grow_buffer();
        let sequence = self.dispatch(&mut message)?;
        loop {
            let Some(frame) = self.replies(&message, sequence)?.next() else { continue };
            let reply = match frame.ack() {
                Some(Err(rejection)) => return Err(rejection.with_context(message.into_context())),
                Some(Ok(())) => None,
                None => decode(frame.kind, frame.body),
            };
            let what = "it lacks the requested data";
            return reply.ok_or_else(|| Error::Malformed { context: message.into_context(), what });
        }
    }

    /// Sends requests with a single reply each, many in a datagram, and returns what `decode` returns for each reply;
    /// `None` for those that the kernel rejects with one of these errors.
    pub fn request_each<T>(
        &mut self,
        messages: &[Message],
        absent: &[Errno],
        mut decode: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<Option<T>>> {
        self.grow_buffer();
        let mut results = Vec::with_capacity(messages.len());
        for part in messages.chunks(REQUESTS_PER_DATAGRAM) {
            let first_sequence = self.reserve_sequence(part.len() as u32);
            let mut datagram = Vec::new();
            for (message, sequence) in part.iter().zip(first_sequence..) {
                message.append_to(&mut datagram, sequence, 0);
            }
            let context = part[0].context().clone();
            self.send(&datagram, &context)?;
            let mut found: Vec<Option<Option<T>>> = part.iter().map(|_| None).collect();
            let mut rejected = None;
            while found.iter().any(Option::is_none) {
                for frame in Frames::new(self.receive(&context)?) {
                    let index = frame.sequence.wrapping_sub(first_sequence) as usize;
                    let Some(slot) = found.get_mut(index) else { continue };
                    *slot = Some(match frame.ack() {
                        None => decode(frame.body),
                        Some(Ok(())) => None,
                        Some(Err(rejection)) => {
                            let error = rejection.with_context(part[index].context().clone());
                            if !error.errno().is_some_and(|errno| absent.contains(&errno)) {
                                rejected.get_or_insert(error);
                            }
                            None
                        }
                    });
                }
            }
            if let Some(error) = rejected {
                return Err(error);
            }
            results.extend(found.into_iter().map(Option::flatten));
        }
        Ok(results)
    }

    /// Dumps a table, and returns what `decode` returns for each entry (`None` skips one).
    ///
    /// If the table changes meanwhile the dump is repeated, so the result is always consistent. After an
    /// [`Error::Overrun`] or [`Error::Timeout`] the kernel may still be dumping: open a new socket.
    pub fn dump<T>(
        &mut self,
        mut message: Message,
        mut decode: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.grow_buffer();
        message.add_flags(NLM_F_DUMP);
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(entries) = self.dump_once(&mut message, &mut decode)? {
                return Ok(entries);
            }
        }
        Err(Error::DumpInterrupted { context: message.into_context(), attempts: DUMP_ATTEMPTS })
    }

    /// One dump; `None` if it was interrupted by a change.
    fn dump_once<T>(
        &mut self,
        message: &mut Message,
        decode: &mut impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let sequence = self.dispatch(message)?;
        let mut entries = Vec::new();
        let mut is_consistent = true;
        loop {
            for frame in Frames::new(self.receive(message.context())?) {
                if frame.sequence != sequence {
                    continue;
                }
                is_consistent &= frame.flags & NLM_F_DUMP_INTR == 0;
                match frame.ack() {
                    Some(Ok(())) => return Ok(is_consistent.then_some(entries)),
                    Some(Err(rejection)) => return Err(rejection.with_context(message.context().clone())),
                    None => entries.extend(decode(frame.kind, frame.body)),
                }
            }
        }
    }

    /// The next messages in reply to this request.
    fn replies<'a>(
        &'a mut self,
        message: &Message,
        sequence: u32,
    ) -> Result<impl Iterator<Item = Frame<'a>> + use<'a>> {
        let frames = Frames::new(self.receive(message.context())?);
        Ok(frames.filter(move |frame| frame.sequence == sequence))
    }

    fn dispatch(&mut self, message: &mut Message) -> Result<u32> {
        if message.overflowed() {
            return Err(Error::TooLong { context: message.context().clone() });
        }
        let sequence = self.reserve_sequence(1);
        message.set_sequence(sequence);
        self.send(message.as_bytes(), message.context())?;
        Ok(sequence)
    }
}
