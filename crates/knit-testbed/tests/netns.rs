//! Testbeds on the real kernel: what they make works, and what they make goes.

use std::process::{Command, Output};

use knit_testbed::{Namespace, Testbed};

#[path = "netns/dump.rs"]
mod dump;
#[path = "netns/failure.rs"]
mod failure;
#[path = "netns/leftovers.rs"]
mod leftovers;
#[path = "netns/topology.rs"]
mod topology;

/// Two namespaces, connected, with addresses of both families.
fn pair(testbed: &Testbed) -> (Namespace, Namespace) {
    let (a, b) = (testbed.namespace("a"), testbed.namespace("b"));
    testbed.connect(&a, "eth0", &b, "eth0");
    for (namespace, number) in [(&a, 1), (&b, 2)] {
        namespace.address("eth0", &format!("10.0.0.{number}/24"));
        namespace.address("eth0", &format!("fd00::{number}/64"));
    }
    (a, b)
}

/// The message of a panic.
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().expect("a panic has a text")).to_owned(),
    }
}

/// Runs one test of this file once more, as a child, with an environment variable that makes it misbehave.
fn run_as_child(wrapper: &[&str], test: &str, environment: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().expect("a program knows its own file");
    let mut words = wrapper.iter().map(AsRef::as_ref).chain([own.as_os_str()]);
    let mut command = Command::new(words.next().expect("there is at least our own file"));
    command.args(words).args(["--exact", test, "--nocapture"]).env_remove("KNIT_TESTBED_KEEP");
    command.env(CHILD, "1").envs(environment.iter().copied()).output().expect("the child starts")
}

const CHILD: &str = "KNIT_TESTBED_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Alive and not a zombie: a process whose parent is gone stays one until the init process reaps it.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
