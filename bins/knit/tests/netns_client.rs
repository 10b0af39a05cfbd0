//! The commands of one machine while an agent has the node: they say what they say without one, and what is the folder's,
//! the configuration's or a caller's stays so. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use knit_testbed::{Dump, Pod, eventually};
use support::agent::Machine;
use support::machine::{SAMPLE, Said, has_link, write};

const LABEL: &str = "podconfig=podconfig-sample-a";
const TITLE: &str = "podconfig.podconfig.opdev.io/podconfig-sample-a";
const BRIDGE: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {name: b}, spec: {name: pcbr0, mtu: 1400}}";

/// Runs `knit` on the machine's host, with this state folder or none that is named.
fn knit(machine: &Machine, folder: Option<&str>, arguments: &[&str], input: &str) -> Said {
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock")).env_remove("KNIT_STATE_DIR");
    if let Some(folder) = folder {
        command.env("KNIT_STATE_DIR", machine.path(folder));
    }
    Said::of(command, input)
}

/// A client of the agent.
fn client(machine: &Machine, arguments: &[&str]) -> Said {
    knit(machine, None, arguments, "")
}

fn apply(machine: &Machine, yaml: &str) -> Said {
    knit(machine, None, &["apply", "-f", "-"], yaml)
}

/// What a person does in a day, and what was said each time.
fn a_day(machine: &Machine, folder: Option<&str>, pod: &Pod) -> Vec<(String, String)> {
    let pid = pod.pid().to_string();
    let bad: Vec<String> =
        (0..300).map(|number| SAMPLE.replace("-a", &number.to_string()).replace(".0/24", ".1/24")).collect();
    let (bad, moved) = (bad.join("---"), SAMPLE.replace("192.168.99.0", "192.168.98.0"));
    let mut said = Vec::new();
    let mut run = |arguments: &[&str], input: &str| {
        let Said { code, out, err } = knit(machine, folder, arguments, input);
        let told = format!("{code:?}\n{out}\n{err}");
        // What differs from one life to another.
        let is_fixed = |line: &&str| !line.contains("lastTransitionTime") && !line.contains("uid");
        said.push((arguments.join(" "), told.lines().filter(is_fixed).collect::<Vec<_>>().join("\n")));
    };
    run(&["sandbox", "list"], "");
    run(&["sandbox", "add", "api", "--pid", &pid, "-l", LABEL], "");
    run(&["sandbox", "add", "api", "--pid", &pid], "");
    run(&["sandbox", "add", "api"], "");
    run(&["sandbox", "list", "-o", "json"], "");
    run(&["plan", "-f", "-"], SAMPLE);
    run(&["plan", "-f", "-", "-o", "json"], SAMPLE);
    run(&["apply", "--dry-run", "-f", "-"], SAMPLE);
    run(&["apply", "-f", "-"], &SAMPLE.replace("cidr", "cdir"));
    run(&["apply", "-f", "-"], &bad);
    run(&["get"], "");
    for _ in 0..2 {
        run(&["apply", "-f", "-"], SAMPLE);
    }
    run(&["plan", "-f", "-"], SAMPLE);
    for form in ["table", "wide", "json", "yaml"] {
        run(&["get", "-o", form], "");
    }
    run(&["get", "podkonfig"], "");
    run(&["get", "podconfig", "nobody"], "");
    run(&["describe", "podconfig"], "");
    run(&["status"], "");
    run(&["status", "-o", "json"], "");
    run(&["sandbox", "list"], "");
    run(&["sandbox", "exec", "api", "--", "sh", "-c", "ip -br -4 addr | sed 's/@[^ ]* *//'"], "");
    run(&["sandbox", "exec", "api", "--", "false"], "");
    run(&["sandbox", "exec", "nobody", "--", "true"], "");
    // What someone changes by hand is seen, and repaired by the next command that changes something.
    machine.host.ip(&["link", "set", "pcbr1", "mtu", "1399"]);
    machine.host.ip(&[
        "rule",
        "add",
        "from",
        "10.66.0.0/16",
        "table",
        "7500",
        "priority",
        "7500",
        "protocol",
        "75",
    ]);
    run(&["status"], "");
    run(&["apply", "-f", "-"], BRIDGE);
    run(&["status"], "");
    run(&["apply", "-f", "-"], &moved);
    run(&["undo"], "");
    run(&["delete", "--dry-run", "-f", "-"], SAMPLE);
    run(&["delete", "-f", "-"], SAMPLE);
    run(&["delete", "podconfig", "podconfig-sample-a"], "");
    // Someone else's link is in the way.
    run(&["undo"], "");
    run(&["delete", "bridge", "b"], "");
    run(&["delete", "podconfig", "podconfig-sample-a"], "");
    machine.host.ip(&["link", "add", "pcbr0", "type", "bridge"]);
    run(&["apply", "-f", "-"], SAMPLE);
    run(&["describe", "podconfig"], "");
    run(&["status"], "");
    machine.host.ip(&["link", "del", "pcbr0"]);
    run(&["sandbox", "label", "api", "x=y"], "");
    run(&["sandbox", "label", "api", "podconfig-", "x=z"], "");
    run(&["sandbox", "label", "api", "="], "");
    run(&["sandbox", "list"], "");
    run(&["status"], "");
    for _ in 0..9 {
        run(&["undo"], "");
    }
    run(&["sandbox", "delete", "nobody"], "");
    run(&["sandbox", "delete", "api"], "");
    run(&["status"], "");
    said
}

#[test]
fn every_command_says_the_same_with_an_agent_as_without_one() {
    let machine = Machine::new("same");
    let pod = machine.testbed.pod("api");
    let untouched = [&machine.host, pod.namespace()].map(|place| (place, Dump::settled(place)));
    let alone = a_day(&machine, Some("alone"), &pod);
    for (place, dump) in &untouched {
        dump.assert_unchanged(place);
    }
    // Without the agent's own network both begin with nothing.
    write(machine.folder.path(), "agent.yaml", "clusterNetwork: {enabled: false}\n");
    let config = machine.path("agent.yaml").display().to_string();
    let agent = machine.agent_with(&["--config", &config], &[]);
    let told = a_day(&machine, None, &pod);
    for ((command, alone), (_, told)) in alone.iter().zip(&told) {
        assert_eq!(told, alone, "knit {command}");
    }
    for (place, dump) in &untouched {
        dump.assert_unchanged(place);
    }
    // Each way of saying something was met.
    for words in
        ["Some(2)", "(dry run)", "was not as asked for", "removed what has Knit's mark", "has host bits set"]
    {
        assert!(told.iter().any(|(_, told)| told.contains(words)), "{words} in {told:#?}");
    }
    // The folder named is the agent's, another is this process's own.
    assert_eq!(knit(&machine, Some("state"), &["get"], "").ok(), "no objects\n");
    apply(&machine, BRIDGE).ok();
    assert!(knit(&machine, Some("state"), &["get"], "").ok().contains("bridge/b"));
    assert_eq!(knit(&machine, Some("alone"), &["get"], "").ok(), "no objects\n");
    // One that an agent has whose socket is not known is refused in words.
    let elsewhere = knit(&machine, Some("state"), &["--kni-socket", "/nowhere", "get"], "").refused();
    assert!(elsewhere.contains("name that agent's socket with --kni-socket"), "{elsewhere}");
    agent.stop();
}

#[test]
fn what_is_applied_by_hand_and_what_a_folder_has_go_together() {
    let machine = Machine::new("together");
    let folder = machine.path("objects");
    let agent = machine.agent();
    let pod = machine.testbed.pod("api");
    client(&machine, &["sandbox", "add", "api", "--pid", &pod.pid().to_string(), "-l", LABEL]).ok();
    apply(&machine, SAMPLE).ok();
    assert!(has_link(&machine.host, "pcbr0"));

    // A file that comes and goes leaves alone what was applied by hand; so does a restart.
    write(&folder, "bridge.yaml", BRIDGE);
    let has_bridge = || client(&machine, &["get", "bridge"]).ok().contains("bridge/b");
    eventually("the folder is read", Duration::from_secs(10), has_bridge);
    agent.crash();
    let agent = machine.agent();
    assert!(client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a"));
    std::fs::remove_file(folder.join("bridge.yaml")).unwrap();
    eventually("the folder is read", Duration::from_secs(10), || !has_bridge());
    assert!(client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a"));
    assert!(has_link(&machine.host, "pcbr0"));

    // What a file has is the file's: it takes over what was applied by hand, and its name is in every refusal.
    write(&folder, "sample.yaml", SAMPLE);
    let file = folder.join("sample.yaml").display().to_string();
    let line = format!("File:       {file}\n");
    let is_taken = || client(&machine, &["describe", "podconfig"]).ok().contains(&line);
    eventually("the file takes the object over", Duration::from_secs(10), is_taken);
    assert_eq!(apply(&machine, SAMPLE).ok(), format!("{TITLE} unchanged\n"));
    let refused = format!(
        "knit: podconfig/podconfig-sample-a in default comes from {file}, which the agent watches: change it there\n"
    );
    let moved = SAMPLE.replace("192.168.99.0", "192.168.98.0");
    assert_eq!(apply(&machine, &moved).refused(), refused);
    assert_eq!(knit(&machine, None, &["plan", "-f", "-"], &moved).refused(), refused);
    for extra in [&["--dry-run"][..], &[]] {
        let arguments = [&["delete", "podconfig", "podconfig-sample-a"][..], extra].concat();
        assert_eq!(client(&machine, &arguments).refused(), refused);
    }
    // Undoing what was applied by hand before leaves the file's object as it is.
    let undone = client(&machine, &["undo"]);
    assert_eq!(undone.ok(), format!("undone: apply -\n{TITLE} unchanged\n"));
    assert_eq!(
        undone.err,
        format!("warning: {TITLE}: it comes from {file} by now, and stays as it is there\n")
    );
    // Nothing that the folder did is undone.
    assert_eq!(client(&machine, &["undo"]).refused(), "knit: there is nothing to undo\n");
    assert!(has_link(&machine.host, "pcbr0"));
    let own =
        client(&machine, &["delete", "virtualnetwork", "cluster-network", "-n", "knit-system"]).refused();
    assert!(own.contains("the agent's own: change clusterNetwork in its configuration"), "{own}");

    // Without a folder that is watched, and without an agent, nobody else's word stands.
    agent.stop();
    let removed = knit(&machine, Some("state"), &["delete", "podconfig", "podconfig-sample-a"], "");
    assert_eq!(removed.ok(), format!("{TITLE} deleted\n"));
    assert!(!has_link(&machine.host, "pcbr0"));
}

#[test]
fn sandboxes_are_made_and_ended_through_the_agent_but_for_those_of_callers() {
    let machine = Machine::new("through");
    let agent = machine.agent();
    client(&machine, &["sandbox", "add", "api", "-l", LABEL]).ok();
    apply(&machine, SAMPLE).ok();
    let list = client(&machine, &["sandbox", "list", "-o", "json"]).ok();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let pid = list[0]["pid"].as_u64().unwrap();
    assert_eq!(list[0]["interfaces"], serde_json::json!([format!("pc0{pid}"), format!("pc1{pid}")]));
    let inside = client(&machine, &["sandbox", "exec", "api", "--", "ping", "-c1", "-w5", "192.168.100.1"]);
    assert!(inside.ok().contains("1 received"), "{inside:?}");
    // The holder is nobody's child that ends: it outlives the agent.
    agent.stop();
    let agent = machine.agent();
    assert!(client(&machine, &["sandbox", "list"]).ok().contains(&format!("pc0{pid}")));
    assert_eq!(client(&machine, &["sandbox", "delete", "api"]).ok(), "sandbox/api deleted\n");
    let netns = format!("/proc/{pid}/ns/net");
    eventually("the holder ends", Duration::from_secs(5), || std::fs::read_link(&netns).is_err());
    // A caller's pod can be entered, and is its caller's to change and to end.
    let pod = machine.testbed.pod("called");
    agent.attach("c1", &pod);
    let inside = client(&machine, &["sandbox", "exec", "c1", "--", "ip", "link", "show", "eth0"]);
    assert!(inside.ok().contains("eth0"), "{inside:?}");
    let words =
        "knit: sandbox c1 in namespace default was made by a call (id c1): its caller changes and ends it\n";
    assert_eq!(client(&machine, &["sandbox", "delete", "c1"]).refused(), words);
    assert_eq!(client(&machine, &["sandbox", "label", "c1", LABEL]).refused(), words);
    assert!(has_link(&pod, "eth0"));
}

#[test]
fn only_root_is_a_client() {
    let machine = Machine::new("root");
    let agent = machine.agent();
    apply(&machine, BRIDGE).ok();
    // Even where the socket's mode lets others in.
    let open = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The folder that it was built in may be closed to others.
    open(machine.folder.path(), 0o755);
    let program = machine.path("knit");
    std::fs::copy(env!("CARGO_BIN_EXE_knit"), &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = machine.host.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command.args(arguments).env("KNIT_KNI_SOCKET", agent.socket()).env_remove("KNIT_STATE_DIR");
        Said::of(command, SAMPLE)
    };
    let closed = as_nobody(&["get"]).refused();
    assert!(closed.contains("permission denied; the socket is its owner's only"), "{closed}");
    open(&agent.socket(), 0o666);
    for arguments in [&["get"][..], &["status"], &["apply", "-f", "-"], &["undo"], &["sandbox", "list"]] {
        let refused = as_nobody(arguments).refused();
        assert_eq!(refused, "knit: user 65534 may not call this agent: only root may\n", "{arguments:?}");
    }
    assert!(client(&machine, &["get"]).ok().contains("bridge/b"));
}

#[test]
fn the_agent_of_a_cluster_sends_people_to_kubectl() {
    let machine = Machine::new("kubectl");
    // Nobody answers there; the agent waits for it.
    let kubeconfig = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                      clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
    write(machine.folder.path(), "kubeconfig", kubeconfig);
    let kubeconfig = machine.path("kubeconfig").display().to_string();
    let arguments = ["--profile", "beside", "--node-name", "n", "--kubeconfig", &kubeconfig];
    let _agent = machine.spawn(&arguments, &[]);
    eventually("the agent is there", Duration::from_secs(20), || machine.log().contains("ready socket"));
    for folder in [None, Some("state")] {
        for arguments in [&["get"][..], &["status"], &["apply", "-f", "-"], &["undo"], &["sandbox", "list"]] {
            let refused = knit(&machine, folder, arguments, SAMPLE).refused();
            assert_eq!(
                refused, "knit: this node's objects come from the API server: use kubectl\n",
                "{arguments:?}"
            );
        }
    }
}
