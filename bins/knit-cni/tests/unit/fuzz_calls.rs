//! With any environment, standard input and reply of the agent, the plugin prints a valid CNI result or error, sends only
//! validated requests and never panics.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use knit_cni::{AgentTransport, CniError, Version, run};
use knit_kni::v1;
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

const COMMANDS: [&str; 8] = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "NONE"];
const VARIABLES: [&str; 5] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"];

/// An agent that returns the same reply to every call.
struct FakeAgent {
    reply: Option<v1::FramedReply>,
    calls: Vec<v1::FramedCall>,
}

impl AgentTransport for FakeAgent {
    fn call(&mut self, _: &Path, _: Duration, call: v1::FramedCall) -> Result<v1::FramedReply, CniError> {
        self.calls.push(call);
        let unreachable = || CniError { code: 11, message: "unreachable".to_owned(), details: String::new() };
        self.reply.clone().ok_or_else(unreachable)
    }
}

/// Valid and invalid network configurations.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[a-z0-9./:]{0,18}".prop_map(Value::from),
    ];
    let any_value = leaf.prop_recursive(3, 24, 4, |inner| {
        let keys = prop_oneof![
            Just("containerID".to_owned()),
            Just("ifname".to_owned()),
            Just("hostPort".to_owned()),
            Just("protocol".to_owned()),
            Just("cni".to_owned()),
            Just("interfaces".to_owned()),
            Just("ips".to_owned()),
            Just("address".to_owned()),
            Just("name".to_owned()),
            Just("sandbox".to_owned()),
            Just("portMappings".to_owned()),
            Just("bandwidth".to_owned()),
            Just("ingressRate".to_owned()),
            Just("dns".to_owned()),
            Just("ipRanges".to_owned()),
            Just("subnet".to_owned()),
            Just("rangeStart".to_owned()),
            Just("deviceID".to_owned()),
            ".{0,6}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let key = prop_oneof![
        prop::sample::select(vec![
            "cniVersion",
            "name",
            "type",
            "network",
            "interface",
            "mtu",
            "defaultRoute",
            "socket",
            "timeoutSeconds",
            "dns",
            "args",
            "prevResult",
            "runtimeConfig",
            "capabilities",
            "cni.dev/valid-attachments",
        ])
        .prop_map(str::to_owned),
        ".{0,10}",
    ];
    let changed =
        (prop::sample::select(Version::ALL.to_vec()), prop::collection::vec((key, any_value), 0..4))
            .prop_map(|(version, changes)| {
                let mut whole = json!({ "cniVersion": version.as_str(), "name": "n", "type": "knit-cni" });
                for (key, value) in changes {
                    whole[key] = value;
                }
                whole.to_string().into_bytes()
            });
    prop_oneof![
        4 => changed.clone(),
        1 => (changed, any::<prop::sample::Index>()).prop_map(|(mut bytes, at)| {
            bytes.truncate(at.index(bytes.len()));
            bytes
        }),
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

fn environment() -> impl Strategy<Value = BTreeMap<&'static str, OsString>> {
    let value = prop_oneof![
        3 => prop::sample::select(vec!["c1", "eth0", "/run/netns/a", "K8S_POD_NAME=a;IgnoreUnknown=1", ""])
            .prop_map(OsString::from),
        1 => prop::collection::vec(1_u8.., 0..20).prop_map(OsString::from_vec),
        1 => ".{0,20}".prop_map(OsString::from),
    ];
    let command = prop::sample::select(COMMANDS.to_vec());
    (command, prop::collection::vec(value, VARIABLES.len())).prop_map(|(command, values)| {
        let mut all: BTreeMap<&'static str, OsString> = VARIABLES.into_iter().zip(values).collect();
        all.insert("CNI_COMMAND", command.into());
        all
    })
}

fn reply() -> impl Strategy<Value = Option<v1::FramedReply>> {
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    let attached = Just(v1::AttachResponse {
        pod: Some(v1::Pod {
            interfaces: vec![v1::Interface { name: "eth0".to_owned(), ..Default::default() }],
            ..Default::default()
        }),
        ..Default::default()
    });
    prop_oneof![
        Just(None),
        bytes.prop_map(|response| Some(v1::FramedReply { response, ..Default::default() })),
        attached.prop_map(|response| {
            Some(v1::FramedReply { response: response.encode_to_vec(), ..Default::default() })
        }),
        (any::<u32>(), ".{0,10}", any::<bool>(), ".{0,10}").prop_map(|(code, reason, retry, field)| {
            let error = Some(v1::ErrorDetail { reason, retry, field, ..Default::default() });
            Some(v1::FramedReply { code, error, message: "no".to_owned(), ..Default::default() })
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_input_gives_a_valid_result_or_error(
        environment in environment(), input in input(), reply in reply(), started_at in any::<u64>(),
    ) {
        let mut agent = FakeAgent { reply, calls: Vec::new() };
        let outcome = run(|name| environment.get(name).cloned(), Ok(input), started_at, &mut agent);
        if !outcome.success {
            let error: Value = serde_json::from_str(&outcome.output).unwrap();
            prop_assert!(error["code"].as_u64().is_some_and(|code| code > 0), "{}", error);
            prop_assert!(error["msg"].is_string());
            prop_assert!(Version::parse(error["cniVersion"].as_str().unwrap()).is_some());
        } else if !outcome.output.is_empty() {
            let result: Value = serde_json::from_str(&outcome.output).unwrap();
            prop_assert!(result["cniVersion"].is_string());
        }
        prop_assert!(agent.calls.len() <= 1, "one CNI command is at most one call of the agent");
        for call in agent.calls {
            match call.method.as_str() {
                "Attach" => {
                    let request = v1::AttachRequest::decode(call.request.as_slice()).unwrap();
                    let sandbox = request.sandbox.unwrap();
                    prop_assert!(sandbox.id.starts_with(|c: char| c.is_ascii_alphanumeric()));
                    prop_assert!(!sandbox.id.contains('/') && sandbox.id.len() <= 253);
                    prop_assert!((1..=15).contains(&request.interfaces[0].name.len()));
                    prop_assert!(request.group.starts_with("cni:"));
                }
                "Detach" => {
                    let request = v1::DetachRequest::decode(call.request.as_slice()).unwrap();
                    prop_assert_eq!((request.interfaces.len(), request.all), (1, false));
                }
                "CollectGarbage" => {
                    let request = v1::CollectGarbageRequest::decode(call.request.as_slice()).unwrap();
                    prop_assert!(request.group.starts_with("cni:"), "limited to this network configuration");
                }
                method => prop_assert_eq!(method, "GetReadiness"),
            }
        }
    }
}
