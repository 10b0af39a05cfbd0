//! Commands that call the agent, with a running agent.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::agent::{Machine, attach, netns};
use knit_testbed::eventually;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Exit code, standard output, standard error.
fn knit(socket: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit"));
    let output = command.args(arguments).env("KNIT_KNI_SOCKET", socket).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn json(socket: &Path, arguments: &[&str]) -> Value {
    let (_, out, err) = knit(socket, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{arguments:?}: {out}{err}"))
}

/// A running command and its output. Dropping it kills it.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(socket: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_knit"));
        command.args(arguments).env("KNIT_KNI_SOCKET", socket).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        Self { child, lines }
    }

    /// The next line that contains the text.
    #[track_caller]
    fn wait_for_line(&self, text: &str) -> String {
        let mut observed = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            if line.contains(text) {
                return line;
            }
            observed.push(line);
        }
        panic!("no line with {text:?} after {observed:#?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn pods_networks_capacity_and_readiness_are_printed() {
    let machine = Machine::new("ask-shown");
    let one = machine.testbed.pod("one");
    let agent = machine.agent();
    let socket = agent.socket();
    assert_eq!(knit(&socket, &["pods"]), (0, "no pods\n".to_owned(), String::new()));
    agent.attach("sb1", &one);

    let (code, out, _) = knit(&socket, &["pods", "-o", "wide"]);
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    let addresses = "10.75.0.2,fd75:6b6e:6974::2";
    assert_eq!((code, &row[..5]), (0, &["default", "sb1", "yes", "eth0", addresses][..]), "{out}");
    assert_eq!(&row[6..], ["cluster-network", "sb1", &netns(&one)], "{out}");

    let (code, out, _) = knit(&socket, &["pod", "sb1"]);
    assert_eq!(code, 0);
    for line in ["Ready:      yes", "    address 10.75.0.2/16", "    route 0.0.0.0/0 via 10.75.0.1"] {
        assert!(out.lines().any(|have| have.starts_with(line)), "{line} is not in\n{out}");
    }
    assert!(out.contains("origin a kni call"), "{out}");
    assert_eq!(json(&socket, &["pod", "--id", "sb1"])["interfaces"][0]["mtu"], 1500);
    let (code, _, err) = knit(&socket, &["pod", "nobody"]);
    assert_eq!(code, 1);
    assert!(err.contains("(NotFound)") && err.contains("knit logs --call"), "{err}");

    assert_eq!(json(&socket, &["networks"])["networks"][0]["default"], true);
    let room = json(&socket, &["capacity", "cluster-network"]);
    assert_eq!((&room["networks"][0]["used"], &room["noMorePods"]), (&1.into(), &false.into()), "{room}");
    assert_eq!(knit(&socket, &["capacity"]).0, 0);
    let (code, out, _) = knit(&socket, &["ready"]);
    assert_eq!((code, out.as_str()), (0, "node: ready\nnew pods: ready\n"));
    assert_eq!(knit(&socket, &["ready", "sb1"]).0, 0);
    // `--wait` waits for an agent that starts; an unreachable agent has another exit code than one that is not ready.
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(knit(&socket, &["ready"]).0, 3);
    let waiting = std::thread::spawn(move || knit(&socket, &["ready", "--wait", "20"]).0);
    let _agent = machine.agent();
    assert_eq!(waiting.join().unwrap(), 0);
}

#[test]
fn a_full_network_blocks_new_pods() {
    let machine = Machine::new("ask-full");
    let one = machine.testbed.pod("one");
    // The bridge uses the first of two addresses.
    let agent = machine.agent_with(&["--cluster-ranges", "10.75.0.0/30"], &[]);
    assert_eq!(knit(&agent.socket(), &["capacity"]).0, 0);
    agent.attach("sb1", &one);
    let (code, out, _) = knit(&agent.socket(), &["capacity"]);
    assert_eq!(code, 1);
    assert!(out.contains("no more pods\n") && out.contains("(AddressesExhausted)"), "{out}");
    let (code, out, _) = knit(&agent.socket(), &["ready"]);
    assert_eq!(code, 1);
    assert!(out.starts_with("node: ready\nnew pods: not ready\n"), "{out}");
    assert_eq!(knit(&agent.socket(), &["ready", "sb1"]).0, 0, "the pod that is there stays ready");
}

#[test]
fn gc_dry_run_prints_what_would_be_removed() {
    let machine = Machine::new("ask-garbage");
    let (one, other) = (machine.testbed.pod("one"), machine.testbed.pod("other"));
    // The census is disabled: the agent must not collect the sandbox first.
    let agent = machine.agent_with(&["--sandbox-check-seconds", "3600"], &[]);
    agent.attach("sb1", &one);
    agent.attach("sb2", &other);
    let socket = agent.socket();
    assert_eq!(knit(&socket, &["gc"]).1, "nothing to collect\n");
    let (code, out, _) = knit(&socket, &["gc", "--keep", "sb1", "--dry-run"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("pod default/sb2: eth0") && out.contains("would be removed"), "{out}");
    assert_eq!(agent.used_addresses(), 4);
    let (_, out, _) = knit(&socket, &["gc", "--keep", "sb1"]);
    assert!(out.starts_with("pod default/sb2: eth0"), "{out}");
    assert_eq!(agent.used_addresses(), 2);
    one.ping("10.75.0.1").unwrap();
}

#[test]
fn a_watch_resumes_after_an_agent_restart_without_gaps() {
    let machine = Machine::new("ask-watch");
    let (one, other) = (machine.testbed.pod("one"), machine.testbed.pod("other"));
    let agent = machine.agent();
    let socket = agent.socket();
    let watch = Running::start(&socket, &["watch"]);
    watch.wait_for_line("added network cluster-network ready=yes");
    agent.attach("sb1", &one);
    watch.wait_for_line("pod default/sb1 [eth0 10.75.0.2/16");
    assert_eq!(agent.stop(), Some(0));
    // Changes before the watch is resumed are included.
    let agent = machine.agent();
    agent.attach("sb2", &other);
    watch.wait_for_line("pod default/sb2 [eth0 10.75.0.3/16");
    assert!(agent.delete("sb1"));
    watch.wait_for_line("deleted pod default/sb1");

    let (code, out, _) = knit(&socket, &["watch", "--once", "-o", "json"]);
    assert_eq!(code, 0);
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(last["change"], "CHANGE_SYNCED");
    let place = format!("{}/{}", last["position"]["epoch"].as_str().unwrap(), last["position"]["sequence"]);
    let later = Running::start(&socket, &["watch", "--after", &place]);
    agent.detach("sb2", &["eth0"]);
    later.wait_for_line("modified pod default/sb2 []");
    // A position of another epoch restarts the watch with a message.
    let resumed = Running::start(&socket, &["watch", "--after", "elsewhere/7"]);
    resumed.wait_for_line("added network cluster-network");
}

#[test]
fn logs_can_be_filtered_by_call_id() {
    let machine = Machine::new("ask-logs");
    let one = machine.testbed.pod("one");
    let agent = machine.agent();
    let follow = Running::start(&agent.socket(), &["logs", "--follow"]);
    let call = agent.attach("sb1", &one).call_id;
    follow.wait_for_line(&format!("call={call}"));
    let (code, out, _) = knit(&agent.socket(), &["logs", "--call", &call]);
    assert_eq!(code, 0);
    assert!(!out.is_empty() && out.lines().all(|line| line.contains(&call)), "{out}");
    let error = agent.try_attach(attach("../x", &netns(&one))).unwrap_err();
    assert!(!error.call_id().is_empty(), "{error:?}");
    eventually("the error is logged", TIMEOUT, || {
        let (_, out, _) = knit(&agent.socket(), &["logs", "--call", error.call_id(), "--level", "debug"]);
        !out.is_empty()
    });
}
