//! kubectl against the cluster that `cargo xtask test cluster` brought up.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A namespace of the test's own; it goes when the test ends, also when it fails.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(purpose: &str) -> Self {
        let namespace = Self { name: format!("{purpose}-{}", std::process::id()) };
        kubectl(&["create", "namespace", &namespace.name]);
        // Pods are refused until it is there.
        namespace.kubectl(&["wait", "--for=create", "serviceaccount/default", "--timeout=60s"]);
        namespace
    }

    pub fn kubectl(&self, words: &[&str]) -> String {
        kubectl(&[&["-n", &self.name], words].concat())
    }

    pub fn apply(&self, manifest: &str) {
        let (accepted, said) = self.try_apply(manifest);
        assert!(accepted, "kubectl apply of\n{manifest}\n{said}");
    }

    /// Applies a manifest and returns what kubectl says, good or bad.
    pub fn try_apply(&self, manifest: &str) -> (bool, String) {
        self.feed(&["apply", "-f", "-"], manifest)
    }

    /// Runs kubectl with this on its standard input.
    pub fn feed(&self, words: &[&str], input: &str) -> (bool, String) {
        feed(&[&["-n", &self.name], words].concat(), input)
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

/// How often kubectl is run while the API server does not answer.
const TRIES: u32 = 3;

/// Whether it was the way to the API server, or its store, that failed: a busy machine keeps both waiting at times.
fn is_unanswered(said: &str) -> bool {
    let words = ["TLS handshake timeout", "i/o timeout", "connection refused", "etcdserver"];
    words.iter().any(|words| said.contains(words))
}

/// Runs kubectl with this on its standard input, and returns what it says, good or bad.
pub fn feed(words: &[&str], input: &str) -> (bool, String) {
    let mut answer = feed_once(words, input);
    for _ in 1..TRIES {
        if answer.0 || !is_unanswered(&answer.1) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        answer = feed_once(words, input);
    }
    answer
}

fn feed_once(words: &[&str], input: &str) -> (bool, String) {
    let mut child = command(words);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // kubectl answers while it still reads: what it says must not wait for the end of what it is told.
        scope.spawn(move || std::io::Write::write_all(&mut stdin, input.as_bytes()).unwrap());
        child.wait_with_output().unwrap()
    });
    (output.status.success(), text(&output))
}

/// The definitions of the kinds, and waits until the API server serves them.
pub fn install_kinds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
    kubectl(&["apply", "--server-side", "--force-conflicts", "-f", folder]);
    kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", folder]);
}

pub fn run(words: &[&str]) -> Output {
    command(words).stdin(Stdio::null()).output().unwrap()
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn kubectl(words: &[&str]) -> String {
    let mut output = run(words);
    for _ in 1..TRIES {
        if output.status.success() || !is_unanswered(&text(&output)) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        output = run(words);
    }
    assert!(output.status.success(), "kubectl {}: {}", words.join(" "), text(&output));
    String::from_utf8(output.stdout).unwrap()
}
