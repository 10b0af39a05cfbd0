//! What a person sees when a test fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::time::Duration;

use knit_testbed::{Testbed, eventually};

use crate::{is_child, is_running, message, pair, run_as_child, text};

#[test]
fn a_panic_inside_goes_on_outside_with_its_message() {
    let testbed = Testbed::new("panic");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.run(|| panic!("the bridge fell down")))).unwrap_err();
    assert_eq!(message(panic), "the bridge fell down");
}

#[test]
fn a_failing_tool_is_quoted() {
    let testbed = Testbed::new("quoted");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.ip(&["link", "set", "nosuch0", "up"]))).unwrap_err();
    let message = message(panic);
    assert!(message.contains("`ip link set nosuch0 up` failed"), "{message}");
    assert!(message.contains("nosuch0\""), "without the tool's own words: {message}");
}

#[test]
fn a_failing_test_prints_the_commands_to_look_inside() {
    if is_child() {
        let testbed = Testbed::new("shown");
        let (a, _b) = pair(&testbed);
        let shell = a.spawn(a.command("sh").args(["-c", "echo I was here; exec sleep 1000"]));
        eventually("it prints", Duration::from_secs(10), || !shell.output().is_empty());
        panic!("on purpose");
    }
    let output = run_as_child(&[], "failure::a_failing_test_prints_the_commands_to_look_inside", &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("look inside: ip netns exec knit-shown-"), "{text}");
    for part in ["10.0.0.1/24", "fd00::1/64", "table local", "I was here", "KNIT_TESTBED_KEEP=1"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn a_failing_test_keeps_its_world_when_asked_and_says_how_to_remove_it() {
    if is_child() {
        let testbed = Testbed::new("kept");
        let _pod = testbed.pod("a");
        panic!("on purpose");
    }
    let test = "failure::a_failing_test_keeps_its_world_when_asked_and_says_how_to_remove_it";
    let text = text(&run_as_child(&[], test, &[("KNIT_TESTBED_KEEP", "1")]));
    let (_, after) = text.split_once("When you are done:\n").unwrap_or_else(|| panic!("{text}"));
    let commands: Vec<_> = after.lines().take_while(|line| line.starts_with("  ")).map(str::trim).collect();
    assert_eq!(commands.len(), 3, "{text}");
    let pid: u32 = commands[0].strip_prefix("kill ").unwrap().parse().unwrap();
    let was_alive = is_running(pid);
    let looks = text.lines().filter_map(|line| line.split_once("look inside: "));
    let looked: Vec<_> = looks.map(|(_, command)| shell(&format!("{command} -c 'ip -br link'"))).collect();
    // The very commands that were printed take it all away.
    let removed: Vec<_> = commands.iter().map(|command| shell(command)).collect();
    assert!(was_alive, "the pod's process was not kept");
    assert_eq!(looked.len(), 2, "{text}");
    for output in &looked {
        assert!(crate::text(output).contains("LOOPBACK"), "{output:?}");
    }
    assert!(removed.iter().all(|output| output.status.success()), "{removed:?}");
    eventually("the kept process is gone", Duration::from_secs(10), || !is_running(pid));
}

fn shell(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().expect("sh starts")
}

#[test]
fn without_the_right_to_make_namespaces_a_test_fails_and_says_what_to_do() {
    if is_child() {
        Testbed::new("forbidden");
        return;
    }
    // A user namespace without a mapping has no capabilities after exec.
    let test = "failure::without_the_right_to_make_namespaces_a_test_fails_and_says_what_to_do";
    let output = run_as_child(&["unshare", "--user"], test, &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("may not make network namespaces"), "{text}");
    assert!(text.contains("run as root, or `cargo xtask test netns`"), "{text}");
    assert!(text.contains("test result: FAILED"), "{text}");
}
