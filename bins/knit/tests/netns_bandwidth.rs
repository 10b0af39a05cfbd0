//! Bandwidth limits with real traffic. A program of its own: it measures throughput, which tests in parallel would distort.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    #[path = "../netns/support/agent.rs"]
    pub mod agent;
}

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use knit_kni::{Reason, v1};
use knit_testbed::{Dump, Pod, eventually};
use support::agent::{Machine, addresses, attach, netns, ports};

/// The limit: 20 Mbit/s.
const LIMIT: u64 = 20_000_000;
/// The minimum throughput of an unlimited pod.
const PLENTY: f64 = 200_000_000.0;

/// The throughput between two pods in bits per second, after the first burst.
fn throughput(from: &Pod, to: &Pod, address: &str) -> f64 {
    let listener = to.namespace().run(|| TcpListener::bind((address, 0))).unwrap();
    let target = listener.local_addr().unwrap();
    let sink = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut buffer, mut bytes, mut since) = (vec![0; 1 << 16], 0, None);
        let began = Instant::now();
        loop {
            let read = stream.read(&mut buffer).unwrap();
            if read == 0 {
                let since: Instant = since.unwrap();
                return bytes as f64 * 8.0 / since.elapsed().as_secs_f64();
            }
            if began.elapsed() > Duration::from_millis(300) {
                since.get_or_insert_with(Instant::now);
                bytes += read;
            }
        }
    });
    let mut stream = from.namespace().run(|| TcpStream::connect(target)).unwrap();
    let until = Instant::now() + Duration::from_millis(1_300);
    let data = vec![0; 1 << 14];
    while Instant::now() < until {
        stream.write_all(&data).unwrap();
    }
    // Data in flight would be counted with time in which nothing was sent.
    drop(stream);
    sink.join().unwrap()
}

#[track_caller]
fn assert_near(throughput: f64, limit: u64) {
    let share = throughput / limit as f64;
    assert!((0.6..1.2).contains(&share), "{:.1} Mbit/s at a limit of {} bits", throughput / 1e6, limit);
}

fn limited(id: &str, pod: &Pod, ingress: &str, egress: &str) -> v1::AttachRequest {
    let mut request = attach(id, &netns(pod));
    let printed =
        [("ingress", ingress), ("egress", egress)].into_iter().filter(|(_, limit)| !limit.is_empty());
    request.sandbox.as_mut().unwrap().annotations = printed
        .map(|(direction, limit)| (format!("kubernetes.io/{direction}-bandwidth"), limit.to_owned()))
        .collect();
    request
}

#[test]
fn bandwidth_limits_apply_in_both_directions() {
    let machine = Machine::new("limits-speed");
    let pods = ["slow", "one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pods[0].namespace()));
    let given = agent.try_attach(limited("slow", &pods[0], "20M", "20M")).unwrap();
    let slow = addresses(&given, "eth0")[0].clone();
    let one = addresses(&agent.attach("one", &pods[1]), "eth0")[0].clone();
    let two = addresses(&agent.attach("two", &pods[2]), "eth0")[0].clone();
    assert_near(throughput(&pods[1], &pods[0], &slow), LIMIT);
    assert_near(throughput(&pods[0], &pods[1], &one), LIMIT);
    let free = throughput(&pods[1], &pods[2], &two);
    assert!(free > PLENTY, "{:.1} Mbit/s without a limit", free / 1e6);
    let shown = agent.pod("slow").unwrap().interfaces[0].bandwidth.unwrap();
    assert_eq!((shown.ingress_bits, shown.egress_bits), (LIMIT, LIMIT));

    // Another limit for the same interface applies immediately and changes nothing else.
    let links = pods[0].ip(&["-o", "link", "show", "dev", "eth0"]);
    let changed = agent.try_attach(limited("slow", &pods[0], "", "5M")).unwrap();
    assert!(changed.changed && addresses(&changed, "eth0")[0] == slow);
    assert_near(throughput(&pods[0], &pods[1], &one), 5_000_000);
    let free = throughput(&pods[1], &pods[0], &slow);
    assert!(free > PLENTY, "{:.1} Mbit/s once the limit was taken away", free / 1e6);
    let index = |line: &str| line.split(':').next().unwrap().to_owned();
    assert_eq!(index(&pods[0].ip(&["-o", "link", "show", "dev", "eth0"])), index(&links));

    // The limit is removed by hand.
    pods[0].namespace().output("tc", &["qdisc", "del", "dev", "eth0", "root"]).unwrap();
    let queue = || pods[0].namespace().output("tc", &["qdisc", "show", "dev", "eth0"]).unwrap();
    eventually("the limit is back", Duration::from_secs(10), || queue().contains("rate 5Mbit"));
    eventually("it is reported", Duration::from_secs(5), || machine.log().contains("drift repaired"));

    for id in ["slow", "one", "two"] {
        agent.delete(id);
    }
    eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pods[0].namespace());
}

#[test]
fn bandwidth_limits_survive_a_crash_and_invalid_ones_change_nothing() {
    let machine = Machine::new("limits-crash");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.try_attach(limited("sb1", &pod, "10M", "10M")).unwrap();
    let before = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    for wrong in ["fast", "10", "2000P", "-1M"] {
        let error = agent.try_attach(limited("sb1", &pod, wrong, "")).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::InvalidValue), "{error}");
        assert!(error.to_string().contains("kubernetes.io/ingress-bandwidth"), "{error}");
    }
    let mut request = attach("sb1", &netns(&pod));
    let bandwidth = v1::Bandwidth { egress_burst_bytes: 9, ..Default::default() };
    request.interfaces = vec![v1::InterfaceSpec { bandwidth: Some(bandwidth), ..Default::default() }];
    let error = agent.try_attach(request).unwrap_err().to_string();
    assert!(error.contains("interfaces[0].bandwidth.egress_burst_bytes"), "{error}");
    agent.crash();
    // The agent is killed at every step of the change: the restarted agent has the old or the new limit, then the new one.
    for step in 0..3 {
        let mut agent = machine.agent_with(&[], &[("KNIT_FAULT_KILL_AT", &step.to_string())]);
        let killed = agent.try_attach(limited("sb1", &pod, "30M", "40M")).is_err();
        assert_eq!(killed, step < 2, "two ends change");
        if killed {
            agent.wait();
        } else {
            agent.crash();
        }
        let agent = machine.agent();
        agent.try_attach(limited("sb1", &pod, "10M", "10M")).unwrap();
        before.0.assert_unchanged(&machine.host);
        before.1.assert_unchanged(pod.namespace());
        agent.crash();
    }
}
