//! One request and its answer: an acknowledgement, a reply, or a dump.

use super::constants::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR};
use super::frame::{Frame, Frames};
use super::message::Message;
use super::socket::Socket;
use crate::error::{Error, Result};

/// How often a dump is begun again when the kernel's tables change under it.
const DUMP_ATTEMPTS: u32 = 8;

impl Socket {
    /// Sends a request and waits until the kernel has done it or refused it.
    pub fn request(&mut self, mut message: Message) -> Result<()> {
        message.add_flags(NLM_F_ACK);
        let sequence = self.dispatch(&mut message)?;
        loop {
            // Answers to requests that were given up (a timeout) have another sequence number.
            for frame in self.answers(&message, sequence)? {
                if let Some(verdict) = frame.verdict() {
                    return verdict.map_err(|refusal| refusal.about(message.into_context()));
                }
            }
        }
    }

    /// Sends a request whose answer is one message with data, and returns what `decode` makes of it. No acknowledgement
    /// is asked for: the kernel answers or refuses.
    pub fn request_reply<T>(
        &mut self,
        mut message: Message,
        decode: impl FnOnce(u16, &[u8]) -> Option<T>,
    ) -> Result<T> {
        self.make_room();
        let sequence = self.dispatch(&mut message)?;
        loop {
            let Some(frame) = self.answers(&message, sequence)?.next() else { continue };
            let reply = match frame.verdict() {
                Some(Err(refusal)) => return Err(refusal.about(message.into_context())),
                Some(Ok(())) => None,
                None => decode(frame.kind, frame.body),
            };
            let what = "it carries none of the data asked for";
            return reply.ok_or_else(|| Error::Malformed { context: message.into_context(), what });
        }
    }

    /// Dumps a table, and returns what `decode` makes of each entry (`None` skips one).
    ///
    /// When the kernel says that the table changed meanwhile, the dump begins again; the result is always of one whole
    /// dump. After an [`Error::Overrun`] or [`Error::Timeout`] the kernel may still be dumping: take a new socket.
    pub fn dump<T>(
        &mut self,
        mut message: Message,
        mut decode: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        self.make_room();
        message.add_flags(NLM_F_DUMP);
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(entries) = self.dump_once(&mut message, &mut decode)? {
                return Ok(entries);
            }
        }
        Err(Error::Unsettled { context: message.into_context(), attempts: DUMP_ATTEMPTS })
    }

    /// One dump; `None` when the kernel says that it is not consistent.
    fn dump_once<T>(
        &mut self,
        message: &mut Message,
        decode: &mut impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let sequence = self.dispatch(message)?;
        let mut entries = Vec::new();
        let mut settled = true;
        loop {
            for frame in Frames::new(self.receive(message.context())?) {
                if frame.sequence != sequence {
                    continue;
                }
                settled &= frame.flags & NLM_F_DUMP_INTR == 0;
                match frame.verdict() {
                    Some(Ok(())) => return Ok(settled.then_some(entries)),
                    Some(Err(refusal)) => return Err(refusal.about(message.context().clone())),
                    None => entries.extend(decode(frame.kind, frame.body)),
                }
            }
        }
    }

    /// The next messages that answer this request.
    fn answers<'a>(
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
