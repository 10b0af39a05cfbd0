//! A kind without kernel support is reported with the missing kernel option and does not
//! affect other kinds.

use knit_testbed::{Dump, Testbed};
use serde_json::Value;

/// Kinds, their specs, the name of the feature and the kernel option.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("Vlan", "parent: net1\n  id: 100", "vlan", "CONFIG_VLAN_8021Q"),
    ("Ipvlan", "parent: net1", "ipvlan", "CONFIG_IPVLAN"),
    ("Vrf", "table: 1010", "vrf", "CONFIG_NET_VRF"),
    ("Dummy", "alias: of a test", "dummy", "CONFIG_DUMMY"),
    ("WireGuard", "alias: of a test", "wireguard", "CONFIG_WIREGUARD"),
    ("Geneve", "vni: 42\n  remote: 192.0.2.2", "geneve", "CONFIG_GENEVE"),
    ("Gre", "remote: 192.0.2.2", "gre", "CONFIG_NET_IPGRE"),
    ("IpTunnel", "mode: sit\n  remote: 192.0.2.2", "sit", "CONFIG_IPV6_SIT"),
];

/// Two objects for one pod: the kind, and a kind that every kernel supports.
fn objects(kind: &str, spec: &str) -> String {
    let object = |kind: &str, spec: &str| {
        format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: {kind}\nmetadata:\n  name: x\n\
             spec:\n  selector: {{ matchLabels: {{ app: web }} }}\n  {spec}\n"
        )
    };
    let beside = object("Veth", "interfaceName: net1\n  master: br0\n  cidr: 10.80.0.0/24");
    format!("{}---\n{beside}", object(kind, &format!("interfaceName: x0\n  {spec}")))
}

#[test]
fn a_kind_without_kernel_support_is_reported_and_others_work() {
    let testbed = Testbed::new("lacks");
    let (host, pod) = (testbed.host(), testbed.pod("web"));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let knit = |arguments: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(arguments).env("KNIT_STATE_DIR", &state).output().unwrap()
    };
    let reason = |kind: &str| -> String {
        let printed = knit(&["get", &kind.to_lowercase(), "x", "-o", "json"]).stdout;
        let object: Value = serde_json::from_slice(&printed).unwrap();
        let object = object.pointer("/items/0").unwrap_or(&object);
        object.pointer("/status/conditions/0/reason").unwrap().as_str().unwrap().to_owned()
    };
    let present: Vec<&str> = knit_kernel::features::detect()
        .into_iter()
        .filter(|feature| feature.state.is_present())
        .map(|feature| feature.config)
        .collect();
    let file = folder.path().join("objects.yaml");
    let before = Dump::settled(pod.namespace());
    for (kind, spec, feature, config) in KINDS {
        std::fs::write(&file, objects(kind, spec)).unwrap();
        assert!(
            knit(&["sandbox", "add", "web", "--pid", &pod.pid().to_string(), "-l", "app=web"])
                .status
                .success()
        );
        let printed = knit(&["apply", "-f", file.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&printed.stderr).into_owned();
        if present.contains(config) {
            assert_ne!(reason(kind), "KernelUnsupported", "{message}");
        } else {
            assert_eq!(reason(kind), "KernelUnsupported", "{message}");
            assert!(message.contains(&format!("this kernel has no {feature}: {config}")), "{message}");
        }
        pod.namespace().ping("10.80.0.1").unwrap();
        assert_eq!(reason("Veth"), "Configured", "{message}");
        assert!(knit(&["delete", "-f", file.to_str().unwrap()]).status.success());
        assert!(knit(&["sandbox", "delete", "web"]).status.success());
        before.assert_unchanged(pod.namespace());
    }
}
