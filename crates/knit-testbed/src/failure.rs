//! What a failing test shows: the state of its world, and how to look inside.

use std::fmt::Write;

use crate::process::Process;
use crate::{Testbed, place};

/// With this set to 1 a failed test's world stays.
const KEEP: &str = "KNIT_TESTBED_KEEP";
/// How much of a background process's output is shown.
const TAIL: usize = 20;

/// What is shown of each namespace.
const LOOKS: &[(&str, &[&str])] = &[
    ("links", &["-br", "link"]),
    ("addresses", &["-br", "address"]),
    ("routes, both families", &["route", "show", "table", "all"]),
    ("IPv4 rules", &["-4", "rule"]),
    ("IPv6 rules", &["-6", "rule"]),
];

pub(crate) fn keep() -> bool {
    std::env::var_os(KEEP).is_some_and(|value| value == "1")
}

pub(crate) fn state(testbed: &Testbed) -> String {
    let mut text = format!("testbed {}: the state of its namespaces\n", testbed.test());
    for namespace in testbed.namespaces() {
        let _ =
            writeln!(text, "\n== {}   look inside: ip netns exec {} sh", namespace.label(), namespace.name());
        for (title, arguments) in LOOKS {
            let shown = namespace.output("ip", arguments).unwrap_or_else(|error| error.to_string());
            write_block(&mut text, title, shown.lines().filter(|line| !is_noise(line)));
        }
        for process in namespace.background() {
            write_process(&mut text, &process);
        }
    }
    if !keep() {
        let _ = write!(text, "\nall of this goes now; run the test again with {KEEP}=1 to keep it");
    }
    text
}

/// Every namespace has these, and they never explain a failure.
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
    let fate = process.exit_status().map_or_else(|| "runs".to_owned(), |status| format!("ended: {status}"));
    let output = process.output();
    let lines: Vec<_> = output.lines().collect();
    let tail = &lines[lines.len().saturating_sub(TAIL)..];
    write_block(text, &format!("process {process} {fate}"), tail.iter().copied());
}

pub(crate) fn how_to_remove(testbed: &Testbed) -> String {
    let mut text = format!("{KEEP}=1: kept. When you are done:\n");
    for namespace in testbed.namespaces() {
        for process in namespace.background().iter().filter(|process| process.is_running()) {
            let _ = writeln!(text, "  kill {}", process.pid());
        }
    }
    for namespace in testbed.namespaces() {
        let _ = writeln!(text, "  ip netns del {}", namespace.name());
    }
    if place::in_user_namespace() {
        text.push_str(
            "this is a user namespace: all of it goes with its last process; run as root to keep it longer\n",
        );
    }
    text
}
