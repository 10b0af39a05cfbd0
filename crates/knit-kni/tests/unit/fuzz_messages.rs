//! Random bytes decoded as every message of both packages: decoding never panics, decoded messages survive a round trip,
//! and the JSON conversion succeeds or returns an error.

use std::fmt::Debug;

use knit_kni::{json, kni, v1};
use proptest::prelude::*;
use prost::{Message, Name};

use crate::random_wire::fields;

/// Decodes the bytes as a message and checks the round trip.
fn check<M: Message + Name + Default + PartialEq + Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(message) = M::decode(bytes) else { return Ok(()) };
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).unwrap();
    // Compared as bytes, because NaN is not equal to itself.
    prop_assert_eq!(again.encode_to_vec(), written);
    let _ = json::value(&message);
    let _ = format!("{message:?}");
    Ok(())
}

/// Checks the bytes as each of these messages.
macro_rules! check_as {
    ($bytes:ident: $($package:ident { $($message:ident),* $(,)? })*) => {
        $($(check::<$package::$message>($bytes)?;)*)*
        /// The number of listed messages.
        const LISTED: usize = [$($(stringify!($message)),*),*].len();
    };
}

fn check_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    check_as! { bytes:
        kni {
            CreateNetworkRequest, CreateNetworkResponse, DeleteNetworkRequest, DeleteNetworkResponse,
            AttachInterfaceRequest, AttachInterfaceResponse, DetachInterfaceRequest, DetachInterfaceResponse,
            QueryPodNetworkRequest, QueryPodNetworkResponse, SetupNodeNetworkRequest, SetupNodeNetworkResponse,
            QueryNodeNetworksRequest, QueryNodeNetworksResponse, PostAttachInterfaceRequest,
            PostAttachInterfaceResponse, RegisterPluginRequest, RegisterPluginResponse, DeregisterPluginRequest,
            DeregisterPluginResponse, ListPluginsRequest, ListPluginsResponse,
        }
        v1 {
            CreateSandboxRequest, CreateSandboxResponse, DeleteSandboxRequest, DeleteSandboxResponse,
            AttachRequest, AttachResponse, DetachRequest, DetachResponse, GetPodRequest, GetPodResponse,
            ListPodsRequest, ListPodsResponse, GetNodeRequest, GetNodeResponse, ListNetworksRequest,
            ListNetworksResponse, GetReadinessRequest, GetReadinessResponse, GetCapacityRequest,
            GetCapacityResponse, CollectGarbageRequest, CollectGarbageResponse, WatchRequest, WatchEvent,
            LogsRequest, LogLine, CheckPodRequest, CheckPodResponse, RegisterRequest, RegisterResponse,
            DeregisterRequest, DeregisterResponse, ListExtensionsRequest, ListExtensionsResponse,
            GetExtensionRequest, GetExtensionResponse, BeforeAttachRequest, BeforeAttachResponse,
            AfterAttachRequest, AfterAttachResponse, AfterDetachRequest, AfterDetachResponse,
            ApplyRequest, ApplyResponse, DeleteObjectsRequest, DeleteObjectsResponse, UndoRequest, UndoResponse,
            ListObjectsRequest, ListObjectsResponse, GetStatusRequest, GetStatusResponse, AddSandboxRequest,
            AddSandboxResponse, LabelSandboxRequest, LabelSandboxResponse, EndSandboxRequest,
            EndSandboxResponse, ListSandboxesRequest, ListSandboxesResponse, ListPoliciesRequest,
            ListPoliciesResponse, GetPodPoliciesRequest, GetPodPoliciesResponse, ExplainConnectionRequest,
            ExplainConnectionResponse,
        }
    }
    // The frames of the CNI shim.
    check::<v1::FramedCall>(bytes)?;
    check::<v1::FramedReply>(bytes)?;
    // Package kni has four pairs of methods that share request and response.
    let methods: usize = json::pool().services().map(|service| service.methods().len()).sum();
    assert_eq!(LISTED, (methods - 4) * 2, "messages of a method are missing in this test");
    Ok(())
}

const TEXTS: [&str; 6] = ["eth0", "10.0.0.1/24", "fe80::1", "\0", "../..", "ä"];

proptest! {
    #[test]
    fn random_bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_all(&bytes)?;
    }

    #[test]
    fn random_fields_are_decoded_or_rejected(bytes in fields(&TEXTS)) {
        check_all(&bytes)?;
    }
}

#[test]
fn deeply_nested_messages_are_rejected() {
    // No message is recursive, but unknown groups nest and must not overflow the stack.
    let deep = [0x0b_u8].repeat(1 << 20);
    assert!(kni::AttachInterfaceRequest::decode(deep.as_slice()).is_err());
    assert!(v1::AttachRequest::decode(deep.as_slice()).is_err());
}

#[test]
fn a_time_out_of_range_is_rejected_as_json() {
    let since = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: i32::MIN });
    let condition = v1::Condition { since, ..v1::Condition::default() };
    assert!(json::value(&condition).is_err());
    // The commands print times, which must not panic.
    for seconds in [i64::MIN, i64::MAX] {
        let time = prost_types::Timestamp { seconds, nanos: i32::MIN };
        assert!(!time.to_string().is_empty());
    }
}
