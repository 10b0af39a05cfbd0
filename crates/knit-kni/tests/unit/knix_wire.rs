//! Wire format of the extension services of package `kni`: bytes derived from the public proof of concept, which fail on
//! any change of a field number, a type or a name.

use std::collections::BTreeMap;
use std::fmt::Debug;

use knit_kni::kni::{
    DeregisterPluginRequest, DeregisterPluginResponse, IpConfig, ListPluginsRequest, ListPluginsResponse,
    PostAttachInterfaceRequest, PostAttachInterfaceResponse, RegisterPluginRequest, RegisterPluginResponse,
};
use prost::Message;

/// The bytes and the message are equivalent in both directions.
fn same<M: Message + Default + PartialEq + Debug>(bytes: &[u8], message: M) {
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    assert_eq!(M::decode(bytes).unwrap(), message);
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_owned(), value.to_owned())])
}

#[test]
fn post_attach_messages() {
    let config =
        IpConfig { ip: vec!["4".to_owned(), "6".to_owned()], mac: "m".to_owned(), extradata: map("e", "E") };
    let configs = BTreeMap::from([("eth0".to_owned(), config)]);
    same(
        b"\x0a\x01p\x12\x01u\x1a\x01n\x2a\x06\x0a\x01l\x12\x01L\x32\x06\x0a\x01a\x12\x01A\x3a\x06\x0a\x01x\x12\x01X\
          \x42\x19\x0a\x04eth0\x12\x11\x0a\x014\x0a\x016\x12\x01m\x1a\x06\x0a\x01e\x12\x01E\x4a\x03/ns",
        PostAttachInterfaceRequest {
            name: "p".to_owned(),
            uid: "u".to_owned(),
            namespace: "n".to_owned(),
            labels: map("l", "L"),
            annotations: map("a", "A"),
            extradata: map("x", "X"),
            prev_ipconfigs: configs.clone(),
            netns_path: "/ns".to_owned(),
        },
    );
    same(
        b"\x0a\x19\x0a\x04eth0\x12\x11\x0a\x014\x0a\x016\x12\x01m\x1a\x06\x0a\x01e\x12\x01E\x12\x06\x0a\x01x\x12\x01X",
        PostAttachInterfaceResponse { ipconfigs: configs, extradata: map("x", "X") },
    );
}

#[test]
fn plugin_manager_messages_are_empty() {
    same(b"", RegisterPluginRequest {});
    same(b"", RegisterPluginResponse {});
    same(b"", DeregisterPluginRequest {});
    same(b"", DeregisterPluginResponse {});
    same(b"", ListPluginsRequest {});
    same(b"", ListPluginsResponse {});
    // Fields of newer clients are ignored.
    assert_eq!(RegisterPluginRequest::decode(&b"\x0a\x01p"[..]).unwrap(), RegisterPluginRequest {});
}

#[test]
fn service_and_method_names() {
    let pool = knit_kni::json::pool();
    for (service, methods) in [
        ("kni.KNIX", &["PostAttachInterface"][..]),
        ("kni.KNIXPluginManager", &["RegisterPlugin", "DeregisterPlugin", "ListPlugins"]),
        ("knit.v1.ExtensionRegistry", &["Register", "Deregister", "List", "Get"]),
        ("knit.v1.Extension", &["BeforeAttach", "AfterAttach", "AfterDetach"]),
    ] {
        let found = pool.get_service_by_name(service).unwrap();
        let names: Vec<String> = found.methods().map(|method| method.name().to_owned()).collect();
        assert_eq!(names, methods, "{service}");
    }
}
