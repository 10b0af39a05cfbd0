//! A kind that the kernel was built without is said in words, with the option that is missing. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use knit_testbed::Testbed;
use serde_json::Value;

/// Kinds, what a spec of each needs, and the kernel's option for it.
const KINDS: &[(&str, &str, &str)] = &[
    ("Vlan", "parent: lo\n  id: 100", "CONFIG_VLAN_8021Q"),
    ("Ipvlan", "parent: lo", "CONFIG_IPVLAN"),
    ("Vrf", "table: 1010", "CONFIG_NET_VRF"),
    ("Dummy", "alias: of a test", "CONFIG_DUMMY"),
];

#[test]
fn a_kind_that_the_kernel_lacks_is_said_with_its_option() {
    let testbed = Testbed::new("lacks");
    let (host, pod) = (testbed.host(), testbed.pod("web"));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let knit = |arguments: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(arguments).env("KNIT_STATE_DIR", &state).output().unwrap()
    };
    let pid = pod.pid().to_string();
    assert!(knit(&["sandbox", "add", "web", "--pid", &pid, "-l", "app=web"]).status.success());
    let present: Vec<&str> = knit_kernel::features::detect()
        .into_iter()
        .filter(|feature| feature.state.is_present())
        .map(|feature| feature.config)
        .collect();
    for (kind, spec, config) in KINDS {
        let file = folder.path().join("object.yaml");
        let text = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: {kind}\nmetadata:\n  name: x\n\
             spec:\n  selector: {{ matchLabels: {{ app: web }} }}\n  interfaceName: x0\n  {spec}\n"
        );
        std::fs::write(&file, text).unwrap();
        let said = knit(&["apply", "-f", file.to_str().unwrap()]);
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        let object: Value =
            serde_json::from_slice(&knit(&["get", &kind.to_lowercase(), "x", "-o", "json"]).stdout).unwrap();
        let condition =
            object.pointer("/status/conditions/0").or(object.pointer("/items/0/status/conditions/0"));
        let reason = condition.unwrap()["reason"].as_str().unwrap();
        if present.contains(config) {
            assert_ne!(reason, "KernelLacks", "{words}");
        } else {
            assert_eq!(reason, "KernelLacks", "{words}");
            let name = kind.to_lowercase();
            assert!(words.contains(&format!("this kernel has no {name}: {config}")), "{words}");
        }
        assert!(knit(&["delete", "-f", file.to_str().unwrap()]).status.success());
    }
    assert!(knit(&["sandbox", "delete", "web"]).status.success());
}
