//! Knit installed with `deploy/beside` next to the reference network, and commands on nodes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::kubectl::{kubectl, text};

pub const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const OPERATOR_NAMESPACE: &str = "pod-network-operator";

/// Installs Knit once. Tests inspect whole nodes, so only one runs at a time.
pub fn installed() -> MutexGuard<'static, ()> {
    static RUNNING_TEST: Mutex<()> = Mutex::new(());
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let running_test = RUNNING_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    INSTALLED.get_or_init(|| {
        kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/beside")]);
        for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
            kubectl(&["-n", OPERATOR_NAMESPACE, "rollout", "status", what, "--timeout=120s"]);
        }
    });
    running_test
}

/// The state directory of the cluster under test.
pub fn folder() -> PathBuf {
    let kubeconfig = std::env::var("KUBECONFIG").expect("KUBECONFIG names the cluster");
    PathBuf::from(kubeconfig).parent().expect("the kubeconfig is in the cluster's directory").to_owned()
}

/// The name of the cluster under test.
pub fn cluster() -> String {
    folder().file_name().unwrap().to_str().unwrap().to_owned()
}

/// Runs `cargo xtask cluster`; returns its output.
pub fn testcluster(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_knit-testcluster")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command in the namespaces of a node; returns its output.
pub fn on_node(node: &str, args: &[&str]) -> String {
    testcluster(&[&["shell", node, "--name", &cluster(), "--"], args].concat())
}

/// The node state that Knit must not change: main routing tables, rules, links of the node and of the main CNI plugin, nftables.
fn foreign_state(nodes: &[&str]) -> String {
    let mut all = String::new();
    for node in nodes {
        for args in [
            &["ip", "route", "show", "table", "main"][..],
            &["ip", "-6", "route", "show", "table", "main"],
            &["ip", "rule"],
            &["ip", "-6", "rule"],
            &["ip", "-o", "-d", "link", "show", "dev", "eth0"],
            &["ip", "-o", "-d", "link", "show", "dev", "cni0"],
            &["ip", "-o", "addr", "show", "dev", "eth0"],
            &["ip", "-o", "addr", "show", "dev", "cni0"],
            &["nft", "--stateless", "list", "ruleset"],
        ] {
            all.push_str(&format!("# {node}: {}\n", args.join(" ")));
            // Rules of Knit change; rules for IPv6 links follow the pods of the main CNI plugin.
            let is_foreign = |line: &&str| !line.contains("lookup 7500") && !line.contains("fe80::/64");
            let text = without_own_tables(&on_node(node, args));
            all.extend(
                text.lines().filter(is_foreign).map(|line| format!("{}\n", without_volatile_fields(line))),
            );
        }
    }
    all
}

/// A listing of nftables without Knit's own tables.
fn without_own_tables(ruleset: &str) -> String {
    let mut is_own = false;
    let mut kept = String::new();
    for line in ruleset.lines() {
        is_own |= line.starts_with("table ") && line.contains(" knit {");
        if !is_own {
            kept.push_str(line);
            kept.push('\n');
        }
        is_own &= line != "}";
    }
    kept
}

/// The state that Knit must not change, once it is stable: pods and Services of earlier tests may still be terminating.
pub fn stable_foreign_state(nodes: &[&str]) -> String {
    let mut seen = foreign_state(nodes);
    let is_same = || {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut seen, foreign_state(nodes));
        before == seen
    };
    eventually("foreign state is stable", is_same, |same| *same);
    seen
}

/// Asserts that foreign state is unchanged, or will be in a moment: other pods may be terminating.
pub fn assert_foreign_state(before: &str, nodes: &[&str]) {
    eventually("foreign state is unchanged", || foreign_state(nodes), |now| now == before);
}

/// A line without volatile fields: bridge timers, lifetimes, and the carrier of a bridge without ports.
fn without_volatile_fields(line: &str) -> String {
    let volatile = ["hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "expires", "state"];
    let mut kept = Vec::new();
    let mut skip = false;
    for word in line.split_whitespace() {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = volatile.contains(&word);
        // Flags are between `<` and `>`; carrier is one of them.
        let is_carrier = word == "linkdown" || word.starts_with('<') && line.contains(" cni0: ");
        if !skip && !is_carrier {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// Waits until a condition holds; panics with the last observed value after two minutes.
pub fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut observe: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let seen = observe();
        if holds(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "{what}: {seen:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Schedules pods on this node only, until dropped.
pub struct OnlyNode<'a>(Vec<&'a str>);

impl<'a> OnlyNode<'a> {
    pub fn on(node: &str, nodes: &[&'a str]) -> Self {
        let others: Vec<&str> = nodes.iter().copied().filter(|other| *other != node).collect();
        for other in &others {
            kubectl(&["cordon", other]);
        }
        Self(others)
    }
}

impl Drop for OnlyNode<'_> {
    fn drop(&mut self) {
        for node in &self.0 {
            super::kubectl::run(&["uncordon", node]);
        }
    }
}
