//! A Python client with code that protoc generates from the published
//! files.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::agent::Machine;
use knit_testbed::{Dump, eventually};

/// The network of the hot-plugged interface.
const BLUE: &str = "\
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata:
  name: blue
  namespace: default
spec:
  subnets: [172.31.7.0/24]
";

fn python() -> Command {
    let python = std::env::var_os("KNIT_TEST_PYTHON");
    Command::new(python.expect("KNIT_TEST_PYTHON is set by `cargo xtask test netns`, which installs it"))
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_python_client_uses_both_packages() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let machine = Machine::new("agent-python");
    let generated = crate::support::agent::folder(&machine.path("generated"));
    let mut compile = python();
    compile.args(["-m", "grpc_tools.protoc", "-I"]).arg(here.join("../../api"));
    for kind in ["--python_out", "--grpc_python_out"] {
        compile.arg(format!("{kind}={}", generated.display()));
    }
    compile.args(["kni/kni.proto", "knit/v1/knit.proto", "knit/v1/node.proto", "knit/v1/extension.proto"]);
    let compiled =
        compile.args(["knit/v1/pod.proto", "knit/v1/policy.proto", "knit/v1/watch.proto"]).output().unwrap();
    assert!(compiled.status.success(), "{}", output_text(&compiled));

    std::fs::write(crate::support::agent::folder(&machine.path("objects")).join("blue.yaml"), BLUE).unwrap();
    let agent = machine.agent();
    let before = Dump::settled(&machine.host);
    let mut drive = python();
    drive.arg(here.join("tests/netns/python/drive.py")).args([&generated, &agent.socket()]);
    let driven = drive.output().unwrap();
    assert!(driven.status.success(), "{}", output_text(&driven));
    assert!(output_text(&driven).ends_with("all done\n"), "{}", output_text(&driven));
    assert_eq!(agent.used_addresses(), 0);
    eventually("the links are deleted", Duration::from_secs(20), || {
        crate::support::agent::ports(&machine.host) == 0
    });
    before.assert_unchanged(&machine.host);
}
