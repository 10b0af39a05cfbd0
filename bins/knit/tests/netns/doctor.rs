//! `knit doctor` on the real kernel.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

/// Features besides link kinds that are always in the report, whether the kernel has them or not.
const FEATURES: &[&str] = &[
    "netns",
    "netns-cookie",
    "pidfd",
    "user-namespaces",
    "bridge-vlan-filtering",
    "alternative-names",
    "ifb",
    "addresses",
    "ipv6",
    "address-protocol",
    "srv6",
    "mpls",
    "nftables-inet",
    "nftables-bridge",
    "nftables-netdev",
    "nftables-owner",
    "tbf",
    "htb",
    "fq",
    "netem",
    "clsact",
    "bpf",
    "bpffs",
    "btf",
];

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_knit")).arg("doctor").args(arguments).output().unwrap()
}

fn features(json: &Value) -> &Vec<Value> {
    json["features"].as_array().unwrap()
}

#[test]
fn json_has_every_feature_with_its_state() {
    let output = doctor(&["-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["privileges"], "root", "run this test as root");
    assert_eq!(json["required_present"], true);
    let kinds = knit_model::Kind::names().filter(|name| *name != "host-device");
    for name in FEATURES.iter().copied().chain(kinds) {
        let feature = features(&json).iter().find(|feature| feature["name"] == *name);
        let feature = feature.unwrap_or_else(|| panic!("{name} is missing"));
        match feature["state"].as_str().unwrap() {
            "present" => {}
            "absent" => assert!(feature["reason"].is_string() && feature["hint"].is_string(), "{feature}"),
            other => panic!("root can check everything, but {name} is {other}: {feature}"),
        }
    }
}

#[test]
fn text_has_a_row_per_feature() {
    let json: Value = serde_json::from_slice(&doctor(&["-o", "json"]).stdout).unwrap();
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    for feature in features(&json) {
        let name = feature["name"].as_str().unwrap();
        let rows = text.lines().filter(|line| line.split_whitespace().nth(1) == Some(name));
        let rows = rows.filter(|line| line.starts_with("  yes ") || line.starts_with("  no ")).count();
        assert_eq!(rows, 1, "{name} in\n{text}");
    }
    assert!(text.trim_end().ends_with("All required features are available"));
}

#[test]
fn without_root_features_are_checked_in_a_user_namespace_or_unknown() {
    // Other users may not be able to read the build directory.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.path().join("knit");
    std::fs::copy(env!("CARGO_BIN_EXE_knit"), &binary).unwrap();
    let nobody = 65534;
    let output =
        Command::new(&binary).args(["doctor", "-o", "json"]).uid(nobody).gid(nobody).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    match json["privileges"].as_str().unwrap() {
        "user-namespace" => {
            assert_eq!(output.status.code(), Some(0), "{json}");
            let veth = features(&json).iter().find(|feature| feature["name"] == "veth").unwrap();
            assert_eq!(veth["state"], "present");
        }
        "none" => {
            assert_eq!(output.status.code(), Some(1), "{json}");
            let veth = features(&json).iter().find(|feature| feature["name"] == "veth").unwrap();
            assert_eq!(veth["state"], "unknown");
            assert!(veth["hint"].as_str().unwrap().contains("root"), "{veth}");
        }
        other => panic!("unexpected privileges {other}"),
    }
}
