//! Calls without HTTP/2: a length, then a message. `api/knit/v1/frame.proto` says how.

use prost::Message;
use tonic::Status;

use crate::v1::{FramedCall, FramedReply};
use crate::{Reason, Refusal, detail};

/// The socket's file name, beside the gRPC one.
pub const SOCKET: &str = "cni.sock";
/// The whole path, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/knit/cni.sock";
/// What the shim's program has in it, so that it is known from others' files.
pub const SHIM_MARK: &str = "this is the CNI shim of Knit";
/// How many bytes say how long a message is.
pub const HEADER: usize = 4;

/// A message with its length before it.
pub fn encode(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode(&mut bytes).expect("a message always fits a growing buffer");
    bytes
}

/// How many bytes follow a header; `None` if more than `most`.
pub fn length(header: [u8; HEADER], most: usize) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(header)).ok().filter(|length| *length <= most)
}

/// A call of a method.
pub fn call(method: &str, request: &impl Message, deadline_ms: u32) -> FramedCall {
    let request = request.encode_to_vec();
    FramedCall { method: method.to_owned(), request, call_id: String::new(), deadline_ms }
}

/// What a service answered.
pub fn reply<T: Message>(answer: Result<T, Status>) -> FramedReply {
    match answer {
        Ok(response) => FramedReply { response: response.encode_to_vec(), ..FramedReply::default() },
        Err(status) => FramedReply {
            response: Vec::new(),
            code: u32::try_from(status.code() as i32).unwrap_or_default(),
            message: status.message().to_owned(),
            error: detail::read(&status),
        },
    }
}

/// A method's request; a refusal if the bytes are none.
pub fn request<T: Message + Default>(call: &FramedCall) -> Result<T, Status> {
    T::decode(call.request.as_slice()).map_err(|why| {
        let message = format!("the request of {} cannot be read: {why}", call.method);
        Refusal::new(Reason::InvalidValue, message).field("request").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn a_call_and_its_refusal_come_back_as_they_were_sent() {
        let asked = v1::GetPodRequest { pod: Some(v1::PodRef { id: "a".to_owned(), ..Default::default() }) };
        let bytes = encode(&call("GetPod", &asked, 5));
        let (header, rest) = bytes.split_at(HEADER);
        assert_eq!(length(header.try_into().unwrap(), 100), Some(rest.len()));
        assert_eq!(length(header.try_into().unwrap(), 3), None);
        let read = FramedCall::decode(rest).unwrap();
        assert_eq!((read.method.as_str(), read.deadline_ms), ("GetPod", 5));
        assert_eq!(request::<v1::GetPodRequest>(&read).unwrap(), asked);

        let refused = Refusal::new(Reason::NotFound, "there is no pod a").field("pod");
        let reply = reply::<v1::GetPodResponse>(Err(refused.into()));
        assert_eq!((reply.code, reply.message.as_str()), (5, "there is no pod a"));
        assert_eq!(reply.error.unwrap().reason, "NotFound");
    }

    #[test]
    fn bytes_that_are_no_request_are_refused() {
        let bad = FramedCall { request: vec![0xff], ..FramedCall::default() };
        assert_eq!(request::<v1::GetPodRequest>(&bad).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
