//! What the CNI shim and the agent behind it must survive: the numbers are those of the list of faults. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod cni;
}

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use knit_kni::{frame, v1};
use knit_testbed::{Dump, Namespace, Pod, eventually};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use serde_json::json;
use support::agent::{Agent, Machine, attach, netns, ports};
use support::cni::{Call, addresses, failure};

/// A host and a pod, and what they look like before anything happens.
struct Ground<'a> {
    machine: &'a Machine,
    pod: &'a Pod,
    host: Dump,
    inside: Dump,
}

impl<'a> Ground<'a> {
    fn new(machine: &'a Machine, pod: &'a Pod) -> Self {
        let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
        Self { machine, pod, host, inside }
    }

    fn call(&self, command: &'static str, container: &str) -> Call {
        Call::new(self.machine, command, container, &netns(self.pod))
    }

    /// Nothing is left of whatever was tried.
    fn assert_clean(&self, agent: &Agent<'_>) {
        assert_eq!(agent.used(), 0);
        eventually("the links are reaped", Duration::from_secs(20), || ports(&self.machine.host) == 0);
        self.host.assert_unchanged(&self.machine.host);
        self.inside.assert_unchanged(self.pod.namespace());
    }
}

fn links(namespace: &Namespace) -> String {
    namespace.ip(&["-o", "addr"])
}

#[test]
fn fault_1_values_that_cannot_be_are_refused_with_their_name() {
    let machine = Machine::new("cni-fault-1");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    for command in ["ADD", "DEL"] {
        for container in ["", "..", "a/b", "a b", "-a", "a\0b", &"a".repeat(300)] {
            let (code, message) = ground.call(command, container).failed();
            assert_eq!(code, 4, "{message}");
            assert!(message.contains("CNI_CONTAINERID"), "{message}");
        }
        for interface in ["", ".", "..", "a/b", "eth 0", "eth\0", "sixteen-bytes-xx", "a:b"] {
            let call = Call { interface: interface.to_owned(), ..ground.call(command, "c1") };
            let (code, message) = call.failed();
            assert_eq!(code, 4, "{message}");
            assert!(message.contains("CNI_IFNAME"), "{message}");
        }
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_2_input_that_is_none_has_the_code_of_the_specification() {
    let machine = Machine::new("cni-fault-2");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    let add = ground.call("ADD", "c1");
    let whole = add.config.to_string().into_bytes();
    for cut in 0..whole.len() {
        assert_eq!(failure(&add.outcome_of(whole[..cut].to_vec())).0, 6, "cut at {cut}");
    }
    for (key, value, expected) in [
        ("cniVersion", json!("0.2.0"), 1),
        ("cniVersion", json!("2.0.0"), 1),
        ("somethingNew", json!({"deep": [1]}), 2),
        ("name", json!("a/b"), 7),
        ("network", json!("nowhere"), 7),
        ("runtimeConfig", json!({"portMappings": [{"hostPort": 99999}]}), 7),
        ("runtimeConfig", json!({"ips": ["192.0.2.1"]}), 7),
        ("runtimeConfig", json!({"mac": "ff:ff:ff:ff:ff:ff"}), 7),
    ] {
        let (code, message) = add.clone().with(key, value.clone()).failed();
        assert_eq!(code, expected, "{key} {value}: {message}");
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_3_add_where_the_interface_exists_is_an_error_and_changes_nothing() {
    let machine = Machine::new("cni-fault-3");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let _agent = machine.agent();
    let add = Call::new(&machine, "ADD", "c1", &netns(&pods[0]));
    add.done();
    let before = links(pods[0].namespace());
    let (code, message) = add.failed();
    assert_eq!(code, 100, "{message}");
    assert!(message.contains("eth0"), "{message}");
    assert_eq!(links(pods[0].namespace()), before);
    pods[0].ping("10.75.0.1").unwrap();

    // One that someone else made.
    pods[1].namespace().ip(&["link", "add", "eth0", "type", "bridge"]);
    let before = Dump::settled(pods[1].namespace());
    let (code, message) = Call::new(&machine, "ADD", "c2", &netns(&pods[1])).failed();
    assert!(code >= 100, "{code}: {message}");
    assert!(message.contains("eth0"), "{message}");
    before.assert_unchanged(pods[1].namespace());
}

#[test]
fn fault_4_del_of_what_is_not_there_succeeds() {
    let machine = Machine::new("cni-fault-4");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    ground.call("DEL", "never").done();
    Call { netns: String::new(), ..ground.call("DEL", "never") }.done();
    for netns_of_del in [netns(&pod), String::new(), "/run/netns/gone".to_owned()] {
        let result = ground.call("ADD", "c1").done();
        // Without a namespace or prevResult, then again in every form.
        let del = Call { netns: netns_of_del.clone(), ..ground.call("DEL", "c1") };
        del.done();
        if netns_of_del.starts_with("/run") {
            // That one is another life's: this is the one that is meant.
            ground.call("DEL", "c1").done();
        }
        assert_eq!(agent.used(), 0, "{netns_of_del}");
        del.done();
        del.with("prevResult", result).done();
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_5_what_comes_late_does_not_touch_what_came_after() {
    let machine = Machine::new("cni-fault-5");
    let pods = ["old", "new"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u1";
    let call = |command, container: &str, pod: &Pod| Call {
        args: args.to_owned(),
        ..Call::new(&machine, command, container, &netns(pod))
    };
    call("ADD", "old", &pods[0]).done();
    let fresh = addresses(&call("ADD", "new", &pods[1]).done());
    call("DEL", "old", &pods[0]).done();
    call("DEL", "old", &pods[0]).done();
    pods[1].ping("10.75.0.1").unwrap();
    // Also one that names the new one's id with the old one's namespace.
    call("DEL", "new", &pods[0]).done();
    pods[1].ping("10.75.0.1").unwrap();
    assert_eq!(agent.pod("new").unwrap().interfaces[0].addresses[0].address, fresh[0]);
    call("DEL", "new", &pods[1]).done();

    // An ADD that began before its DEL and is heard after it.
    let late = call("ADD", "gone", &pods[0]);
    call("DEL", "gone", &pods[0]).done();
    let (code, message) = late.failed();
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("too late"), "{message}");
    assert_eq!(agent.used(), 0);
    // One that began afterwards is meant.
    call("ADD", "gone", &pods[0]).done();
}

#[test]
fn fault_6_a_path_that_is_no_pods_namespace_is_refused_at_once() {
    let machine = Machine::new("cni-fault-6");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    let (file, fifo) = (machine.path("file"), machine.path("fifo"));
    std::fs::write(&file, "").unwrap();
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let host = format!("/proc/{}/ns/net", agent.pid());
    for path in [host, file.display().to_string(), fifo.display().to_string(), "/run/netns/gone".to_owned()] {
        let began = Instant::now();
        let (code, message) = Call { netns: path.clone(), ..ground.call("ADD", "c1") }.failed();
        assert!(matches!(code, 3 | 4), "{path}: {code} {message}");
        assert!(began.elapsed() < Duration::from_secs(10), "{path}");
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_7_gc_during_add_comes_before_or_after_it() {
    let machine = Machine::new("cni-fault-7");
    let pods: Vec<Pod> = (0..20).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    std::thread::scope(|scope| {
        let adds: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(number, pod)| {
                let add = Call::new(&machine, "ADD", &format!("c{number}"), &netns(pod));
                scope.spawn(move || add.outcome())
            })
            .collect();
        let socket = machine.path("cni.sock");
        let collects =
            scope.spawn(move || (0..20).all(|_| Call::on(socket.clone(), "GC", "", "").outcome().success));
        for (add, pod) in adds.into_iter().zip(&pods) {
            // It worked, and was collected afterwards or not: there is no half.
            let outcome = add.join().unwrap();
            assert!(outcome.success, "{}", outcome.output);
            let there = links(pod.namespace());
            assert!(!there.contains("eth0") || there.contains("10.75."), "{there}");
        }
        assert!(collects.join().unwrap());
    });
    Call::new(&machine, "GC", "", "").done();
    assert_eq!(agent.used(), 0);
    let log = machine.log();
    assert!(log.lines().any(|line| line.contains("collected")), "{log}");
}

#[test]
fn fault_8_check_names_what_is_missing() {
    let machine = Machine::new("cni-fault-8");
    let pod = machine.testbed.pod("one");
    // It would be repaired otherwise.
    let agent = machine.agent_with(&["--resync-seconds", "86400"], &[]);
    let add = Call::new(&machine, "ADD", "c1", &netns(&pod));
    let result = add.done();
    let check = Call { command: "CHECK", ..add.clone().with("prevResult", result.clone()) };
    check.done();
    let address = addresses(&result)[0].clone();
    let inside = pod.namespace();
    for (break_it, word) in [
        (vec!["route", "del", "default"], "+ route 0.0.0.0/0"),
        (vec!["addr", "del", result["ips"][0]["address"].as_str().unwrap(), "dev", "eth0"], address.as_str()),
        (vec!["link", "set", "eth0", "down"], "eth0"),
        // One that is deleted takes its end on the host along, which the kernel tells, and is there again at once.
        (vec!["link", "set", "eth0", "name", "other0"], "eth0"),
    ] {
        inside.ip(&break_it);
        let (code, message) = check.failed();
        assert_eq!(code, 102, "{break_it:?}: {message}");
        assert!(message.contains(word), "{break_it:?}: {message}");
    }
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.75.99.99/16");
    Call { command: "DEL", began: knit_cni::since_boot(), ..add.clone() }.done();
    let (code, message) = check.failed();
    assert_eq!(code, 3, "{message}");
    Call { began: knit_cni::since_boot(), ..add.clone() }.done();
    let (code, message) = check.with("prevResult", other).failed();
    assert_eq!(code, 102, "{message}");
    assert!(message.contains("lease of 10.75.99.99/16"), "{message}");
    let (code, _) = Call { command: "CHECK", ..add }.failed();
    assert_eq!(code, 7, "without the result of the ADD");
    assert_eq!(agent.used(), 2);
}

#[test]
fn fault_9_a_shim_that_is_killed_leaves_nothing() {
    let machine = Machine::new("cni-fault-9");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    for number in 0..20 {
        let mut request = attach(&format!("c{number}"), &netns(&pod));
        request.group = "cni:test".to_owned();
        let mut stream = UnixStream::connect(machine.path("cni.sock")).unwrap();
        stream.write_all(&frame::encode(&frame::call("Attach", &request, 0))).unwrap();
        std::thread::sleep(Duration::from_micros(number * 100));
    }
    eventually("what was begun is taken back", Duration::from_secs(10), || agent.used() == 0);
    ground.assert_clean(&agent);
}

#[test]
fn fault_10_messages_that_are_none_are_refused_and_bounded() {
    let machine = Machine::new("cni-fault-10");
    let agent = machine.agent();
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(machine.path("cni.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut header = [0; frame::HEADER];
        std::io::Read::read_exact(&mut stream, &mut header).unwrap();
        let mut reply = vec![0; frame::length(header, 1 << 20).unwrap()];
        std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
        <v1::FramedReply as prost::Message>::decode(reply.as_slice()).unwrap()
    };
    assert_eq!(say(&[0xff; 8]).code, 3, "four gigabytes");
    assert_eq!(say(&[0, 0, 0, 2, 0xff, 0xff]).code, 3);
    let unknown = frame::call("Explode", &v1::GetPodRequest::default(), 0);
    assert_eq!(say(&frame::encode(&unknown)).code, 12);
    let silent: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(machine.path("cni.sock")).unwrap()).collect();
    Call::new(&machine, "STATUS", "", "").done();
    drop(silent);
    assert!(agent.is_running());
}

#[test]
fn fault_12_two_hundred_adds_at_once_have_two_hundred_addresses() {
    let machine = Machine::new("cni-fault-12");
    let pods: Vec<Pod> = (0..200).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    let results: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(number, pod)| {
                let add = Call::new(&machine, "ADD", &format!("c{number}"), &netns(pod));
                scope.spawn(move || add.done())
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let unique: BTreeSet<String> = results.iter().flat_map(addresses).collect();
    assert_eq!(unique.len(), 400);
    let threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().count();
    assert!(threads < 20, "{threads} threads");
    for number in 0..200 {
        Call::new(&machine, "DEL", &format!("c{number}"), "").done();
    }
    assert_eq!(agent.used(), 0);
}

#[test]
fn fault_17_an_agent_that_is_away_is_try_again_later_within_the_deadline() {
    let machine = Machine::new("cni-fault-17");
    let pod = machine.testbed.pod("one");
    let call = |command, seconds: u64| {
        Call::new(&machine, command, "c1", &netns(&pod)).with("timeoutSeconds", seconds)
    };
    let away = |why: &str| {
        for (command, expected) in [("ADD", 11), ("DEL", 11), ("GC", 11), ("STATUS", 50)] {
            let began = Instant::now();
            let (code, message) = call(command, 1).failed();
            assert_eq!(code, expected, "{why}: {command}: {message}");
            assert!(began.elapsed() < Duration::from_secs(10), "{why}: {command}");
        }
    };
    away("never started");
    let agent = machine.agent();
    agent.signal(Signal::SIGSTOP);
    away("hangs");
    agent.signal(Signal::SIGCONT);
    eventually("what was asked meanwhile is done", Duration::from_secs(10), || agent.used() == 0);
    call("ADD", 20).done();
    agent.crash();
    away("crashed");
    let agent = machine.agent();
    call("DEL", 20).done();
    assert_eq!(agent.used(), 0);
}
