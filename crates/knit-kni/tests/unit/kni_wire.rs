//! Wire format of package `kni`: bytes derived from the public proof of concept, which fail on any change of a field
//! number, a type or a name.

use std::collections::BTreeMap;
use std::fmt::Debug;

use knit_kni::kni::{
    AttachInterfaceRequest, AttachInterfaceResponse, CreateNetworkRequest, CreateNetworkResponse,
    DeleteNetworkRequest, DeleteNetworkResponse, DetachInterfaceRequest, DetachInterfaceResponse, DnsConfig,
    IpConfig, Isolation, Network, PortMapping, Protocol, QueryNodeNetworksRequest, QueryNodeNetworksResponse,
    QueryPodNetworkRequest, QueryPodNetworkResponse, SetupNodeNetworkRequest, SetupNodeNetworkResponse,
};
use prost::Message;

/// Fields of a newer version with numbers above 100: a varint, a fixed64, a string and a fixed32.
const UNKNOWN: &[u8] = b"\xc8\x06\x2a\xd1\x06\0\0\0\0\0\0\0\x01\xda\x06\x03new\xe5\x06\0\0\0\x01";

/// The bytes and the message are equivalent in both directions, also with unknown fields.
fn same<M: Message + Default + PartialEq + Debug>(bytes: &[u8], message: M) {
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    assert_eq!(M::decode(bytes).unwrap(), message);
    assert_eq!(M::decode([UNKNOWN, bytes].concat().as_slice()).unwrap(), message);
    assert_eq!(M::decode([bytes, UNKNOWN].concat().as_slice()).unwrap(), message);
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(text(key), text(value))])
}

#[test]
fn isolation_domain_messages() {
    same(
        b"\x0a\x01p\x12\x01u\x1a\x01n\x22\x04/run\x2a\x06\x0a\x01l\x12\x01L\x32\x06\x0a\x01a\x12\x01A\x3a\x06\x0a\x01e\x12\x01E",
        CreateNetworkRequest {
            name: text("p"),
            uid: text("u"),
            namespace: text("n"),
            netns_path_prefix: text("/run"),
            labels: map("l", "L"),
            annotations: map("a", "A"),
            extradata: map("e", "E"),
        },
    );
    same(
        b"\x0a\x05/ns/p\x12\x06\x0a\x01e\x12\x01E",
        CreateNetworkResponse { netns_path: text("/ns/p"), extradata: map("e", "E") },
    );
    same(
        b"\x0a\x02id\x12\x01p\x1a\x01n\x22\x05/ns/p\x2a\x06\x0a\x01e\x12\x01E",
        DeleteNetworkRequest {
            id: text("id"),
            name: text("p"),
            namespace: text("n"),
            netns_path: text("/ns/p"),
            extradata: map("e", "E"),
        },
    );
    same(b"", DeleteNetworkResponse {});
}

#[test]
fn attach_and_detach_messages() {
    let isolation = Isolation { path: text("/p"), r#type: text("netns"), extradata: map("e", "E") };
    let dns = DnsConfig { servers: vec![text("s")], searches: vec![text("d")], options: vec![text("o")] };
    let ports = vec![
        PortMapping {
            protocol: Protocol::Udp.into(),
            container_port: 53,
            host_port: 8053,
            host_ip: text("h"),
        },
        PortMapping { protocol: Protocol::Tcp.into(), container_port: 80, host_port: -1, host_ip: text("") },
    ];
    same(
        b"\x0a\x01p\x12\x02id\x1a\x01n\
          \x22\x13\x0a\x02/p\x12\x05netns\x1a\x06\x0a\x01e\x12\x01E\
          \x2a\x09\x0a\x01s\x12\x01d\x1a\x01o\
          \x32\x0a\x08\x01\x10\x35\x18\xf5\x3e\x22\x01h\
          \x32\x0d\x10\x50\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\
          \x3a\x06\x0a\x01l\x12\x01L\x42\x06\x0a\x01a\x12\x01A\x4a\x06\x0a\x01e\x12\x01E",
        AttachInterfaceRequest {
            name: text("p"),
            id: text("id"),
            namespace: text("n"),
            isolation: Some(isolation.clone()),
            dns_config: Some(dns),
            port_mappings: ports,
            labels: map("l", "L"),
            annotations: map("a", "A"),
            extradata: map("e", "E"),
        },
    );
    let config = IpConfig { ip: vec![text("4"), text("6")], mac: text("m"), extradata: map("e", "E") };
    let configs = BTreeMap::from([(text("eth0"), config)]);
    let bytes =
        b"\x0a\x19\x0a\x04eth0\x12\x11\x0a\x014\x0a\x016\x12\x01m\x1a\x06\x0a\x01e\x12\x01E\x12\x06\x0a\x01x\x12\x01X";
    same(bytes, AttachInterfaceResponse { ipconfigs: configs.clone(), extradata: map("x", "X") });
    same(bytes, QueryPodNetworkResponse { ipconfigs: configs, extradata: map("x", "X") });
    same(
        b"\x0a\x01p\x12\x02id\x1a\x01n\
          \x22\x13\x0a\x02/p\x12\x05netns\x1a\x06\x0a\x01e\x12\x01E\
          \x2a\x06\x0a\x01l\x12\x01L\x32\x06\x0a\x01a\x12\x01A\x3a\x06\x0a\x01e\x12\x01E",
        DetachInterfaceRequest {
            name: text("p"),
            id: text("id"),
            namespace: text("n"),
            isolation: Some(isolation),
            labels: map("l", "L"),
            annotations: map("a", "A"),
            extradata: map("e", "E"),
        },
    );
    same(b"", DetachInterfaceResponse {});
}

#[test]
fn query_messages() {
    same(
        b"\x0a\x01p\x12\x02id\x1a\x01n",
        QueryPodNetworkRequest { name: text("p"), id: text("id"), namespace: text("n") },
    );
    same(b"", QueryNodeNetworksRequest {});
    same(
        b"\x0a\x0d\x0a\x01b\x10\x01\x1a\x06\x0a\x01e\x12\x01E\x12\x06\x0a\x01x\x12\x01X",
        QueryNodeNetworksResponse {
            networks: vec![Network { name: text("b"), ready: true, extradata: map("e", "E") }],
            extradata: map("x", "X"),
        },
    );
    same(b"", SetupNodeNetworkRequest {});
    same(b"", SetupNodeNetworkResponse {});
}

#[test]
fn protocol_numbers() {
    assert_eq!([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(i32::from), [0, 1, 2]);
    // An unknown protocol keeps its number and does not become TCP.
    assert_eq!(PortMapping::decode(&b"\x08\x09"[..]).unwrap().protocol, 9);
}

#[test]
fn fields_and_map_entries_are_decoded_in_any_order() {
    // The Go library writes map entries in random order, and omits empty keys and values.
    let request = QueryPodNetworkRequest::decode(&b"\x1a\x01n\x12\x02id\x0a\x01p"[..]).unwrap();
    assert_eq!((request.name.as_str(), request.id.as_str()), ("p", "id"));
    let response =
        CreateNetworkResponse::decode(&b"\x12\x03\x0a\x01b\x12\x06\x12\x01A\x0a\x01a\x12\0"[..]).unwrap();
    let expected = BTreeMap::from([(text("a"), text("A")), (text("b"), text("")), (text(""), text(""))]);
    assert_eq!(response.extradata, expected);
}

#[test]
fn both_generations_of_method_names_exist() {
    let pool = knit_kni::json::pool();
    let service = pool.get_service_by_name("kni.KNI").unwrap();
    let methods: Vec<String> = service
        .methods()
        .map(|method| {
            format!("{} {} {}", method.name(), method.input().full_name(), method.output().full_name())
        })
        .collect();
    for (names, request, response) in [
        (&["CreateNetwork", "CreateIsolationDomain"][..], "CreateNetworkRequest", "CreateNetworkResponse"),
        (&["DeleteNetwork", "DeleteIsolationDomain"], "DeleteNetworkRequest", "DeleteNetworkResponse"),
        (&["AttachNetwork", "AttachInterface"], "AttachInterfaceRequest", "AttachInterfaceResponse"),
        (&["DetachNetwork", "DetachInterface"], "DetachInterfaceRequest", "DetachInterfaceResponse"),
        (&["QueryPodNetwork"], "QueryPodNetworkRequest", "QueryPodNetworkResponse"),
        (&["SetupNodeNetwork"], "SetupNodeNetworkRequest", "SetupNodeNetworkResponse"),
        (&["QueryNodeNetworks"], "QueryNodeNetworksRequest", "QueryNodeNetworksResponse"),
    ] {
        for name in names {
            let line = format!("{name} kni.{request} kni.{response}");
            assert!(methods.contains(&line), "{line} is not one of {methods:#?}");
        }
    }
}
