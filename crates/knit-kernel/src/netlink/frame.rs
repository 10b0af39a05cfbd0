//! Splits datagrams into messages, and decodes acknowledgements.

use nix::errno::Errno;

use super::align;
use super::attributes::Attributes;
use super::constants::*;
use super::message::MESSAGE_HEADER;
use crate::error::{Context, Error};

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// Iterates over the messages of a datagram. Any bytes are allowed; it ends at the first invalid length.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

/// The outcome of a request.
pub type AckResult = Result<(), Rejection>;

/// A rejection, before the caller's context is added.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejection {
    pub errno: Errno,
    pub message: Option<String>,
    pub offset: Option<u32>,
}

impl<'a> Frames<'a> {
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let header: &[u8; MESSAGE_HEADER] = self.rest.first_chunk()?;
        let length = read_u32(header, 0)? as usize;
        let frame = Frame {
            kind: read_u16(header, 4)?,
            flags: read_u16(header, 6)?,
            sequence: read_u32(header, 8)?,
            body: self.rest.get(MESSAGE_HEADER..length)?,
        };
        self.rest = self.rest.get(align(length)..).unwrap_or_default();
        Some(frame)
    }
}

impl Frame<'_> {
    /// The outcome, if this message is an acknowledgement, an error, or the end of a dump. One that is too short
    /// counts as a rejection with `EBADMSG`.
    pub fn ack(&self) -> Option<AckResult> {
        let after_code = match self.kind {
            // The request follows the code: its header only, if the reply is capped.
            NLMSG_ERROR if self.flags & NLM_F_CAPPED != 0 => 4 + MESSAGE_HEADER,
            NLMSG_ERROR => 4 + align(read_u32(self.body, 4).unwrap_or(0) as usize).max(MESSAGE_HEADER),
            NLMSG_DONE => 4,
            _ => return None,
        };
        let code = match self.body.first_chunk() {
            Some(code) => i32::from_ne_bytes(*code),
            // A dump may end without a code.
            None if self.kind == NLMSG_DONE => 0,
            None => -(Errno::EBADMSG as i32),
        };
        // A dump ends with its length or a negative error number.
        if code >= 0 {
            return Some(Ok(()));
        }
        let mut rejection =
            Rejection { errno: Errno::from_raw(code.saturating_neg()), message: None, offset: None };
        if self.flags & NLM_F_ACK_TLVS != 0 {
            for attribute in Attributes::new(self.body.get(after_code..).unwrap_or_default()) {
                match attribute.kind {
                    NLMSGERR_ATTR_MSG => rejection.message = attribute.str().map(str::to_owned),
                    NLMSGERR_ATTR_OFFS => rejection.offset = attribute.u32(),
                    _ => {}
                }
            }
        }
        Some(Err(rejection))
    }
}

impl Rejection {
    pub fn with_context(self, context: Context) -> Error {
        Error::Rejected { context, errno: self.errno, message: self.message, offset: self.offset }
    }
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::Message;

    /// An extended acknowledgement: code, the request's header, attributes.
    fn reply(code: i32, flags: u16, text: Option<&str>) -> Vec<u8> {
        let mut message = Message::new(NLMSG_ERROR, flags, "test");
        message.header(&Code(code));
        if let Some(text) = text {
            message.put_str(NLMSGERR_ATTR_MSG, text).put_u32(NLMSGERR_ATTR_OFFS, 36);
        }
        message.set_sequence(9);
        message.as_bytes().to_vec()
    }

    struct Code(i32);

    impl crate::netlink::Header for Code {
        const LENGTH: usize = 20;
        fn encode(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0.to_ne_bytes());
            out.extend_from_slice(&[0; 16]);
        }
        fn decode(_: &[u8]) -> Option<Self> {
            None
        }
    }

    #[test]
    fn extended_ack_message_and_offset_are_decoded() {
        let bytes = reply(-95, NLM_F_CAPPED | NLM_F_ACK_TLVS, Some("Unknown device type"));
        let frame = Frames::new(&bytes).next().unwrap();
        assert_eq!(frame.sequence, 9);
        let rejection = frame.ack().unwrap().unwrap_err();
        let message = Some("Unknown device type".to_owned());
        assert_eq!(rejection, Rejection { errno: Errno::EOPNOTSUPP, message, offset: Some(36) });
    }

    #[test]
    fn code_zero_is_an_acknowledgement_and_data_is_no_verdict() {
        let bytes = reply(0, NLM_F_CAPPED, None);
        assert_eq!(Frames::new(&bytes).next().unwrap().ack(), Some(Ok(())));
        let data = Frame { kind: RTM_NEWLINK, flags: 0, sequence: 1, body: &[] };
        assert_eq!(data.ack(), None);
    }

    #[test]
    fn a_truncated_error_is_still_an_error() {
        let frame = Frame { kind: NLMSG_ERROR, flags: 0, sequence: 1, body: &[1] };
        assert_eq!(frame.ack().unwrap().unwrap_err().errno, Errno::EBADMSG);
    }

    proptest! {
        #[test]
        fn any_datagram_is_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..256), kind in 2u16..4, flags: u16) {
            for frame in Frames::new(&bytes) {
                let _ = frame.ack();
            }
            let _ = Frame { kind, flags, sequence: 0, body: &bytes }.ack();
        }
    }
}
