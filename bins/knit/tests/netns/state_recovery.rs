//! Recovery: Knit is killed at every step, and its state is lost, truncated, damaged, locked or too new.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::support::killed_steps::KilledSteps;
use crate::support::machine::{Machine, Snapshot, has_link};
use knit_store::{Format, Journal, Options};
use knit_testbed::Pod;
use serde_json::Value;

const LABEL: &str = "podnetwork.opdev.io/veth=net";
const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:1::/64', gateways: ['fd00:1::1']}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: first}, spec: {
    selector: {matchLabels: {podnetwork.opdev.io/veth: net}}, mtu: 1300}}";

/// A machine with one registered pod, and dumps of both from before.
fn machine(test: &str) -> (Machine, Pod, Snapshot) {
    let machine = Machine::new(test);
    let pod = machine.registered_pod("a", 180, &[LABEL]);
    let before = machine.snapshot(&[&pod]);
    (machine, pod, before)
}

/// Registers the pod again, and removes what is left of its network.
fn add_and_take_over(machine: &Machine, pod: &Pod) {
    let pid = pod.pid().to_string();
    machine.knit(&["sandbox", "add", "a", "--pid", &pid, "-l", LABEL]).error();
    machine.knit(&["--take-over", "sandbox", "add", "a", "--pid", &pid, "-l", LABEL]).ok();
}

/// Runs a command that kills itself after one more step than the last time. Returns whether it did.
fn run_until_killed(machine: &Machine, arguments: &[&str], killed: &mut KilledSteps) -> bool {
    let steps = killed.len().to_string();
    let printed = machine.knit_with(arguments, VETH, &[("KNIT_FAULT_KILL_AT", &steps)]);
    assert!(printed.code.is_none() || printed.code == Some(0), "{printed:?}");
    if printed.code.is_none() {
        killed.add(&printed.err);
        assert!(killed.len() < 100, "it never comes to its end");
    }
    printed.code.is_none()
}

#[test]
fn a_killed_apply_is_recovered_by_status_apply_and_delete() {
    let (machine, pod, before) = machine("killapply");
    let mut killed = KilledSteps::default();
    while run_until_killed(&machine, &["apply", "-f", "-"], &mut killed) {
        match killed.len() % 3 {
            // `status` completes what was interrupted, and `apply` what was not started.
            0 => {
                machine.knit(&["status"]);
                machine.apply(VETH).ok();
                machine.assert_no_drift();
                pod.ping("10.1.0.1").unwrap();
                machine.delete(VETH).ok();
            }
            1 => {
                machine.apply(VETH).ok();
                machine.assert_no_drift();
                pod.ping("fd00:1::1").unwrap();
                machine.delete(VETH).ok();
            }
            _ => {
                // The kill may have happened before the second object was stored.
                machine.delete(VETH);
            }
        }
        before.assert_unchanged();
        machine.assert_no_drift();
    }
    killed.assert_contains_filter_steps("+ element");
    assert!(killed.len() > 8, "it was killed at too few steps: {killed:?}");
    pod.ping("10.1.0.1").unwrap();
}

#[test]
fn a_killed_delete_is_recovered_by_status_and_delete() {
    let (machine, _pod, before) = machine("killdelete");
    let mut killed = KilledSteps::default();
    loop {
        machine.apply(VETH).ok();
        if !run_until_killed(&machine, &["delete", "-f", "-"], &mut killed) {
            break;
        }
        // Some objects may be deleted already.
        machine.delete(VETH);
        before.assert_unchanged();
        machine.assert_no_drift();
    }
    killed.assert_contains_filter_steps("- element");
    assert!(killed.len() > 4, "it was killed at too few steps: {killed:?}");
    before.assert_unchanged();
}

#[test]
fn a_kill_at_any_time_is_recovered() {
    let (machine, _pod, before) = machine("killany");
    let file = machine.file("veth.yaml", VETH);
    let mut wait = Duration::from_millis(2);
    let mut killed = 0;
    // From before the first step until after the last one, however fast the machine is.
    loop {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(["apply", "-f", file.to_str().unwrap()]).env("KNIT_STATE_DIR", machine.state());
        let process = machine.host.spawn(&mut command);
        std::thread::sleep(wait);
        let end = process.stop().unwrap();
        assert!(end.signal() == Some(9) || end.success(), "{end}");
        machine.delete(VETH);
        before.assert_unchanged();
        machine.assert_no_drift();
        if end.success() {
            break;
        }
        killed += 1;
        wait = wait.mul_f32(1.3);
        assert!(wait < Duration::from_secs(10), "it never comes to its end");
    }
    assert!(killed > 5, "it was killed {killed} times only");
}

#[test]
fn a_truncated_or_damaged_journal_loses_no_link() {
    let (machine, pod, before) = machine("damage");
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
        // The pod is registered again, and orphaned links are removed.
        let printed = machine.knit(&["sandbox", "list"]);
        assert_eq!(printed.code, Some(0), "{number}: {printed:?}");
        assert!(!printed.err.is_empty(), "{number}: the damage is said");
        if !printed.out.contains(&pod.pid().to_string()) {
            add_and_take_over(&machine, &pod);
        }
        machine.knit_with(&["--take-over", "apply", "-f", "-"], VETH, &[]).ok();
        machine.assert_no_drift();
        pod.ping("10.1.0.1").unwrap();
        assert!(machine.knit(&["status"]).out.contains("net1"), "{number}");
    }
    machine.delete(VETH).ok();
    assert!(!has_link(&machine.host, "br1") && !has_link(&pod, "net1"));
    // The previous MTU of eth0 was stored only in the journal.
    pod.ip(&["link", "set", "eth0", "mtu", "1450"]);
    before.assert_unchanged();
}

#[test]
fn a_lost_state_directory_is_rebuilt() {
    let (machine, pod, before) = machine("gone");
    let veth = VETH.split("---").next().unwrap();
    machine.apply(veth).ok();
    fs::remove_dir_all(machine.state()).unwrap();
    let printed = machine.knit(&["status"]);
    assert_eq!(printed.code, Some(1), "{printed:?}");
    assert!(
        printed.out.contains("orphaned: created by Knit and no longer required")
            && printed.out.contains("- bridge br1"),
        "{printed:?}"
    );
    pod.ping("10.1.0.1").unwrap();
    add_and_take_over(&machine, &pod);
    before.assert_unchanged();
    machine.apply(veth).ok();
    pod.ping("10.1.0.1").unwrap();
    machine.delete(veth).ok();
    before.assert_unchanged();
}

#[test]
fn another_state_directory_does_not_affect_foreign_links() {
    let (machine, pod, _) = machine("others");
    machine.apply(VETH).ok();
    let applied = machine.snapshot(&[&pod]);
    let other = machine.state().with_file_name("other");
    let other = ["--state-dir", other.to_str().unwrap()];
    let pid = pod.pid().to_string();
    for command in [&["sandbox", "add", "b", "--pid", &pid][..], &["delete", "-f", "-"], &["undo"]] {
        let printed = machine.knit_with(&[&other[..], command].concat(), VETH, &[]).error();
        assert!(
            printed.contains("links of another Knit state directory exist on this machine (")
                && printed.contains("br1"),
            "{printed}"
        );
        applied.assert_unchanged();
    }
    // The owner of the state directory is not affected.
    machine.apply(VETH).ok();
    machine.knit(&[&other[..], &["--take-over", "sandbox", "add", "b", "--pid", &pid]].concat()).ok();
    assert!(!has_link(&machine.host, "br1"));
}

#[test]
fn newer_locked_and_invalid_state_directories_are_rejected() {
    let (machine, pod, _) = machine("refused");
    machine.apply(VETH).ok();
    let applied = machine.snapshot(&[&pod]);

    // Another knit holds the lock.
    let lock = fs::File::options().write(true).open(machine.state().join("state.lock")).unwrap();
    lock.lock().unwrap();
    let printed = machine.apply(VETH).error();
    assert!(printed.contains("locked by another knit process (pid "), "{printed}");
    drop(lock);

    // A read-only disk.
    let program = env!("CARGO_BIN_EXE_knit");
    let state = machine.state();
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && exec {program} status",
        state.display()
    );
    let mut command = machine.host.command("unshare");
    let output =
        command.args(["--mount", "sh", "-c", &script]).env("KNIT_STATE_DIR", &state).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && printed.contains("the file system is read-only"),
        "{output:?}"
    );
    machine.assert_no_drift();

    // A state of a newer version.
    let newer =
        Options { format: Format { version: 9, migrate: |_, _, value| Ok(value) }, retained_segments: 1 };
    let folder = machine.state().with_file_name("newer");
    drop(Journal::<Value, Value>::open(&folder, newer).unwrap());
    let printed = machine.knit(&["--state-dir", folder.to_str().unwrap(), "status"]).error();
    assert!(printed.contains("was written by a newer Knit (format 9, supported: 5)"), "{printed}");

    let file = machine.file("no-folder", "");
    let printed = machine.knit(&["--state-dir", file.to_str().unwrap(), "status"]).error();
    assert!(printed.contains("no-folder"), "{printed}");
    let printed = machine.knit(&["--state-dir", "/proc/knit", "status"]).error();
    assert!(printed.contains("/proc/knit"), "{printed}");
    applied.assert_unchanged();
}
