//! Bytes that no client of ours wrote, read as every message of both packages: reading never panics, what was read can be
//! written and read again, and its JSON is made or refused.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod wire;
}

use std::fmt::Debug;

use knit_kni::{json, kni, v1};
use proptest::prelude::*;
use prost::{Message, Name};
use support::wire::fields;

/// Reads the bytes as a message. What is no message is an error.
fn read<M: Message + Name + Default + PartialEq + Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(message) = M::decode(bytes) else { return Ok(()) };
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).unwrap();
    // Compared as bytes: a number that is none (NaN) is not equal to itself, and no field holds one today.
    prop_assert_eq!(again.encode_to_vec(), written);
    let _ = json::value(&message);
    let _ = format!("{message:?}");
    Ok(())
}

/// Reads the bytes as each of these.
macro_rules! read_as {
    ($bytes:ident: $($package:ident { $($message:ident),* $(,)? })*) => {
        $($(read::<$package::$message>($bytes)?;)*)*
        /// How many are listed.
        const LISTED: usize = [$($(stringify!($message)),*),*].len();
    };
}

fn read_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    read_as! { bytes:
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
            EndSandboxResponse, ListSandboxesRequest, ListSandboxesResponse,
        }
    }
    // What the CNI shim puts around them.
    read::<v1::FramedCall>(bytes)?;
    read::<v1::FramedReply>(bytes)?;
    // Two names share a request and an answer in each of four pairs of package kni.
    let methods: usize = json::pool().services().map(|service| service.methods().len()).sum();
    assert_eq!(LISTED, (methods - 4) * 2, "a method's messages are missing in this test");
    Ok(())
}

const TEXTS: [&str; 6] = ["eth0", "10.0.0.1/24", "fe80::1", "\0", "../..", "ä"];

proptest! {
    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes)?;
    }

    #[test]
    fn random_fields_are_read_or_refused(bytes in fields(&TEXTS)) {
        read_all(&bytes)?;
    }
}

#[test]
fn messages_in_messages_without_end_are_refused() {
    // Nothing of ours nests in itself; an unknown group does, and must not eat the stack.
    let deep = [0x0b_u8].repeat(1 << 20);
    assert!(kni::AttachInterfaceRequest::decode(deep.as_slice()).is_err());
    assert!(v1::AttachRequest::decode(deep.as_slice()).is_err());
}

#[test]
fn a_time_that_no_calendar_has_is_refused_as_json() {
    let since = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: i32::MIN });
    let condition = v1::Condition { since, ..v1::Condition::default() };
    assert!(json::value(&condition).is_err());
    // And printed without a panic, which is how the commands show times.
    for seconds in [i64::MIN, i64::MAX] {
        let time = prost_types::Timestamp { seconds, nanos: i32::MIN };
        assert!(!time.to_string().is_empty());
    }
}
