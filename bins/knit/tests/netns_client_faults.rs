//! A client that is killed, and an agent that is, while objects are applied: the old state or the new one. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

use std::process::Stdio;
use std::time::Duration;

use knit_testbed::{Dump, eventually};
use support::agent::Machine;
use support::machine::{SAMPLE, Said, has_link, write};

/// So many objects are applied at once.
const OBJECTS: usize = 12;

fn client(machine: &Machine, arguments: &[&str]) -> Said {
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock")).env_remove("KNIT_STATE_DIR");
    Said::of(command, "")
}

#[test]
fn a_client_that_is_killed_leaves_all_of_its_objects_or_none() {
    let machine = Machine::new("killed");
    let agent = machine.agent();
    let untouched = Dump::settled(&machine.host);
    let bridge = |number: usize| {
        format!(
            "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {{name: b{number}}}, \
             spec: {{name: kb{number}, cidr: 10.{number}.0.0/24}}}}"
        )
    };
    let objects: Vec<String> = (0..OBJECTS).map(bridge).collect();
    write(machine.folder.path(), "all.yaml", &objects.join("\n---\n"));
    let file = machine.path("all.yaml").display().to_string();
    let made = || (0..OBJECTS).filter(|number| has_link(&machine.host, &format!("kb{number}"))).count();
    let known = || client(&machine, &["get", "bridge"]).ok().matches("bridge/b").count();
    let (mut killed, mut outcomes) = (0, std::collections::BTreeSet::new());
    // From before the request is sent until after it is answered.
    for wait in (0..).map(|round| Duration::from_millis(8 * round)) {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(["apply", "-f", &file]).env("KNIT_KNI_SOCKET", agent.socket());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(wait);
        child.kill().unwrap();
        let ended = child.wait().unwrap().code();
        killed += usize::from(ended.is_none());
        // What was begun goes on to its end: another client waits for it.
        assert_eq!(client(&machine, &["status"]).code, Some(0));
        let now = known();
        assert!(now == 0 || now == OBJECTS, "{now} objects after {wait:?}");
        eventually("the kernel has what is known", Duration::from_secs(10), || made() == now);
        outcomes.insert(now);
        if now > 0 {
            client(&machine, &["undo"]).ok();
        }
        untouched.assert_unchanged(&machine.host);
        if ended == Some(0) {
            break;
        }
        assert!(wait < Duration::from_secs(5), "it never comes to its end");
    }
    assert!(killed > 3, "it was killed {killed} times only");
    assert_eq!(outcomes, [0, OBJECTS].into());
}

#[test]
fn an_agent_that_is_killed_while_it_applies_has_the_old_state_or_the_new_one_when_it_comes_again() {
    let machine = Machine::new("killedagent");
    let pod = machine.testbed.pod("api");
    let agent = machine.agent();
    let pid = pod.pid().to_string();
    client(&machine, &["sandbox", "add", "api", "--pid", &pid, "-l", "podconfig=podconfig-sample-a"]).ok();
    let untouched = [&machine.host, pod.namespace()].map(|place| (place, Dump::settled(place)));
    agent.stop();
    write(machine.folder.path(), "sample.yaml", SAMPLE);
    let file = machine.path("sample.yaml").display().to_string();
    let mut outcomes = std::collections::BTreeSet::new();
    for steps in ["0", "3", "8", "14"] {
        let mut agent = machine.agent_with(&[], &[("KNIT_FAULT_KILL_AT", steps)]);
        let said = client(&machine, &["apply", "-f", &file]).refused();
        assert!(said.contains("no agent answers on"), "{said}");
        agent.wait();
        let agent = machine.agent();
        eventually("everything stands", Duration::from_secs(10), || {
            client(&machine, &["status"]).code == Some(0)
        });
        let known = client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a");
        assert_eq!(has_link(&pod, &format!("pc0{pid}")), known);
        outcomes.insert(known);
        // What was written down before the crash can be undone after it.
        client(&machine, &["undo"]).ok();
        for (place, dump) in &untouched {
            dump.assert_unchanged(place);
        }
        agent.stop();
    }
    assert!(outcomes.contains(&true), "it was never written down");
}
