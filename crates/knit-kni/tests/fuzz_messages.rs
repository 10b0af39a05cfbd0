//! Bytes that no client of ours wrote, read as every message of both packages: reading never panics, what was read can be
//! written and read again, and its JSON is made or refused.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fmt::Debug;

use knit_kni::{json, kni, v1};
use proptest::prelude::*;
use prost::{Message, Name};

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
            QueryNodeNetworksRequest, QueryNodeNetworksResponse,
        }
        v1 {
            CreateSandboxRequest, CreateSandboxResponse, DeleteSandboxRequest, DeleteSandboxResponse,
            AttachRequest, AttachResponse, DetachRequest, DetachResponse, GetPodRequest, GetPodResponse,
            ListPodsRequest, ListPodsResponse, GetNodeRequest, GetNodeResponse, ListNetworksRequest,
            ListNetworksResponse, GetReadinessRequest, GetReadinessResponse, GetCapacityRequest,
            GetCapacityResponse, CollectGarbageRequest, CollectGarbageResponse, WatchRequest, WatchEvent,
            LogsRequest, LogLine,
        }
    }
    // Two names share a request and an answer in each of four pairs of package kni.
    let methods: usize = json::pool().services().map(|service| service.methods().len()).sum();
    assert_eq!(LISTED, (methods - 4) * 2, "a method's messages are missing in this test");
    Ok(())
}

/// A number as protobuf writes it.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field with any number and type, often one that exists; its content may be fields again.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let number = || prop_oneof![8 => 1..20_u64, 1 => any::<u32>().prop_map(u64::from)];
    let content = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        prop::sample::select(vec!["eth0", "10.0.0.1/24", "fe80::1", "\0", "../..", "ä"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    let tagged = |number: u64, wire: u64, rest: Vec<u8>| [varint(number << 3 | wire), rest].concat();
    let sized = |bytes: Vec<u8>| [varint(bytes.len() as u64), bytes].concat();
    let number_field =
        (number(), any::<u64>()).prop_map(move |(number, value)| tagged(number, 0, varint(value)));
    let odd = (number(), 1..8_u64, content.clone())
        .prop_map(move |(number, wire, rest)| tagged(number, wire, rest));
    let leaf = (number(), content).prop_map(move |(number, bytes)| tagged(number, 2, sized(bytes)));
    prop_oneof![4 => leaf, 2 => number_field, 1 => odd].prop_recursive(5, 40, 5, move |inner| {
        (number(), prop::collection::vec(inner, 0..5))
            .prop_map(move |(number, fields)| tagged(number, 2, sized(fields.concat())))
    })
}

proptest! {
    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes)?;
    }

    #[test]
    fn random_fields_are_read_or_refused(fields in prop::collection::vec(field(), 0..8)) {
        read_all(&fields.concat())?;
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
