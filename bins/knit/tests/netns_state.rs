//! Knit killed at every step, and its state lost, cut, damaged, locked or too new: the next command mends it. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use knit_store::{Format, Journal, Options};
use knit_testbed::Pod;
use serde_json::Value;
use support::machine::{Machine, Untouched, has_link};

const LABEL: &str = "podnetwork.opdev.io/veth=net";
const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:1::/64', gateways: ['fd00:1::1']}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: first}, spec: {
    selector: {matchLabels: {podnetwork.opdev.io/veth: net}}, mtu: 1300}}";

/// A machine with one pod that Knit knows, and how both look without Knit's work.
fn machine(test: &str) -> (Machine, Pod, Untouched) {
    let machine = Machine::new(test);
    let pod = machine.known_pod("a", 180, &[LABEL]);
    let untouched = machine.untouched(&[&pod]);
    (machine, pod, untouched)
}

/// Has Knit know the pod again, and remove what is left of its network.
fn add_and_take_over(machine: &Machine, pod: &Pod) {
    let pid = pod.pid().to_string();
    machine.knit(&["sandbox", "add", "a", "--pid", &pid, "-l", LABEL]).refused();
    machine.knit(&["--take-over", "sandbox", "add", "a", "--pid", &pid, "-l", LABEL]).ok();
}

/// Runs a command that kills itself after so many steps. Whether it did.
fn killed(machine: &Machine, arguments: &[&str], steps: usize) -> bool {
    let said = machine.knit_with(arguments, VETH, &[("KNIT_FAULT_KILL_AT", &steps.to_string())]);
    assert!(said.code.is_none() || said.code == Some(0), "{said:?}");
    said.code.is_none()
}

#[test]
fn killed_while_applying_and_then_looked_at_applied_or_deleted() {
    let (machine, pod, untouched) = machine("killapply");
    let mut steps = 0;
    while killed(&machine, &["apply", "-f", "-"], steps) {
        match steps % 3 {
            // The next look finds what was cut short, and the next apply what was never begun.
            0 => {
                machine.knit(&["status"]);
                machine.apply(VETH).ok();
                machine.assert_at_rest();
                pod.ping("10.1.0.1").unwrap();
                machine.delete(VETH).ok();
            }
            1 => {
                machine.apply(VETH).ok();
                machine.assert_at_rest();
                pod.ping("fd00:1::1").unwrap();
                machine.delete(VETH).ok();
            }
            _ => {
                // It may have been killed before the second object was known.
                machine.delete(VETH);
            }
        }
        untouched.assert_again();
        machine.assert_at_rest();
        steps += 1;
        assert!(steps < 100, "it never comes to its end");
    }
    assert!(steps > 8, "it was killed at {steps} steps only");
    pod.ping("10.1.0.1").unwrap();
}

#[test]
fn killed_while_deleting_and_then_looked_at_or_deleted_again() {
    let (machine, _pod, untouched) = machine("killdelete");
    let mut steps = 0;
    loop {
        machine.apply(VETH).ok();
        if !killed(&machine, &["delete", "-f", "-"], steps) {
            break;
        }
        // Some of it may be deleted already, which is no reason to keep the rest.
        machine.delete(VETH);
        untouched.assert_again();
        machine.assert_at_rest();
        steps += 1;
        assert!(steps < 100, "it never comes to its end");
    }
    assert!(steps > 4, "it was killed at {steps} steps only");
    untouched.assert_again();
}

#[test]
fn killed_from_outside_at_any_moment() {
    let (machine, _pod, untouched) = machine("killany");
    let file = machine.file("veth.yaml", VETH);
    for round in 0..12 {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(["apply", "-f", file.to_str().unwrap()]).env("KNIT_STATE_DIR", machine.state());
        let process = machine.host.spawn(&mut command);
        std::thread::sleep(Duration::from_millis(4 * round));
        let end = process.stop().unwrap();
        assert!(end.signal() == Some(9) || end.success(), "{end}");
        machine.delete(VETH);
        untouched.assert_again();
        machine.assert_at_rest();
    }
}

#[test]
fn a_journal_that_is_cut_or_damaged_anywhere_loses_no_link() {
    let (machine, pod, untouched) = machine("damage");
    machine.apply(VETH).ok();
    let journal = machine.state().join("journal");
    let whole = fs::read(&journal).unwrap();
    let cut = |part: usize| whole[..whole.len() * part / 7].to_vec();
    let flipped = |part: usize| {
        let mut bytes = whole.clone();
        bytes[whole.len() * part / 7] ^= 0x20;
        bytes
    };
    let damages: Vec<Vec<u8>> = (0..7).flat_map(|part| [cut(part), flipped(part)]).collect();
    for (number, damaged) in damages.iter().enumerate() {
        fs::remove_dir_all(machine.state()).unwrap();
        fs::create_dir(machine.state()).unwrap();
        fs::write(&journal, damaged).unwrap();
        // Whatever is still known, the pod is known again after this, and nothing is left that nobody knows.
        let said = machine.knit(&["sandbox", "list"]);
        assert_eq!(said.code, Some(0), "{number}: {said:?}");
        assert!(!said.err.is_empty(), "{number}: the damage is said");
        if !said.out.contains(&pod.pid().to_string()) {
            add_and_take_over(&machine, &pod);
        }
        machine.knit_with(&["--take-over", "apply", "-f", "-"], VETH, &[]).ok();
        machine.assert_at_rest();
        pod.ping("10.1.0.1").unwrap();
        assert!(machine.knit(&["status"]).out.contains("net1"), "{number}");
    }
    machine.delete(VETH).ok();
    assert!(!has_link(&machine.host, "br1") && !has_link(&pod, "net1"));
    // The MTU that eth0 had before was written in the journal only.
    pod.ip(&["link", "set", "eth0", "mtu", "1450"]);
    untouched.assert_again();
}

#[test]
fn a_state_folder_that_is_gone_is_built_anew() {
    let (machine, pod, untouched) = machine("gone");
    let veth = VETH.split("---").next().unwrap();
    machine.apply(veth).ok();
    fs::remove_dir_all(machine.state()).unwrap();
    let said = machine.knit(&["status"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(
        said.out.contains("has Knit's mark and nobody asks for it") && said.out.contains("- bridge br1"),
        "{said:?}"
    );
    pod.ping("10.1.0.1").unwrap();
    add_and_take_over(&machine, &pod);
    untouched.assert_again();
    machine.apply(veth).ok();
    pod.ping("10.1.0.1").unwrap();
    machine.delete(veth).ok();
    untouched.assert_again();
}

#[test]
fn another_state_folder_leaves_alone_what_it_does_not_know() {
    let (machine, pod, _) = machine("others");
    machine.apply(VETH).ok();
    let stands = machine.untouched(&[&pod]);
    let other = machine.state().with_file_name("other");
    let other = ["--state-dir", other.to_str().unwrap()];
    let pid = pod.pid().to_string();
    for command in [&["sandbox", "add", "b", "--pid", &pid][..], &["delete", "-f", "-"], &["undo"]] {
        let said = machine.knit_with(&[&other[..], command].concat(), VETH, &[]).refused();
        assert!(
            said.contains("another Knit's network is on this machine (") && said.contains("br1"),
            "{said}"
        );
        stands.assert_again();
    }
    // Whoever has the folder goes on.
    machine.apply(VETH).ok();
    machine.knit(&[&other[..], &["--take-over", "sandbox", "add", "b", "--pid", &pid]].concat()).ok();
    assert!(!has_link(&machine.host, "br1"));
}

#[test]
fn a_newer_state_a_taken_one_and_a_folder_that_is_none_are_refused_in_words() {
    let (machine, pod, _) = machine("refused");
    machine.apply(VETH).ok();
    let stands = machine.untouched(&[&pod]);

    // Another knit works here.
    let lock = fs::File::options().write(true).open(machine.state().join("state.lock")).unwrap();
    lock.lock().unwrap();
    let said = machine.apply(VETH).refused();
    assert!(said.contains("another knit is working here (pid "), "{said}");
    drop(lock);

    // A disk that takes no writes.
    let program = env!("CARGO_BIN_EXE_knit");
    let state = machine.state();
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec {program} status",
        state.display()
    );
    let mut command = machine.host.command("unshare");
    let output =
        command.args(["--mount", "sh", "-c", &script]).env("KNIT_STATE_DIR", &state).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("the file system is read-only"), "{output:?}");
    machine.assert_at_rest();

    // A state of a later Knit.
    let newer = Options { format: Format { version: 9, migrate: |_, _, value| Ok(value) }, segments: 1 };
    let folder = machine.state().with_file_name("newer");
    drop(Journal::<Value, Value>::open(&folder, newer).unwrap());
    let said = machine.knit(&["--state-dir", folder.to_str().unwrap(), "status"]).refused();
    assert!(said.contains("was written by a newer Knit (format 9, this one knows 4)"), "{said}");

    let file = machine.file("no-folder", "");
    let said = machine.knit(&["--state-dir", file.to_str().unwrap(), "status"]).refused();
    assert!(said.contains("no-folder"), "{said}");
    let said = machine.knit(&["--state-dir", "/proc/knit", "status"]).refused();
    assert!(said.contains("/proc/knit"), "{said}");
    stands.assert_again();
}
