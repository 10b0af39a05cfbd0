//! Clients and agents that are killed during an apply: the result is the old or the new state.

use std::process::Stdio;
use std::time::Duration;

use crate::support::agent::Machine;
use crate::support::machine::{CommandOutput, SAMPLE, has_link, write};
use knit_testbed::{Dump, eventually};

/// The number of objects in one apply.
const OBJECTS: usize = 12;

fn client(machine: &Machine, arguments: &[&str]) -> CommandOutput {
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock")).env_remove("KNIT_STATE_DIR");
    CommandOutput::of(command, "")
}

#[test]
fn a_killed_client_leaves_all_of_its_objects_or_none() {
    let machine = Machine::new("killed");
    let agent = machine.agent();
    let before = Dump::settled(&machine.host);
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
    // From before the request until after the response.
    for wait in (0..).map(|round| Duration::from_millis(8 * round)) {
        let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
        command.args(["apply", "-f", &file]).env("KNIT_KNI_SOCKET", agent.socket());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(wait);
        child.kill().unwrap();
        let ended = child.wait().unwrap().code();
        killed += usize::from(ended.is_none());
        // A started apply completes: another client waits for it.
        assert_eq!(client(&machine, &["status"]).code, Some(0));
        let now = known();
        assert!(now == 0 || now == OBJECTS, "{now} objects after {wait:?}");
        eventually("the kernel has the known state", Duration::from_secs(10), || made() == now);
        outcomes.insert(now);
        if now > 0 {
            client(&machine, &["undo"]).ok();
        }
        before.assert_unchanged(&machine.host);
        if ended == Some(0) {
            break;
        }
        assert!(wait < Duration::from_secs(5), "it never comes to its end");
    }
    assert!(killed > 3, "it was killed {killed} times only");
    assert_eq!(outcomes, [0, OBJECTS].into());
}

#[test]
fn an_agent_killed_during_an_apply_restarts_with_the_old_or_the_new_state() {
    let machine = Machine::new("killedagent");
    let pod = machine.testbed.pod("api");
    let agent = machine.agent();
    let pid = pod.pid().to_string();
    client(&machine, &["sandbox", "add", "api", "--pid", &pid, "-l", "podconfig=podconfig-sample-a"]).ok();
    let before = [&machine.host, pod.namespace()].map(|place| (place, Dump::settled(place)));
    agent.stop();
    write(machine.folder.path(), "sample.yaml", SAMPLE);
    let file = machine.path("sample.yaml").display().to_string();
    let mut outcomes = std::collections::BTreeSet::new();
    for steps in ["0", "3", "8", "14"] {
        let mut agent = machine.agent_with(&[], &[("KNIT_FAULT_KILL_AT", steps)]);
        let printed = client(&machine, &["apply", "-f", &file]).error();
        assert!(printed.contains("agent unavailable on"), "{printed}");
        agent.wait();
        let agent = machine.agent();
        eventually("everything is applied", Duration::from_secs(10), || {
            client(&machine, &["status"]).code == Some(0)
        });
        let known = client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a");
        assert_eq!(has_link(&pod, &format!("pc0{pid}")), known);
        outcomes.insert(known);
        // A change that was journalled before the crash can be undone after it.
        client(&machine, &["undo"]).ok();
        for (place, dump) in &before {
            dump.assert_unchanged(place);
        }
        agent.stop();
    }
    assert!(outcomes.contains(&true), "it was never written down");
}
