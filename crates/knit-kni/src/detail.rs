//! Transport of errors: a gRPC status with an `ErrorDetail` for programs.

use prost::Message;
use tonic::Status;

use crate::call;
use crate::reason::Reason;
use crate::v1::ErrorDetail;

/// `google.rpc.Status`, which gRPC libraries of every language expect in `grpc-status-details-bin`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    /// The gRPC code.
    #[prost(int32, tag = "1")]
    code: i32,
    /// The message.
    #[prost(string, tag = "2")]
    message: String,
    /// The details.
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// An error of the agent: its reason, the object and field, and whether a retry may help. It converts into a gRPC
/// status.
#[derive(Clone, Debug, PartialEq)]
pub struct RpcError {
    reason: Reason,
    // Boxed to keep `Result`s small.
    inner: Box<ErrorContent>,
}

#[derive(Clone, Debug, PartialEq)]
struct ErrorContent {
    message: String,
    detail: ErrorDetail,
}

impl RpcError {
    /// An error with a message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let detail =
            ErrorDetail { reason: reason.to_string(), retry: reason.retry(), ..ErrorDetail::default() };
        Self { reason, inner: Box::new(ErrorContent { message: message.into(), detail }) }
    }

    /// Sets the object, such as `pod cnf/pod1 interface net1`.
    #[must_use]
    pub fn about(mut self, object: impl Into<String>) -> Self {
        self.inner.detail.object = object.into();
        self
    }

    /// Sets the invalid field of the request, such as `interfaces[0].name`.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.inner.detail.field = field.into();
        self
    }

    /// Sets whether the same call may succeed later, where it differs from the reason's default.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.inner.detail.retry = retry;
        self
    }

    /// Sets the call ID.
    #[must_use]
    pub fn call(mut self, id: impl Into<String>) -> Self {
        self.inner.detail.call_id = id.into();
        self
    }

    /// The reason.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.inner.message
    }
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        let RpcError { reason, inner } = error;
        let ErrorContent { message, mut detail } = *inner;
        if detail.call_id.is_empty() {
            detail.call_id = call::current();
        }
        let code = reason.code();
        let any = prost_types::Any::from_msg(&detail).expect("encoding into a Vec does not fail");
        let whole = RpcStatus { code: code as i32, message: message.clone(), details: vec![any] };
        let mut status = Self::with_details(code, message, whole.encode_to_vec().into());
        call::set_id(status.metadata_mut(), &detail.call_id);
        status
    }
}

/// The detail of a status; `None` if it has no valid one.
pub(crate) fn read(status: &Status) -> Option<ErrorDetail> {
    let whole = RpcStatus::decode(status.details()).ok()?;
    whole.details.iter().find_map(|any| any.to_msg().ok())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn an_error_survives_conversion_to_a_status() {
        let error = RpcError::new(Reason::AddressesExhausted, "network blue: no address left")
            .about("network default/blue")
            .field("interfaces[0].network")
            .call("c1");
        let status = Status::from(error);
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "network blue: no address left")
        );
        assert_eq!(call::id(status.metadata()), Some("c1"));
        let detail = read(&status).unwrap();
        assert_eq!(detail.reason, "AddressesExhausted");
        assert_eq!(detail.object, "network default/blue");
        assert_eq!(detail.field, "interfaces[0].network");
        assert!(detail.retry);
        assert_eq!(detail.call_id, "c1");
    }

    #[test]
    fn the_detail_is_packed_as_google_rpc_status() {
        let status = Status::from(RpcError::new(Reason::NotFound, "no"));
        let (name, detail) = (b"type.googleapis.com/knit.v1.ErrorDetail", b"\x0a\x08NotFound");
        let mut expected = b"\x08\x05\x12\x02no\x1a".to_vec();
        expected.push(u8::try_from(name.len() + detail.len() + 4).unwrap());
        for (tag, field) in [(0x0a, &name[..]), (0x12, detail)] {
            expected.extend([tag, u8::try_from(field.len()).unwrap()]);
            expected.extend(field);
        }
        assert_eq!(status.details(), expected);
    }

    #[test]
    fn other_statuses_have_no_detail() {
        assert_eq!(read(&Status::internal("x")), None);
        assert_eq!(read(&Status::with_details(Code::Internal, "x", b"\xff\xff".to_vec().into())), None);
    }
}
