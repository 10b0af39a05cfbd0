//! Bytes on the wire: messages of ttrpc, cut into frames of a socket that carries two connections.
//!
//! A frame has a header of eight bytes: the connection and the length. A message has one of ten: its length, the stream, its
//! type and flags. A frame may hold a part of a message or several, so that each connection is a stream of bytes.

use crate::Error;

/// The connection on which the runtime calls us.
pub(crate) const PLUGIN: u32 = 1;
/// The connection on which we call the runtime.
pub(crate) const RUNTIME: u32 = 2;

/// A header of a frame.
pub(crate) const FRAME: usize = 8;
/// A header of a message.
const HEADER: usize = 10;
/// No message is longer.
const MOST: usize = 4 << 20;
/// So much of a message is written in one frame: who reads has no more room at first.
const WRITTEN: usize = 4_096;

/// A call.
pub(crate) const REQUEST: u8 = 1;
/// What a call is answered.
pub(crate) const RESPONSE: u8 = 2;
/// A flag: nothing more follows in this stream.
pub(crate) const CLOSED: u8 = 1;

/// A message of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) connection: u32,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

/// What a frame's header says: the connection, and how many bytes follow.
pub(crate) fn frame(header: [u8; FRAME]) -> Result<(u32, usize), Error> {
    let (connection, length) = (number(&header[..4]), number(&header[4..]) as usize);
    if length > HEADER + MOST {
        return Err(Error::Unclear { what: format!("a frame of {length} bytes") });
    }
    Ok((connection, length))
}

/// Messages that have come in part, of both connections.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    of_plugin: Vec<u8>,
    of_runtime: Vec<u8>,
}

impl Parts {
    /// The messages that are whole with this frame. What comes on a connection that nobody knows is passed over.
    pub(crate) fn take(&mut self, connection: u32, bytes: &[u8]) -> Result<Vec<Message>, Error> {
        let part = match connection {
            PLUGIN => &mut self.of_plugin,
            RUNTIME => &mut self.of_runtime,
            _ => return Ok(Vec::new()),
        };
        part.extend_from_slice(bytes);
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(header) = part.get(at..at + HEADER) {
            let length = number(&header[..4]) as usize;
            if length > MOST {
                return Err(Error::Unclear { what: format!("a message of {length} bytes") });
            }
            let (stream, kind, flags) = (number(&header[4..8]), header[8], header[9]);
            let Some(payload) = part.get(at + HEADER..at + HEADER + length) else { break };
            messages.push(Message { connection, stream, kind, flags, payload: payload.to_vec() });
            at += HEADER + length;
        }
        part.drain(..at);
        Ok(messages)
    }
}

impl Message {
    /// The message as frames.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut whole = Vec::with_capacity(HEADER + self.payload.len());
        whole.extend(length.to_be_bytes());
        whole.extend(self.stream.to_be_bytes());
        whole.extend([self.kind, self.flags]);
        whole.extend(&self.payload);
        let frames = whole.chunks(WRITTEN).flat_map(|chunk| {
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            [&self.connection.to_be_bytes()[..], &length.to_be_bytes(), chunk].concat()
        });
        frames.collect()
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(connection: u32, stream: u32, length: usize) -> Message {
        Message { connection, stream, kind: REQUEST, flags: CLOSED, payload: vec![7; length] }
    }

    /// Takes bytes apart as they are on the wire.
    fn read(parts: &mut Parts, mut bytes: &[u8]) -> Result<Vec<Message>, Error> {
        let mut all = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk() {
            let (connection, length) = frame(*header)?;
            all.extend(parts.take(connection, &rest[..length])?);
            bytes = &rest[length..];
        }
        Ok(all)
    }

    #[test]
    fn what_is_written_is_read_whole_however_long_it_is() {
        let all = [message(PLUGIN, 1, 0), message(RUNTIME, 3, 5_000), message(PLUGIN, 3, 100_000)];
        let bytes: Vec<u8> = all.iter().flat_map(Message::bytes).collect();
        assert_eq!(read(&mut Parts::default(), &bytes).unwrap(), all);
    }

    #[test]
    fn a_frame_may_end_in_the_middle_of_a_header_and_hold_several_messages() {
        let bare: Vec<u8> = [message(PLUGIN, 1, 3), message(PLUGIN, 3, 0), message(PLUGIN, 5, 20)]
            .iter()
            .flat_map(|message| message.bytes()[FRAME..].to_vec())
            .collect();
        for cut in 0..bare.len() {
            let mut parts = Parts::default();
            let mut all = parts.take(PLUGIN, &bare[..cut]).unwrap();
            all.extend(parts.take(PLUGIN, &bare[cut..]).unwrap());
            assert_eq!(all.iter().map(|one| one.stream).collect::<Vec<_>>(), [1, 3, 5], "cut at {cut}");
        }
    }

    #[test]
    fn lengths_that_nobody_means_are_refused_before_anything_is_kept() {
        assert!(frame([0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(Parts::default().take(PLUGIN, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 0]).is_err());
        let mut parts = Parts::default();
        assert_eq!(parts.take(9, &[0xff; 100]).unwrap(), []);
        assert!(parts.of_plugin.is_empty() && parts.of_runtime.is_empty());
    }
}
