//! The wire format: ttrpc messages in the frames of a multiplexed socket.
//!
//! A frame has a header of eight bytes: the connection and the length. A message has one of ten: its length, stream,
//! type and flags. A frame may hold a part of a message or several, so each connection is a byte stream.

use crate::Error;

/// The connection on which the runtime calls the plugin.
pub(crate) const PLUGIN_CONNECTION: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub(crate) const RUNTIME_CONNECTION: u32 = 2;

/// The size of a frame header.
pub(crate) const FRAME_HEADER_LEN: usize = 8;
/// The size of a message header.
const MESSAGE_HEADER_LEN: usize = 10;
/// The maximum size of a message.
const MAX_MESSAGE: usize = 4 << 20;
/// The maximum payload of a sent frame, which is the receiver's initial buffer size.
const MAX_SENT_PAYLOAD: usize = 4_096;

/// The message type of a call.
pub(crate) const REQUEST: u8 = 1;
/// The message type of a response.
pub(crate) const RESPONSE: u8 = 2;
/// The flag of the last message of a stream.
pub(crate) const FLAG_CLOSED: u8 = 1;

/// A message of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) connection: u32,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

/// Parses a frame header: the connection, and the length of the payload.
pub(crate) fn parse_frame_header(header: [u8; FRAME_HEADER_LEN]) -> Result<(u32, usize), Error> {
    let (connection, length) = (number(&header[..4]), number(&header[4..]) as usize);
    if length > MESSAGE_HEADER_LEN + MAX_MESSAGE {
        return Err(Error::InvalidMessage { what: format!("a frame of {length} bytes") });
    }
    Ok((connection, length))
}

/// Reassembles messages of both connections.
#[derive(Debug, Default)]
pub(crate) struct Reassembler {
    plugin: Vec<u8>,
    runtime: Vec<u8>,
}

impl Reassembler {
    /// Adds a frame, and returns the messages that are complete. Frames of unknown connections are ignored.
    pub(crate) fn push(&mut self, connection: u32, bytes: &[u8]) -> Result<Vec<Message>, Error> {
        let buffer = match connection {
            PLUGIN_CONNECTION => &mut self.plugin,
            RUNTIME_CONNECTION => &mut self.runtime,
            _ => return Ok(Vec::new()),
        };
        buffer.extend_from_slice(bytes);
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(header) = buffer.get(at..at + MESSAGE_HEADER_LEN) {
            let length = number(&header[..4]) as usize;
            if length > MAX_MESSAGE {
                return Err(Error::InvalidMessage { what: format!("a message of {length} bytes") });
            }
            let (stream, kind, flags) = (number(&header[4..8]), header[8], header[9]);
            let Some(payload) = buffer.get(at + MESSAGE_HEADER_LEN..at + MESSAGE_HEADER_LEN + length) else {
                break;
            };
            messages.push(Message { connection, stream, kind, flags, payload: payload.to_vec() });
            at += MESSAGE_HEADER_LEN + length;
        }
        buffer.drain(..at);
        Ok(messages)
    }
}

impl Message {
    /// Encodes the message as frames.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let mut whole = Vec::with_capacity(MESSAGE_HEADER_LEN + self.payload.len());
        whole.extend(length.to_be_bytes());
        whole.extend(self.stream.to_be_bytes());
        whole.extend([self.kind, self.flags]);
        whole.extend(&self.payload);
        let frames = whole.chunks(MAX_SENT_PAYLOAD).flat_map(|chunk| {
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
        Message { connection, stream, kind: REQUEST, flags: FLAG_CLOSED, payload: vec![7; length] }
    }

    /// Decodes bytes from the wire.
    fn read(reassembler: &mut Reassembler, mut bytes: &[u8]) -> Result<Vec<Message>, Error> {
        let mut all = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk() {
            let (connection, length) = parse_frame_header(*header)?;
            all.extend(reassembler.push(connection, &rest[..length])?);
            bytes = &rest[length..];
        }
        Ok(all)
    }

    #[test]
    fn messages_of_any_length_survive_a_round_trip() {
        let all = [
            message(PLUGIN_CONNECTION, 1, 0),
            message(RUNTIME_CONNECTION, 3, 5_000),
            message(PLUGIN_CONNECTION, 3, 100_000),
        ];
        let bytes: Vec<u8> = all.iter().flat_map(Message::encode).collect();
        assert_eq!(read(&mut Reassembler::default(), &bytes).unwrap(), all);
    }

    #[test]
    fn messages_are_reassembled_across_frames() {
        let bare: Vec<u8> = [
            message(PLUGIN_CONNECTION, 1, 3),
            message(PLUGIN_CONNECTION, 3, 0),
            message(PLUGIN_CONNECTION, 5, 20),
        ]
        .iter()
        .flat_map(|message| message.encode()[FRAME_HEADER_LEN..].to_vec())
        .collect();
        for cut in 0..bare.len() {
            let mut reassembler = Reassembler::default();
            let mut all = reassembler.push(PLUGIN_CONNECTION, &bare[..cut]).unwrap();
            all.extend(reassembler.push(PLUGIN_CONNECTION, &bare[cut..]).unwrap());
            assert_eq!(all.iter().map(|one| one.stream).collect::<Vec<_>>(), [1, 3, 5], "cut at {cut}");
        }
    }

    #[test]
    fn excessive_lengths_are_rejected_before_buffering() {
        assert!(parse_frame_header([0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(
            Reassembler::default()
                .push(PLUGIN_CONNECTION, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 0])
                .is_err()
        );
        let mut reassembler = Reassembler::default();
        assert_eq!(reassembler.push(9, &[0xff; 100]).unwrap(), []);
        assert!(reassembler.plugin.is_empty() && reassembler.runtime.is_empty());
    }
}
