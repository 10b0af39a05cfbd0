//! What a failing test prints: the state of its namespaces, and how to enter them.

use std::fmt::Write;

use crate::process::Process;
use crate::{Testbed, netns_dir};

/// If set to 1, the namespaces of a failed test are kept.
const KEEP: &str = "KNIT_TESTBED_KEEP";
/// Number of output lines shown per background process.
const OUTPUT_LINES: usize = 20;

/// What is shown of each namespace.
const SHOWN: &[(&str, &[&str])] = &[
    ("links", &["-br", "link"]),
    ("addresses", &["-br", "address"]),
    ("routes, both families", &["route", "show", "table", "all"]),
    ("IPv4 rules", &["-4", "rule"]),
    ("IPv6 rules", &["-6", "rule"]),
];

pub(crate) fn is_kept() -> bool {
    std::env::var_os(KEEP).is_some_and(|value| value == "1")
}

pub(crate) fn state(testbed: &Testbed) -> String {
    let mut text = format!("testbed {}: the state of its namespaces\n", testbed.test());
    for namespace in testbed.namespaces() {
        let _ = writeln!(text, "\n== {}   enter: ip netns exec {} sh", namespace.label(), namespace.name());
        for (title, arguments) in SHOWN {
            let shown = namespace.output("ip", arguments).unwrap_or_else(|error| error.to_string());
            write_block(&mut text, title, shown.lines().filter(|line| !is_noise(line)));
        }
        for process in namespace.background() {
            write_process(&mut text, &process);
        }
    }
    if !is_kept() {
        let _ = write!(text, "\nall of this is deleted now; run the test again with {KEEP}=1 to keep it");
    }
    text
}

/// Every namespace has these routes, and they never explain a failure.
fn is_noise(route: &str) -> bool {
    route.contains(" dev lo ") && route.contains("table local")
}

fn write_block<'a>(text: &mut String, title: &str, lines: impl Iterator<Item = &'a str>) {
    let _ = writeln!(text, " {title}");
    for line in lines {
        let _ = writeln!(text, "   {}", line.trim_end());
    }
}

fn write_process(text: &mut String, process: &Process) {
    let status = process.exit_status().map_or_else(|| "running".to_owned(), |exit| format!("exited: {exit}"));
    let output = process.output();
    let lines: Vec<_> = output.lines().collect();
    let tail = &lines[lines.len().saturating_sub(OUTPUT_LINES)..];
    write_block(text, &format!("process {process} {status}"), tail.iter().copied());
}

pub(crate) fn cleanup_commands(testbed: &Testbed) -> String {
    let mut text = format!("{KEEP}=1: kept. To clean up:\n");
    for namespace in testbed.namespaces() {
        for process in namespace.background().iter().filter(|process| process.is_running()) {
            let _ = writeln!(text, "  kill {}", process.pid());
        }
    }
    for namespace in testbed.namespaces() {
        let _ = writeln!(text, "  ip netns del {}", namespace.name());
    }
    if netns_dir::in_user_namespace() {
        text.push_str(
            "this is a user namespace: everything is deleted with its last process; run as root to keep it longer\n",
        );
    }
    text
}
