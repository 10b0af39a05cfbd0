//! Faults of a running agent: restarts, cancelled calls, wrong peers, damaged state, full disk. Nothing is left behind.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::agent::{Machine, addresses, attach, netns, ports, runtime};
use crate::support::process_peaks::{Usage, peaks_during};
use knit_kni::{Client, Reason, v1};
use knit_testbed::{Dump, Pod, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Threads that a load may add: the async runtime starts some for blocking work, and ends them after ten seconds.
const MAX_NEW_THREADS: usize = 4;

#[test]
fn a_restart_drops_no_packet_and_keeps_all_leases() {
    let machine = Machine::new("agent-restart");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    agent.attach("s1", &pods[0]);
    let target = addresses(&agent.attach("s2", &pods[1]), "eth0")[0].clone();
    // The kernel reports the carrier of a new link with a delay.
    let look = || machine.host.ip(&["-o", "link"]);
    let mut links = look();
    eventually("the links are stable", Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(1_200));
        let before = std::mem::replace(&mut links, look());
        before == links
    });
    // It ends when it is interrupted, or after a minute.
    let mut command = pods[0].namespace().command("ping");
    command.args(["-n", "-i", "0.02", "-c", "3000", "-W", "1", &target]).stdout(Stdio::piped());
    let mut ping = command.spawn().unwrap();
    assert_eq!(agent.stop(), Some(0));
    let agent = machine.agent();
    agent.crash();
    let agent = machine.agent();
    assert!(ping.try_wait().unwrap().is_none(), "the traffic ended before the restarts");
    kill(Pid::from_raw(i32::try_from(ping.id()).unwrap()), Signal::SIGINT).unwrap();
    let output = ping.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    assert_eq!(look(), links);
    assert_eq!(addresses(&agent.attach("s2", &pods[1]), "eth0")[0], target);
}

#[test]
fn a_client_that_disconnects_during_a_call_leaves_nothing() {
    let machine = Machine::new("agent-gone");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    let (mut cut, mut completed) = (0, 0);
    let mut wait = Duration::from_micros(100);
    // From before the request until after the response, however fast the machine is.
    for round in 0..100 {
        wait = wait.mul_f32(1.15);
        let id = format!("gone-{round}");
        let (socket, request) = (agent.socket(), attach(&id, &netns(&pod)));
        let in_time = runtime().block_on(async move {
            let mut client = Client::connect(socket).await.unwrap();
            // Dropping the future resets the stream, like the death of a client.
            tokio::time::timeout(wait, client.attach(request)).await.is_ok()
        });
        // Completed attaches stay until they are deleted; the others are rolled back.
        let attached =
            || machine.log().lines().any(|line| line.contains(&format!("sandbox {id} ifname=eth0")));
        eventually("it has a response or holds no lease", Duration::from_secs(5), || {
            attached() || agent.used_addresses() == 0
        });
        if attached() {
            agent.delete(&id);
        }
        cut += u32::from(!in_time);
        completed += u32::from(in_time);
        eventually("no lease is held", Duration::from_secs(5), || agent.used_addresses() == 0);
        if completed == 3 {
            break;
        }
    }
    assert!(cut > 10 && completed == 3, "{cut} calls were cut short and {completed} completed");
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());
}

#[test]
fn two_hundred_concurrent_attaches_have_distinct_addresses_and_start_no_threads() {
    let machine = Machine::new("agent-200");
    let pods: Vec<Pod> = (0..200).map(|number| machine.testbed.pod(&format!("p{number}"))).collect();
    let agent = machine.agent();
    let before = Usage::of(agent.pid());
    let paths: Vec<String> = pods.iter().map(netns).collect();
    let attach_all = |client: Client| async move {
        let mut calls = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let (mut client, request) = (client.clone(), attach(&format!("p{number}"), path));
            calls.push(tokio::spawn(async move { client.attach(request).await }));
        }
        let mut given = BTreeSet::new();
        for call in calls {
            given.extend(addresses(&call.await.unwrap().unwrap(), "eth0"));
        }
        given
    };
    let (given, peaks) = peaks_during(agent.pid(), || agent.with(attach_all));
    assert_eq!(given.len(), 400);
    assert!(peaks.threads <= before.threads + MAX_NEW_THREADS, "{before:?} became {peaks:?}");
    assert_eq!(agent.used_addresses(), 400);
    pods[199].ping("10.75.0.1").unwrap();
}

#[test]
fn oversized_messages_are_rejected_without_memory_growth() {
    let machine = Machine::new("agent-huge");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let before = Usage::of(agent.pid());
    let ((), peaks) = peaks_during(agent.pid(), || {
        for _ in 0..20 {
            let mut request = attach("sb1", &netns(&pod));
            request.group = "x".repeat(6 << 20);
            assert!(agent.try_attach(request).is_err());
        }
    });
    let mut request = attach("sb1", &netns(&pod));
    request.interfaces = vec![v1::InterfaceSpec::default(); 1_000];
    let error = agent.try_attach(request).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::InvalidValue), "{error}");
    assert!(peaks.kilobytes < before.kilobytes + 16_384, "{before:?} became {peaks:?}");
    agent.attach("sb1", &pod);
}

#[test]
fn a_peer_with_wrong_credentials_is_rejected_and_logged() {
    let machine = Machine::new("agent-peer");
    let agent = machine.agent();
    let socket = agent.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // The agent checks peer credentials even if the socket's mode lets other users connect.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(machine.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = machine.path("knit");
    std::fs::copy(env!("CARGO_BIN_EXE_knit"), &program).unwrap();
    let mut command = machine.host.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    let output = command.arg(&program).arg("pods").env("KNIT_KNI_SOCKET", &socket).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains("65534"), "{printed}");
    eventually("it is reported", Duration::from_secs(5), || {
        machine.log().contains("because of the peer\'s credentials")
    });
}

#[test]
fn drift_is_repaired_and_reported() {
    let machine = Machine::new("agent-hand");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    agent.attach("sb1", &pod);
    pod.ip(&["address", "del", "10.75.0.2/16", "dev", "eth0"]);
    pod.ip(&["link", "set", "eth0", "mtu", "1300"]);
    machine.host.ip(&["rule", "del", "to", "10.75.0.0/16", "table", "7500"]);
    eventually("everything is as it was", Duration::from_secs(10), || {
        let shown = pod.ip(&["-o", "address", "show", "dev", "eth0"])
            + &pod.ip(&["-o", "link", "show", "dev", "eth0"]);
        shown.contains("10.75.0.2/16")
            && shown.contains("mtu 1500")
            && machine.host.ip(&["rule"]).contains("to 10.75.0.0/16")
    });
    pod.ping("10.75.0.1").unwrap();
    machine.host.ip(&["link", "del", "knit0"]);
    eventually("the bridge is back, with its port", Duration::from_secs(10), || {
        pod.namespace().output("ping", &["-n", "-c", "1", "-W", "1", "10.75.0.1"]).is_ok()
    });
    eventually("it is reported", Duration::from_secs(5), || machine.log().contains("drift repaired"));
}

#[test]
fn an_open_netns_does_not_block_a_detach() {
    let machine = Machine::new("agent-held");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.attach("sb1", &pod);
    // The testbed holds the netns by name, so it outlives the process of the pod.
    pod.holder().stop().unwrap();
    let began = Instant::now();
    let response = agent.delete("sb1");
    assert!(response || agent.used_addresses() == 0);
    assert!(began.elapsed() < Duration::from_secs(10));
    eventually("it is disconnected", Duration::from_secs(5), || {
        ports(&machine.host) == 0 && agent.used_addresses() == 0
    });
}

#[test]
fn a_truncated_or_lost_state_is_survived_and_a_second_agent_is_rejected() {
    let machine = Machine::new("agent-state");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let given = addresses(&agent.attach("sb1", &pod), "eth0");
    agent.crash();
    // The journal is truncated.
    let journal = machine.path("state").join("journal");
    let text = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() - 7]).unwrap();
    let agent = machine.agent();
    assert_eq!(addresses(&agent.attach("sb1", &pod), "eth0"), given);
    pod.ping("10.75.0.1").unwrap();
    agent.crash();
    // The whole journal is lost: orphaned links are removed, and recreated on request.
    std::fs::remove_dir_all(machine.path("state")).unwrap();
    let agent = machine.agent();
    assert_eq!(agent.used_addresses(), 0);
    eventually("orphaned links are removed", Duration::from_secs(5), || ports(&machine.host) == 0);
    agent.attach("sb1", &pod);
    pod.ping("10.75.0.1").unwrap();
    // A second agent and a command with the same state directory are rejected.
    let mut second = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    second.args(["agent", "--kni-socket", "/nonexistent/x.sock", "--metrics-addr", "", "--health-addr", ""]);
    let output = second.arg("--state-dir").arg(machine.path("state")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains(&agent.pid().to_string()), "{printed}");
    assert!(agent.is_ready());
}

/// A small tmpfs for the state, unmounted on drop.
struct Disk(std::path::PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_is_reported_and_the_agent_recovers() {
    let machine = Machine::new("agent-disk");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let state = crate::support::agent::folder(&machine.path("state"));
    let options = Some("size=1m");
    nix::mount::mount(Some("tmpfs"), &state, Some("tmpfs"), nix::mount::MsFlags::empty(), options).unwrap();
    let _disk = Disk(state.clone());
    let agent = machine.agent();
    agent.attach("s1", &pods[0]);
    let mut filler = std::fs::File::create(state.join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    // The last page of the journal may have space for a few more records.
    let mut error = None;
    for number in 0..200 {
        match agent.try_attach(attach(&format!("x{number}"), &netns(&pods[1]))) {
            Ok(_) => drop(agent.delete(&format!("x{number}"))),
            Err(rejected) => {
                error = Some(rejected);
                break;
            }
        }
    }
    let error = error.expect("an attach fails on a full disk");
    assert!(error.may_retry(), "{error}");
    assert!(agent.is_running(), "{}", machine.log());
    pods[0].ping("10.75.0.1").unwrap();
    drop(filler);
    std::fs::remove_file(state.join("filler")).unwrap();
    eventually("an attach succeeds again", Duration::from_secs(15), || {
        agent.try_attach(attach("s2", &netns(&pods[1]))).is_ok()
    });
    pods[1].ping("10.75.0.2").unwrap();
    assert_eq!(agent.used_addresses(), 4, "rejected attaches hold no lease: {}", machine.log());
}
