//! A testbed deletes everything, and leftovers are detected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use knit_testbed::{Error, Testbed, eventually};

use crate::{is_child, is_running, message, run_as_child, text};

#[test]
fn panicking_test_leaves_nothing() {
    let mut created = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let testbed = Testbed::new("fails");
        let pod = testbed.pod("a");
        let server = pod.tcp_echo("127.0.0.1:0");
        pod.tcp_reaches(server.address()).unwrap();
        let paths: Vec<_> = testbed.namespaces().iter().map(|one| one.path().to_owned()).collect();
        assert!(paths.iter().all(|path| path.exists()) && is_running(pod.pid()), "nothing to delete");
        created = Some((paths, pod.clone()));
        panic!("on purpose");
    }));
    assert_eq!(message(panic.unwrap_err()), "on purpose");
    let (paths, pod) = created.unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(paths.iter().all(|path| !mounts.contains(&*path.to_string_lossy())), "{mounts}");
    assert!(!is_running(pod.pid()), "the pod's process is still running");
    assert!(matches!(pod.sysctl("net.ipv4.ip_forward"), Err(Error::Closed { .. })));
}

#[test]
fn background_processes_and_their_children_are_killed() {
    let mut testbed = Testbed::new("background");
    let host = testbed.host();
    let script = "echo started; sleep 1000 & setsid sleep 1000 & wait";
    let shell = host.spawn(host.command("sh").args(["-c", script]));
    eventually("the shell has two children", Duration::from_secs(10), || {
        host.processes().iter().filter(|(_, command)| command == "sleep 1000").count() == 2
    });
    assert_eq!(shell.output(), "started\n");
    assert!(shell.is_running());
    let pids: Vec<_> = host.processes().iter().map(|(pid, _)| *pid).collect();
    testbed.close();
    testbed.assert_nothing_left();
    assert!(!shell.is_running());
    eventually("all have ended", Duration::from_secs(10), || !pids.iter().any(|pid| is_running(*pid)));
}

#[test]
fn open_descriptor_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("forgets");
    let descriptor = std::mem::ManuallyDrop::new(testbed.namespace("a").descriptor());
    testbed.close();
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left())).unwrap_err();
    let message = message(panic);
    assert!(message.contains("-a: this test process has it open as descriptor"), "{message}");
    drop(std::mem::ManuallyDrop::into_inner(descriptor));
}

#[test]
fn open_testbed_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("open");
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left())).unwrap_err();
    assert!(message(panic).contains("was not closed"));
    testbed.close();
    testbed.assert_nothing_left();
}

#[test]
fn recreated_file_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("file");
    let path = testbed.host().path().with_extension("again");
    testbed.close();
    std::fs::write(&path, "").unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left()));
    std::fs::remove_file(&path).unwrap();
    assert!(message(panic.unwrap_err()).contains("-host.again"));
}

#[test]
fn link_escaped_to_the_machine_is_found_by_assert_nothing_left() {
    let add = ["link", "add", "br7", "type", "bridge"];
    if is_child() {
        let mut testbed = Testbed::new("escape");
        testbed.bridge(&testbed.host(), "br7");
        assert!(Command::new("ip").args(add).status().unwrap().success());
        testbed.close();
        testbed.assert_nothing_left();
        return;
    }
    // The child runs in its own netns as machine, so that this test does not touch the real one.
    let test = "leftovers::link_escaped_to_the_machine_is_found_by_assert_nothing_left";
    let output = run_as_child(&["unshare", "--net"], test, &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("link br7 in the machine's own namespace"), "{text}");
}
