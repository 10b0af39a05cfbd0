//! kubectl for the cluster that `cargo xtask test cluster` started.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A namespace for one test, deleted when the test ends.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(purpose: &str) -> Self {
        let namespace = Self { name: format!("{purpose}-{}", std::process::id()) };
        kubectl(&["create", "namespace", &namespace.name]);
        // Pods are rejected until it exists.
        namespace.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]);
        namespace
    }

    pub fn kubectl(&self, args: &[&str]) -> String {
        kubectl(&[&["-n", &self.name], args].concat())
    }

    pub fn apply(&self, manifest: &str) {
        let (accepted, output) = self.try_apply(manifest);
        assert!(accepted, "kubectl apply of\n{manifest}\n{output}");
    }

    /// Applies a manifest; returns whether it was accepted, and kubectl's output.
    pub fn try_apply(&self, manifest: &str) -> (bool, String) {
        self.feed(&["apply", "-f", "-"], manifest)
    }

    /// Runs kubectl with this standard input.
    pub fn feed(&self, args: &[&str], input: &str) -> (bool, String) {
        feed(&[&["-n", &self.name], args].concat(), input)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let show = |args: &[&str]| run(&[&["-n", &self.name], args].concat());
            eprintln!("{}", text(&show(&["get", "pods,services,endpointslices", "-o", "wide"])));
            eprintln!("{}", text(&show(&["get", "events", "--sort-by=.lastTimestamp"])));
        }
        run(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

pub fn command(args: &[&str]) -> Command {
    let kubectl = std::env::var("KNIT_TEST_KUBECTL");
    let kubectl =
        kubectl.expect("KNIT_TEST_KUBECTL and KUBECONFIG name the cluster: run `cargo xtask test cluster`");
    let mut command = Command::new(kubectl);
    command.args(args);
    command
}

/// How often kubectl is run while the API server does not answer.
const TRIES: u32 = 3;

/// Whether the connection to the API server or etcd failed, which happens on a busy machine.
fn is_unanswered(output: &str) -> bool {
    let errors = ["TLS handshake timeout", "i/o timeout", "connection refused", "etcdserver"];
    errors.iter().any(|error| output.contains(error))
}

/// Runs kubectl with this standard input; returns whether it succeeded, and its output.
pub fn feed(args: &[&str], input: &str) -> (bool, String) {
    let mut answer = feed_once(args, input);
    for _ in 1..TRIES {
        if answer.0 || !is_unanswered(&answer.1) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        answer = feed_once(args, input);
    }
    answer
}

fn feed_once(args: &[&str], input: &str) -> (bool, String) {
    let mut child = command(args);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // kubectl writes while it still reads: its output must be consumed before all input is written.
        scope.spawn(move || std::io::Write::write_all(&mut stdin, input.as_bytes()).unwrap());
        child.wait_with_output().unwrap()
    });
    (output.status.success(), text(&output))
}

/// Installs the CRDs and waits until the API server serves them.
pub fn install_kinds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
    kubectl(&["apply", "--server-side", "--force-conflicts", "-f", folder]);
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", folder]);
}

pub fn run(args: &[&str]) -> Output {
    command(args).stdin(Stdio::null()).output().unwrap()
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn kubectl(args: &[&str]) -> String {
    let mut output = run(args);
    for _ in 1..TRIES {
        if output.status.success() || !is_unanswered(&text(&output)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        output = run(args);
    }
    assert!(output.status.success(), "kubectl {}: {}", args.join(" "), text(&output));
    String::from_utf8(output.stdout).unwrap()
}
