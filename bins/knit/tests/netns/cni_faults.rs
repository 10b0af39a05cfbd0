//! Faults of CNI calls, numbered as in the list of faults.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::agent::{Agent, Machine, attach, netns, ports};
use crate::support::cni::{CniCall, addresses, error_of};
use crate::support::process_peaks::{Usage, peaks_during};
use knit_kni::{frame, v1};
use knit_testbed::{Dump, Namespace, Pod, eventually};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use serde_json::json;

/// A host and a pod, with dumps of both from before the test.
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

    fn call(&self, command: &'static str, container: &str) -> CniCall {
        CniCall::new(self.machine, command, container, &netns(self.pod))
    }

    /// Asserts that nothing is left of the calls.
    fn assert_clean(&self, agent: &Agent<'_>) {
        assert_eq!(agent.used_addresses(), 0);
        eventually("the links are deleted", Duration::from_secs(20), || ports(&self.machine.host) == 0);
        self.host.assert_unchanged(&self.machine.host);
        self.inside.assert_unchanged(self.pod.namespace());
    }
}

fn links(namespace: &Namespace) -> String {
    namespace.ip(&["-o", "addr"])
}

#[test]
fn fault_1_invalid_values_are_rejected_with_their_name() {
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
            let call = CniCall { interface: interface.to_owned(), ..ground.call(command, "c1") };
            let (code, message) = call.failed();
            assert_eq!(code, 4, "{message}");
            assert!(message.contains("CNI_IFNAME"), "{message}");
        }
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_2_invalid_input_has_the_error_code_of_the_specification() {
    let machine = Machine::new("cni-fault-2");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    let add = ground.call("ADD", "c1");
    let whole = add.config.to_string().into_bytes();
    for cut in 0..whole.len() {
        assert_eq!(error_of(&add.outcome_of(whole[..cut].to_vec())).0, 6, "cut at {cut}");
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
fn fault_3_add_of_an_existing_interface_fails_and_changes_nothing() {
    let machine = Machine::new("cni-fault-3");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let _agent = machine.agent();
    let add = CniCall::new(&machine, "ADD", "c1", &netns(&pods[0]));
    add.succeeded();
    let before = links(pods[0].namespace());
    let (code, message) = add.failed();
    assert_eq!(code, 100, "{message}");
    assert!(message.contains("eth0"), "{message}");
    assert_eq!(links(pods[0].namespace()), before);
    pods[0].ping("10.75.0.1").unwrap();

    // An interface that Knit did not create.
    pods[1].namespace().ip(&["link", "add", "eth0", "type", "bridge"]);
    let before = Dump::settled(pods[1].namespace());
    let (code, message) = CniCall::new(&machine, "ADD", "c2", &netns(&pods[1])).failed();
    assert!(code >= 100, "{code}: {message}");
    assert!(message.contains("eth0"), "{message}");
    before.assert_unchanged(pods[1].namespace());
}

#[test]
fn fault_4_del_of_a_missing_interface_succeeds() {
    let machine = Machine::new("cni-fault-4");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    ground.call("DEL", "never").succeeded();
    CniCall { netns: String::new(), ..ground.call("DEL", "never") }.succeeded();
    for netns_of_del in [netns(&pod), String::new(), "/run/netns/gone".to_owned()] {
        let result = ground.call("ADD", "c1").succeeded();
        // Without a netns or prevResult, then repeated in all forms.
        let del = CniCall { netns: netns_of_del.clone(), ..ground.call("DEL", "c1") };
        del.succeeded();
        if netns_of_del.starts_with("/run") {
            // The former is a late call for the old sandbox; this is the DEL of the current one.
            ground.call("DEL", "c1").succeeded();
        }
        assert_eq!(agent.used_addresses(), 0, "{netns_of_del}");
        del.succeeded();
        del.with("prevResult", result).succeeded();
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_5_a_late_del_does_not_affect_a_newer_add() {
    let machine = Machine::new("cni-fault-5");
    let pods = ["old", "new"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u1";
    let call = |command, container: &str, pod: &Pod| CniCall {
        args: args.to_owned(),
        ..CniCall::new(&machine, command, container, &netns(pod))
    };
    call("ADD", "old", &pods[0]).succeeded();
    let fresh = addresses(&call("ADD", "new", &pods[1]).succeeded());
    call("DEL", "old", &pods[0]).succeeded();
    call("DEL", "old", &pods[0]).succeeded();
    pods[1].ping("10.75.0.1").unwrap();
    // Also with the id of the new sandbox and the netns of the old one.
    call("DEL", "new", &pods[0]).succeeded();
    pods[1].ping("10.75.0.1").unwrap();
    assert_eq!(agent.pod("new").unwrap().interfaces[0].addresses[0].address, fresh[0]);
    call("DEL", "new", &pods[1]).succeeded();

    // An ADD that started before its DEL and arrives after it.
    let late = call("ADD", "gone", &pods[0]);
    call("DEL", "gone", &pods[0]).succeeded();
    let (code, message) = late.failed();
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("too late"), "{message}");
    assert_eq!(agent.used_addresses(), 0);
    // An ADD that started after the DEL succeeds.
    call("ADD", "gone", &pods[0]).succeeded();
}

#[test]
fn fault_6_a_path_that_is_not_a_netns_is_rejected() {
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
        let (code, message) = CniCall { netns: path.clone(), ..ground.call("ADD", "c1") }.failed();
        assert!(matches!(code, 3 | 4), "{path}: {code} {message}");
        assert!(began.elapsed() < Duration::from_secs(10), "{path}");
    }
    ground.assert_clean(&agent);
}

#[test]
fn fault_7_gc_and_add_are_serialized() {
    let machine = Machine::new("cni-fault-7");
    let pods: Vec<Pod> = (0..20).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    std::thread::scope(|scope| {
        let adds: Vec<_> = pods
            .iter()
            .enumerate()
            .map(|(number, pod)| {
                let add = CniCall::new(&machine, "ADD", &format!("c{number}"), &netns(pod));
                scope.spawn(move || add.outcome())
            })
            .collect();
        let socket = machine.path("cni.sock");
        let collects =
            scope.spawn(move || (0..20).all(|_| CniCall::on(socket.clone(), "GC", "", "").outcome().success));
        for (add, pod) in adds.into_iter().zip(&pods) {
            // The ADD succeeded and was collected afterwards or not: there is no partial state.
            let outcome = add.join().unwrap();
            assert!(outcome.success, "{}", outcome.output);
            let there = links(pod.namespace());
            assert!(!there.contains("eth0") || there.contains("10.75."), "{there}");
        }
        assert!(collects.join().unwrap());
    });
    CniCall::new(&machine, "GC", "", "").succeeded();
    assert_eq!(agent.used_addresses(), 0);
    let log = machine.log();
    assert!(log.lines().any(|line| line.contains("collected")), "{log}");
}

#[test]
fn fault_8_check_reports_what_is_missing() {
    let machine = Machine::new("cni-fault-8");
    let pod = machine.testbed.pod("one");
    // Otherwise the agent would repair it.
    let agent = machine.agent_with(&["--resync-seconds", "86400"], &[]);
    let add = CniCall::new(&machine, "ADD", "c1", &netns(&pod));
    let result = add.succeeded();
    let check = CniCall { command: "CHECK", ..add.clone().with("prevResult", result.clone()) };
    check.succeeded();
    let address = addresses(&result)[0].clone();
    let inside = pod.namespace();
    for (break_it, word) in [
        (vec!["route", "del", "default"], "+ route 0.0.0.0/0"),
        (vec!["addr", "del", result["ips"][0]["address"].as_str().unwrap(), "dev", "eth0"], address.as_str()),
        (vec!["link", "set", "eth0", "down"], "eth0"),
        // Deleting the pod side of a veth deletes the host side; the agent is notified and recreates both.
        (vec!["link", "set", "eth0", "name", "other0"], "eth0"),
    ] {
        inside.ip(&break_it);
        let (code, message) = check.failed();
        assert_eq!(code, 102, "{break_it:?}: {message}");
        assert!(message.contains(word), "{break_it:?}: {message}");
    }
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.75.99.99/16");
    CniCall { command: "DEL", started_at: knit_cni::boot_time_nanos(), ..add.clone() }.succeeded();
    let (code, message) = check.failed();
    assert_eq!(code, 3, "{message}");
    CniCall { started_at: knit_cni::boot_time_nanos(), ..add.clone() }.succeeded();
    let (code, message) = check.with("prevResult", other).failed();
    assert_eq!(code, 102, "{message}");
    assert!(message.contains("lease of 10.75.99.99/16"), "{message}");
    let (code, _) = CniCall { command: "CHECK", ..add }.failed();
    assert_eq!(code, 7, "without the result of the ADD");
    assert_eq!(agent.used_addresses(), 2);
}

#[test]
fn fault_9_a_killed_plugin_leaves_nothing() {
    let machine = Machine::new("cni-fault-9");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let ground = Ground::new(&machine, &pod);
    let (mut killed, mut answered) = (0, 0);
    let mut wait = Duration::from_micros(100);
    // From before the agent reads the call until after its reply, however fast the machine is.
    for number in 0..100 {
        wait = wait.mul_f32(1.15);
        let container = format!("c{number}");
        let mut request = attach(&container, &netns(&pod));
        request.group = "cni:test".to_owned();
        let mut stream = UnixStream::connect(machine.path("cni.sock")).unwrap();
        stream.write_all(&frame::encode(&frame::call("Attach", &request, 0))).unwrap();
        std::thread::sleep(wait);
        stream.set_nonblocking(true).unwrap();
        let is_answered = stream.read(&mut [0; frame::HEADER_LEN]).is_ok();
        drop(stream);
        // The reply may have been on its way: then the attach is complete until the runtime deletes it.
        let is_attached = || machine.log().contains(&format!("sandbox {container} ifname=eth0"));
        eventually("it is complete or rolled back", Duration::from_secs(10), || {
            is_attached() || agent.used_addresses() == 0
        });
        let is_complete = is_answered || is_attached();
        if is_complete {
            agent.delete(&container);
        }
        eventually("no lease is held", Duration::from_secs(10), || agent.used_addresses() == 0);
        (killed, answered) = (killed + u32::from(!is_complete), answered + u32::from(is_answered));
        if answered == 3 {
            break;
        }
    }
    assert!(killed > 10 && answered == 3, "{killed} calls were cut short and {answered} answered");
    ground.assert_clean(&agent);
}

#[test]
fn fault_10_invalid_messages_are_rejected_with_bounded_memory() {
    let machine = Machine::new("cni-fault-10");
    let agent = machine.agent();
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(machine.path("cni.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut header = [0; frame::HEADER_LEN];
        stream.read_exact(&mut header).unwrap();
        let mut reply = vec![0; frame::payload_len(header, 1 << 20).unwrap()];
        stream.read_exact(&mut reply).unwrap();
        <v1::FramedReply as prost::Message>::decode(reply.as_slice()).unwrap()
    };
    assert_eq!(say(&[0xff; 8]).code, 3, "four gigabytes");
    assert_eq!(say(&[0, 0, 0, 2, 0xff, 0xff]).code, 3);
    let unknown = frame::call("Explode", &v1::GetPodRequest::default(), 0);
    assert_eq!(say(&frame::encode(&unknown)).code, 12);
    // Long calls whose last byte never follows.
    let before = Usage::of(agent.pid());
    let longest = 4_u32 << 20;
    let part = vec![0; longest as usize - 1];
    let (unfinished, peaks) = peaks_during(agent.pid(), || {
        let send = |_| {
            let mut stream = UnixStream::connect(machine.path("cni.sock")).unwrap();
            stream.write_all(&longest.to_be_bytes()).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            // A call that the agent does not read yet fills the socket's buffer.
            (stream.write_all(&part).is_err(), stream)
        };
        let unfinished: Vec<(bool, UnixStream)> = (0..60).map(send).collect();
        CniCall::new(&machine, "STATUS", "", "").succeeded();
        unfinished
    });
    let waiting = unfinished.iter().filter(|(is_waiting, _)| *is_waiting).count();
    assert_eq!(waiting, 56, "sixteen mebibytes are four such calls");
    assert!(peaks.kilobytes < before.kilobytes + (24 << 10), "{before:?} became {peaks:?}");
    drop(unfinished);
    let silent: Vec<UnixStream> =
        (0..500).map(|_| UnixStream::connect(machine.path("cni.sock")).unwrap()).collect();
    CniCall::new(&machine, "STATUS", "", "").succeeded();
    drop(silent);
    assert!(agent.is_running());
}

#[test]
fn fault_12_two_hundred_concurrent_adds_have_distinct_addresses_and_start_no_threads() {
    let machine = Machine::new("cni-fault-12");
    let pods: Vec<Pod> = (0..200).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    let before = Usage::of(agent.pid());
    let add_all = || -> Vec<_> {
        std::thread::scope(|scope| {
            let calls: Vec<_> = pods
                .iter()
                .enumerate()
                .map(|(number, pod)| {
                    let add = CniCall::new(&machine, "ADD", &format!("c{number}"), &netns(pod));
                    scope.spawn(move || add.succeeded())
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    };
    let (results, peaks) = peaks_during(agent.pid(), add_all);
    let unique: BTreeSet<String> = results.iter().flat_map(addresses).collect();
    assert_eq!(unique.len(), 400);
    assert!(peaks.threads <= before.threads + 4, "{before:?} became {peaks:?}");
    for number in 0..200 {
        CniCall::new(&machine, "DEL", &format!("c{number}"), "").succeeded();
    }
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn fault_17_an_unreachable_agent_is_try_again_later_within_the_timeout() {
    let machine = Machine::new("cni-fault-17");
    let pod = machine.testbed.pod("one");
    let call = |command, seconds: u64| {
        CniCall::new(&machine, command, "c1", &netns(&pod)).with("timeoutSeconds", seconds)
    };
    let assert_unreachable = |state: &str| {
        for (command, expected) in [("ADD", 11), ("DEL", 11), ("GC", 11), ("STATUS", 50)] {
            let began = Instant::now();
            let (code, message) = call(command, 1).failed();
            assert_eq!(code, expected, "{state}: {command}: {message}");
            assert!(began.elapsed() < Duration::from_secs(10), "{state}: {command}");
        }
    };
    assert_unreachable("never started");
    let agent = machine.agent();
    agent.signal(Signal::SIGSTOP);
    assert_unreachable("hangs");
    agent.signal(Signal::SIGCONT);
    eventually("the pending call is done", Duration::from_secs(10), || agent.used_addresses() == 0);
    call("ADD", 20).succeeded();
    agent.crash();
    assert_unreachable("crashed");
    let agent = machine.agent();
    call("DEL", 20).succeeded();
    assert_eq!(agent.used_addresses(), 0);
}
