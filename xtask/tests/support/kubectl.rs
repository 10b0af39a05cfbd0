//! kubectl against the cluster that `cargo xtask test cluster` brought up.

use std::process::{Command, Output, Stdio};

/// A namespace of the test's own; it goes when the test ends, also when it fails.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(purpose: &str) -> Self {
        let name = format!("{purpose}-{}", std::process::id());
        kubectl(&["create", "namespace", &name]);
        Self { name }
    }

    pub fn kubectl(&self, words: &[&str]) -> String {
        kubectl(&[&["-n", &self.name], words].concat())
    }

    pub fn apply(&self, manifest: &str) {
        let mut child =
            command(&["-n", &self.name, "apply", "-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), manifest.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl apply of\n{manifest}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let show = |words: &[&str]| run(&[&["-n", &self.name], words].concat());
            eprintln!("{}", text(&show(&["get", "pods,services,endpointslices", "-o", "wide"])));
            eprintln!("{}", text(&show(&["get", "events", "--sort-by=.lastTimestamp"])));
        }
        run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

pub fn command(words: &[&str]) -> Command {
    let kubectl = std::env::var("KNIT_TEST_KUBECTL");
    let kubectl =
        kubectl.expect("KNIT_TEST_KUBECTL and KUBECONFIG name the cluster: run `cargo xtask test cluster`");
    let mut command = Command::new(kubectl);
    command.args(words);
    command
}

pub fn run(words: &[&str]) -> Output {
    command(words).stdin(Stdio::null()).output().unwrap()
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn kubectl(words: &[&str]) -> String {
    let output = run(words);
    assert!(output.status.success(), "kubectl {}: {}", words.join(" "), text(&output));
    String::from_utf8(output.stdout).unwrap()
}
