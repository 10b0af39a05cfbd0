//! A client in another language, on a running agent: Python's own gRPC libraries, and code that Google's protobuf
//! compiler made of the published files.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "support/agent.rs"]
#[allow(dead_code, reason = "shared with the agent's own tests")]
mod support;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use knit_testbed::{Dump, eventually};
use support::Machine;

/// The network that the client hot-plugs an interface of.
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

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_client_in_python_drives_both_packages() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let machine = Machine::new("agent-python");
    let generated = support::folder(&machine.path("generated"));
    let mut compile = python();
    compile.args(["-m", "grpc_tools.protoc", "-I"]).arg(here.join("../../api"));
    for kind in ["--python_out", "--grpc_python_out"] {
        compile.arg(format!("{kind}={}", generated.display()));
    }
    compile.args(["kni/kni.proto", "knit/v1/knit.proto", "knit/v1/node.proto", "knit/v1/extension.proto"]);
    let compiled = compile.args(["knit/v1/pod.proto", "knit/v1/watch.proto"]).output().unwrap();
    assert!(compiled.status.success(), "{}", said(&compiled));

    std::fs::write(support::folder(&machine.path("objects")).join("blue.yaml"), BLUE).unwrap();
    let agent = machine.agent();
    let before = Dump::settled(&machine.host);
    let mut drive = python();
    drive.arg(here.join("tests/python/drive.py")).args([&generated, &agent.socket()]);
    let driven = drive.output().unwrap();
    assert!(driven.status.success(), "{}", said(&driven));
    assert!(said(&driven).ends_with("all done\n"), "{}", said(&driven));
    assert_eq!(agent.used(), 0);
    eventually("the links are reaped", Duration::from_secs(20), || support::ports(&machine.host) == 0);
    before.assert_unchanged(&machine.host);
}
