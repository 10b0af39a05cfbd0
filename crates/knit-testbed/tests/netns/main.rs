//! Testbeds on the real kernel: what they build works, and everything is deleted.

use std::process::{Command, Output};

use knit_testbed::{Namespace, Testbed};

mod confinement;
mod dump;
mod failure;
mod leftovers;
mod topology;

/// Two connected namespaces with addresses of both families.
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
        Err(panic) => (*panic.downcast::<&str>().expect("a panic has a message")).to_owned(),
    }
}

/// Runs one test again as a child process, with an environment variable that makes it misbehave.
fn run_as_child(wrapper: &[&str], test: &str, environment: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().expect("the path of this executable is known");
    let mut words = wrapper.iter().map(AsRef::as_ref).chain([own.as_os_str()]);
    let mut command = Command::new(words.next().expect("the command has at least this executable"));
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

/// Running and not a zombie: an orphan stays a zombie until the init process reaps it.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
