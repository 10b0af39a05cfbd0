//! How an error travels: a gRPC status, with an `ErrorDetail` for programs inside it.

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
    /// The sentence for people.
    #[prost(string, tag = "2")]
    message: String,
    /// What programs read.
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// An answer that says no: why, about what, and whether to try again. The agent's side of an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    reason: Reason,
    // Apart, so that every function that can refuse does not move all of it around.
    said: Box<Said>,
}

#[derive(Clone, Debug, PartialEq)]
struct Said {
    message: String,
    detail: ErrorDetail,
}

impl Refusal {
    /// A refusal with a sentence for people.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let detail =
            ErrorDetail { reason: reason.to_string(), retry: reason.retry(), ..ErrorDetail::default() };
        Self { reason, said: Box::new(Said { message: message.into(), detail }) }
    }

    /// What it is about, such as `pod cnf/pod1 interface net1`.
    #[must_use]
    pub fn about(mut self, object: impl Into<String>) -> Self {
        self.said.detail.object = object.into();
        self
    }

    /// The field of the request that is wrong, such as `interfaces[0].name`.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.said.detail.field = field.into();
        self
    }

    /// Whether the same call may succeed later, where that is not what the reason says.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.said.detail.retry = retry;
        self
    }

    /// The id of the call.
    #[must_use]
    pub fn call(mut self, id: impl Into<String>) -> Self {
        self.said.detail.call_id = id.into();
        self
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.said.message
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let Refusal { reason, said } = refusal;
        let Said { message, mut detail } = *said;
        if detail.call_id.is_empty() {
            detail.call_id = call::current();
        }
        let code = reason.code();
        let any = prost_types::Any::from_msg(&detail).expect("a message always fits a growing buffer");
        let whole = RpcStatus { code: code as i32, message: message.clone(), details: vec![any] };
        let mut status = Self::with_details(code, message, whole.encode_to_vec().into());
        call::set_id(status.metadata_mut(), &detail.call_id);
        status
    }
}

/// The detail inside a status; `None` if it has none that can be read.
pub(crate) fn read(status: &Status) -> Option<ErrorDetail> {
    let whole = RpcStatus::decode(status.details()).ok()?;
    whole.details.iter().find_map(|any| any.to_msg().ok())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_refusal_survives_the_way_through_a_status() {
        let refusal = Refusal::new(Reason::AddressesExhausted, "network blue: no address left")
            .about("network default/blue")
            .field("interfaces[0].network")
            .call("c1");
        let status = Status::from(refusal);
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
    fn the_detail_is_packed_as_every_grpc_library_expects() {
        let status = Status::from(Refusal::new(Reason::NotFound, "no"));
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
    fn a_status_of_others_has_no_detail() {
        assert_eq!(read(&Status::internal("x")), None);
        assert_eq!(read(&Status::with_details(Code::Internal, "x", b"\xff\xff".to_vec().into())), None);
    }
}
