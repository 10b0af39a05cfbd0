//! Standalone commands while an agent runs: their output is the same as without it, and objects of a directory,
//! of the configuration or of a caller keep their owner.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::support::agent::Machine;
use crate::support::machine::{CommandOutput, SAMPLE, has_link, write};
use knit_testbed::{Dump, Pod, eventually};

const LABEL: &str = "podconfig=podconfig-sample-a";
const TITLE: &str = "podconfig.podconfig.opdev.io/podconfig-sample-a";
const BRIDGE: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {name: b}, spec: {name: pcbr0, mtu: 1400}}";

/// Runs `knit` on the host, optionally with an explicit state directory.
fn knit(machine: &Machine, state_dir: Option<&str>, arguments: &[&str], input: &str) -> CommandOutput {
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock")).env_remove("KNIT_STATE_DIR");
    if let Some(state_dir) = state_dir {
        command.env("KNIT_STATE_DIR", machine.path(state_dir));
    }
    CommandOutput::of(command, input)
}

/// Runs `knit` as a client of the agent.
fn client(machine: &Machine, arguments: &[&str]) -> CommandOutput {
    knit(machine, None, arguments, "")
}

fn apply(machine: &Machine, yaml: &str) -> CommandOutput {
    knit(machine, None, &["apply", "-f", "-"], yaml)
}

/// A typical sequence of commands, and the output of each.
fn run_typical_commands(machine: &Machine, state_dir: Option<&str>, pod: &Pod) -> Vec<(String, String)> {
    let pid = pod.pid().to_string();
    let bad: Vec<String> =
        (0..300).map(|number| SAMPLE.replace("-a", &number.to_string()).replace(".0/24", ".1/24")).collect();
    let (bad, moved) = (bad.join("---"), SAMPLE.replace("192.168.99.0", "192.168.98.0"));
    let mut printed = Vec::new();
    let mut run = |arguments: &[&str], input: &str| {
        let CommandOutput { code, out, err } = knit(machine, state_dir, arguments, input);
        let text = format!("{code:?}\n{out}\n{err}");
        // Values that differ from run to run.
        let is_fixed = |line: &&str| !line.contains("lastTransitionTime") && !line.contains("uid");
        printed.push((arguments.join(" "), text.lines().filter(is_fixed).collect::<Vec<_>>().join("\n")));
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
    // Drift is reported, and repaired by the next change.
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
    // A foreign link has the name.
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
    printed
}

#[test]
fn commands_print_the_same_with_and_without_an_agent() {
    let machine = Machine::new("same");
    let pod = machine.testbed.pod("api");
    let before = [&machine.host, pod.namespace()].map(|place| (place, Dump::settled(place)));
    let alone = run_typical_commands(&machine, Some("alone"), &pod);
    for (place, dump) in &before {
        dump.assert_unchanged(place);
    }
    // Without the cluster network both start empty.
    write(machine.folder.path(), "agent.yaml", "clusterNetwork: {enabled: false}\n");
    let config = machine.path("agent.yaml").display().to_string();
    let agent = machine.agent_with(&["--config", &config], &[]);
    let text = run_typical_commands(&machine, None, &pod);
    for ((command, alone), (_, text)) in alone.iter().zip(&text) {
        assert_eq!(text, alone, "knit {command}");
    }
    for (place, dump) in &before {
        dump.assert_unchanged(place);
    }
    // Each kind of message occurred.
    for expected in
        ["Some(2)", "(dry run)", "drift repaired", "removed stray links", "must have no host bits set"]
    {
        assert!(text.iter().any(|(_, text)| text.contains(expected)), "{expected} in {text:#?}");
    }
    // With the state directory of the agent, and with another one in this process.
    assert_eq!(knit(&machine, Some("state"), &["get"], "").ok(), "no objects\n");
    apply(&machine, BRIDGE).ok();
    assert!(knit(&machine, Some("state"), &["get"], "").ok().contains("bridge/b"));
    assert_eq!(knit(&machine, Some("alone"), &["get"], "").ok(), "no objects\n");
    // A state directory of an agent with an unknown socket is rejected.
    let error = knit(&machine, Some("state"), &["--kni-socket", "/nowhere", "get"], "").error();
    assert!(error.contains("set its socket with --kni-socket"), "{error}");
    agent.stop();
}

#[test]
fn applied_objects_and_objects_of_a_directory_coexist() {
    let machine = Machine::new("together");
    let folder = machine.path("objects");
    let agent = machine.agent();
    let pod = machine.testbed.pod("api");
    client(&machine, &["sandbox", "add", "api", "--pid", &pod.pid().to_string(), "-l", LABEL]).ok();
    apply(&machine, SAMPLE).ok();
    assert!(has_link(&machine.host, "pcbr0"));

    // Adding and removing a file does not affect applied objects; nor does a restart.
    write(&folder, "bridge.yaml", BRIDGE);
    let has_bridge = || client(&machine, &["get", "bridge"]).ok().contains("bridge/b");
    eventually("the directory is read", Duration::from_secs(10), has_bridge);
    agent.crash();
    let agent = machine.agent();
    assert!(client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a"));
    std::fs::remove_file(folder.join("bridge.yaml")).unwrap();
    eventually("the directory is read", Duration::from_secs(10), || !has_bridge());
    assert!(client(&machine, &["get", "podconfig"]).ok().contains("podconfig-sample-a"));
    assert!(has_link(&machine.host, "pcbr0"));

    // A file takes ownership of an applied object, and errors name the file.
    write(&folder, "sample.yaml", SAMPLE);
    let file = folder.join("sample.yaml").display().to_string();
    let line = format!("File:       {file}\n");
    let is_taken = || client(&machine, &["describe", "podconfig"]).ok().contains(&line);
    eventually("the file owns the object", Duration::from_secs(10), is_taken);
    assert_eq!(apply(&machine, SAMPLE).ok(), format!("{TITLE} unchanged\n"));
    let error = format!(
        "knit: podconfig/podconfig-sample-a in default is managed by {file}, which the agent watches: change it there\n"
    );
    let moved = SAMPLE.replace("192.168.99.0", "192.168.98.0");
    assert_eq!(apply(&machine, &moved).error(), error);
    assert_eq!(knit(&machine, None, &["plan", "-f", "-"], &moved).error(), error);
    for extra in [&["--dry-run"][..], &[]] {
        let arguments = [&["delete", "podconfig", "podconfig-sample-a"][..], extra].concat();
        assert_eq!(client(&machine, &arguments).error(), error);
    }
    // Undoing an earlier apply does not affect the object of the file.
    let undone = client(&machine, &["undo"]);
    assert_eq!(undone.ok(), format!("rolled back: apply -\n{TITLE} unchanged\n"));
    assert_eq!(undone.err, format!("warning: {TITLE}: managed by {file}, unchanged\n"));
    // Changes of the directory are not undone.
    assert_eq!(client(&machine, &["undo"]).error(), "knit: there is nothing to undo\n");
    assert!(has_link(&machine.host, "pcbr0"));
    let own = client(&machine, &["delete", "virtualnetwork", "cluster-network", "-n", "knit-system"]).error();
    assert!(own.contains("managed by the agent: change clusterNetwork in its configuration"), "{own}");

    // Without a watched directory and without an agent, the objects are no longer owned by files.
    agent.stop();
    let removed = knit(&machine, Some("state"), &["delete", "podconfig", "podconfig-sample-a"], "");
    assert_eq!(removed.ok(), format!("{TITLE} deleted\n"));
    assert!(!has_link(&machine.host, "pcbr0"));
}

#[test]
fn sandboxes_are_managed_through_the_agent_except_those_of_callers() {
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
    // The holder is not a child of the agent and outlives it.
    agent.stop();
    let agent = machine.agent();
    assert!(client(&machine, &["sandbox", "list"]).ok().contains(&format!("pc0{pid}")));
    assert_eq!(client(&machine, &["sandbox", "delete", "api"]).ok(), "sandbox/api deleted\n");
    let netns = format!("/proc/{pid}/ns/net");
    eventually("the holder exits", Duration::from_secs(5), || std::fs::read_link(&netns).is_err());
    // A sandbox of a caller can be entered, but only its caller changes or deletes it.
    let pod = machine.testbed.pod("called");
    agent.attach("c1", &pod);
    let inside = client(&machine, &["sandbox", "exec", "c1", "--", "ip", "link", "show", "eth0"]);
    assert!(inside.ok().contains("eth0"), "{inside:?}");
    let expected = "knit: sandbox c1 in namespace default was created by an API call (id c1): only its caller can change or delete it\n";
    assert_eq!(client(&machine, &["sandbox", "delete", "c1"]).error(), expected);
    assert_eq!(client(&machine, &["sandbox", "label", "c1", LABEL]).error(), expected);
    assert!(has_link(&pod, "eth0"));
}

#[test]
fn only_root_may_connect() {
    let machine = Machine::new("root");
    let agent = machine.agent();
    apply(&machine, BRIDGE).ok();
    // Even if the mode of the socket lets other users connect.
    let open = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // Other users may not be able to read the build directory.
    open(machine.folder.path(), 0o755);
    let program = machine.path("knit");
    std::fs::copy(env!("CARGO_BIN_EXE_knit"), &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = machine.host.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command.args(arguments).env("KNIT_KNI_SOCKET", agent.socket()).env_remove("KNIT_STATE_DIR");
        CommandOutput::of(command, SAMPLE)
    };
    let closed = as_nobody(&["get"]).error();
    assert!(closed.contains("permission denied; only the owner of the socket"), "{closed}");
    open(&agent.socket(), 0o666);
    for arguments in [&["get"][..], &["status"], &["apply", "-f", "-"], &["undo"], &["sandbox", "list"]] {
        let error = as_nobody(arguments).error();
        assert_eq!(error, "knit: user 65534 may not call this agent: only root may\n", "{arguments:?}");
    }
    assert!(client(&machine, &["get"]).ok().contains("bridge/b"));
}

#[test]
fn the_agent_of_a_cluster_refers_to_kubectl() {
    let machine = Machine::new("kubectl");
    // The API server is unreachable; the agent waits for it.
    let kubeconfig = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], \
                      clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
    write(machine.folder.path(), "kubeconfig", kubeconfig);
    let kubeconfig = machine.path("kubeconfig").display().to_string();
    let arguments = ["--profile", "beside", "--node-name", "n", "--kubeconfig", &kubeconfig];
    // The account of a pod has the certificate of its API server; a client without one needs those of the machine.
    let confinement = machine.confinement().read_only("/etc/ssl/certs");
    let _agent = machine.spawn_confined(&confinement, &arguments, &[]);
    eventually("the agent is there", Duration::from_secs(20), || machine.log().contains("ready socket"));
    for folder in [None, Some("state")] {
        for arguments in [&["get"][..], &["status"], &["apply", "-f", "-"], &["undo"], &["sandbox", "list"]] {
            let error = knit(&machine, folder, arguments, SAMPLE).error();
            assert_eq!(
                error, "knit: the objects of this node come from the API server, use kubectl\n",
                "{arguments:?}"
            );
        }
    }
}
