//! Calls without HTTP/2: length-prefixed messages, see `api/knit/v1/frame.proto`.

use prost::Message;
use tonic::Status;

use crate::v1::{FramedCall, FramedReply};
use crate::{Reason, RpcError, detail};

/// The file name of the socket, next to the gRPC one.
pub const SOCKET: &str = "cni.sock";
/// The default path.
pub const DEFAULT_SOCKET: &str = "/run/knit/cni.sock";
/// A marker in the binary of the CNI shim, which distinguishes it from other plugins.
pub const SHIM_MARK: &str = "this is the CNI shim of Knit";
/// The size of the length prefix in bytes.
pub const HEADER_LEN: usize = 4;

/// A message with its length prefix.
pub fn encode(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(HEADER_LEN + length);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode(&mut bytes).expect("encoding into a Vec does not fail");
    bytes
}

/// The length in a header; `None` if it exceeds `max`.
pub fn payload_len(header: [u8; HEADER_LEN], max: usize) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(header)).ok().filter(|length| *length <= max)
}

/// A call of a method.
pub fn call(method: &str, request: &impl Message, deadline_ms: u32) -> FramedCall {
    let request = request.encode_to_vec();
    FramedCall { method: method.to_owned(), request, call_id: String::new(), deadline_ms }
}

/// The reply of a service.
pub fn reply<T: Message>(result: Result<T, Status>) -> FramedReply {
    match result {
        Ok(response) => FramedReply { response: response.encode_to_vec(), ..FramedReply::default() },
        Err(status) => FramedReply {
            response: Vec::new(),
            code: u32::try_from(status.code() as i32).unwrap_or_default(),
            message: status.message().to_owned(),
            error: detail::read(&status),
        },
    }
}

/// Decodes the request of a call.
pub fn request<T: Message + Default>(call: &FramedCall) -> Result<T, Status> {
    T::decode(call.request.as_slice()).map_err(|why| {
        let message = format!("cannot decode the request of {}: {why}", call.method);
        RpcError::new(Reason::InvalidValue, message).field("request").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn calls_and_errors_survive_a_round_trip() {
        let sent = v1::GetPodRequest { pod: Some(v1::PodRef { id: "a".to_owned(), ..Default::default() }) };
        let bytes = encode(&call("GetPod", &sent, 5));
        let (header, rest) = bytes.split_at(HEADER_LEN);
        assert_eq!(payload_len(header.try_into().unwrap(), 100), Some(rest.len()));
        assert_eq!(payload_len(header.try_into().unwrap(), 3), None);
        let read = FramedCall::decode(rest).unwrap();
        assert_eq!((read.method.as_str(), read.deadline_ms), ("GetPod", 5));
        assert_eq!(request::<v1::GetPodRequest>(&read).unwrap(), sent);

        let error = RpcError::new(Reason::NotFound, "pod a not found").field("pod");
        let reply = reply::<v1::GetPodResponse>(Err(error.into()));
        assert_eq!((reply.code, reply.message.as_str()), (5, "pod a not found"));
        assert_eq!(reply.error.unwrap().reason, "NotFound");
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let bad = FramedCall { request: vec![0xff], ..FramedCall::default() };
        assert_eq!(request::<v1::GetPodRequest>(&bad).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
