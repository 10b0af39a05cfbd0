//! What a failing test prints.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::time::Duration;

use knit_testbed::{Testbed, eventually};

use crate::{is_child, is_running, message, pair, run_as_child, text};

#[test]
fn panic_inside_resumes_outside_with_its_message() {
    let testbed = Testbed::new("panic");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.run(|| panic!("bridge is down")))).unwrap_err();
    assert_eq!(message(panic), "bridge is down");
}

#[test]
fn error_of_a_failing_tool_is_shown() {
    let testbed = Testbed::new("quoted");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.ip(&["link", "set", "nosuch0", "up"]))).unwrap_err();
    let message = message(panic);
    assert!(message.contains("`ip link set nosuch0 up` failed"), "{message}");
    assert!(message.contains("nosuch0\""), "without the tool's error: {message}");
}

#[test]
fn failing_test_prints_the_commands_to_enter_its_namespaces() {
    if is_child() {
        let testbed = Testbed::new("shown");
        let (a, _b) = pair(&testbed);
        let shell = a.spawn(a.command("sh").args(["-c", "echo marker line; exec sleep 1000"]));
        eventually("it prints", Duration::from_secs(10), || !shell.output().is_empty());
        panic!("on purpose");
    }
    let output = run_as_child(&[], "failure::failing_test_prints_the_commands_to_enter_its_namespaces", &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("enter: ip netns exec knit-shown-"), "{text}");
    for part in ["10.0.0.1/24", "fd00::1/64", "table local", "marker line", "KNIT_TESTBED_KEEP=1"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn failing_test_keeps_its_namespaces_if_requested_and_prints_the_cleanup() {
    if is_child() {
        let testbed = Testbed::new("kept");
        let _pod = testbed.pod("a");
        panic!("on purpose");
    }
    let test = "failure::failing_test_keeps_its_namespaces_if_requested_and_prints_the_cleanup";
    let text = text(&run_as_child(&[], test, &[("KNIT_TESTBED_KEEP", "1")]));
    let (_, after) = text.split_once("To clean up:\n").unwrap_or_else(|| panic!("{text}"));
    let commands: Vec<_> = after.lines().take_while(|line| line.starts_with("  ")).map(str::trim).collect();
    assert_eq!(commands.len(), 3, "{text}");
    let pid: u32 = commands[0].strip_prefix("kill ").unwrap().parse().unwrap();
    let was_alive = is_running(pid);
    let enter = text.lines().filter_map(|line| line.split_once("enter: "));
    let entered: Vec<_> = enter.map(|(_, command)| shell(&format!("{command} -c 'ip -br link'"))).collect();
    // The printed commands delete everything.
    let removed: Vec<_> = commands.iter().map(|command| shell(command)).collect();
    assert!(was_alive, "the pod's process was not kept");
    assert_eq!(entered.len(), 2, "{text}");
    for output in &entered {
        assert!(crate::text(output).contains("LOOPBACK"), "{output:?}");
    }
    assert!(removed.iter().all(|output| output.status.success()), "{removed:?}");
    eventually("the kept process is gone", Duration::from_secs(10), || !is_running(pid));
}

fn shell(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().expect("sh starts")
}

#[test]
fn test_fails_with_a_hint_if_namespaces_are_not_permitted() {
    if is_child() {
        Testbed::new("forbidden");
        return;
    }
    // A user namespace without a mapping has no capabilities after exec.
    let test = "failure::test_fails_with_a_hint_if_namespaces_are_not_permitted";
    let output = run_as_child(&["unshare", "--user"], test, &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("cannot create network namespaces"), "{text}");
    assert!(text.contains("run as root, or `cargo xtask test netns`"), "{text}");
    assert!(text.contains("test result: FAILED"), "{text}");
}
