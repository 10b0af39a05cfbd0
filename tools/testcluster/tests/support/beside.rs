//! Knit beside the reference network: installed once, and nodes to look at.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::kubectl::{kubectl, text};

pub const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const OPERATOR: &str = "pod-network-operator";

/// Tests of one cluster look at whole nodes, so one works at a time.
pub fn installed() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    INSTALLED.get_or_init(|| {
        kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/beside")]);
        for what in ["daemonset/knit-agent", "deployment/knit-controller"] {
            kubectl(&["-n", OPERATOR, "rollout", "status", what, "--timeout=120s"]);
        }
    });
    turn
}

/// The folder of the cluster under test.
pub fn folder() -> PathBuf {
    let kubeconfig = std::env::var("KUBECONFIG").expect("KUBECONFIG names the cluster");
    PathBuf::from(kubeconfig).parent().expect("a kubeconfig is in the cluster's folder").to_owned()
}

/// The name of the cluster under test.
pub fn cluster() -> String {
    folder().file_name().unwrap().to_str().unwrap().to_owned()
}

/// What `cargo xtask cluster` prints.
pub fn testcluster(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_knit-testcluster")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What a command prints in the namespaces of a node.
pub fn on_node(node: &str, words: &[&str]) -> String {
    testcluster(&[&["shell", node, "--name", &cluster(), "--"], words].concat())
}

/// What others own on the nodes: main routing tables, rules, links of the node and of the main CNI plugin, packet filters.
fn of_others(nodes: &[&str]) -> String {
    let mut all = String::new();
    for node in nodes {
        for words in [
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
            all.push_str(&format!("# {node}: {}\n", words.join(" ")));
            // Knit's own rules come and go; those of IPv6 links follow the pods of the main CNI plugin.
            let mine = |line: &&str| !line.contains("lookup 7500") && !line.contains("fe80::/64");
            let text = on_node(node, words);
            all.extend(text.lines().filter(mine).map(|line| format!("{}\n", steady(line))));
        }
    }
    all
}

/// What others own once it has come to rest: pods and Services of tests before go a moment later.
pub fn others_at_rest(nodes: &[&str]) -> String {
    let mut seen = of_others(nodes);
    let is_same = || {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut seen, of_others(nodes));
        before == seen
    };
    eventually("what others own has come to rest", is_same, |same| *same);
    seen
}

/// Asserts that what others own on the nodes is as it was, or will be in a moment: their pods come and go, too.
pub fn assert_others_have(before: &str, nodes: &[&str]) {
    eventually("what others own is as before", || of_others(nodes), |now| now == before);
}

/// A line without what changes by itself: timers of a bridge, lifetimes, and whether a bridge without ports is up.
fn steady(line: &str) -> String {
    let changing = ["hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "expires", "state"];
    let mut words = Vec::new();
    let mut skip = false;
    for word in line.split_whitespace() {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = changing.contains(&word);
        // Between `<` and `>` are flags, of which carrier is one.
        let is_carrier = word == "linkdown" || word.starts_with('<') && line.contains(" cni0: ");
        if !skip && !is_carrier {
            words.push(word);
        }
    }
    words.join(" ")
}

/// Waits until a condition holds; says what was seen last when it does not.
pub fn eventually<T: std::fmt::Debug>(
    what: &str,
    mut look: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let seen = look();
        if holds(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "{what}: {seen:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Pods go to this node only, until the guard goes.
pub struct Only<'a>(Vec<&'a str>);

impl<'a> Only<'a> {
    pub fn on(node: &str, nodes: &[&'a str]) -> Self {
        let others: Vec<&str> = nodes.iter().copied().filter(|other| *other != node).collect();
        for other in &others {
            kubectl(&["cordon", other]);
        }
        Self(others)
    }
}

impl Drop for Only<'_> {
    fn drop(&mut self) {
        for node in &self.0 {
            super::kubectl::run(&["uncordon", node]);
        }
    }
}
