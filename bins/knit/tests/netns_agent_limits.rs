//! Limits of pods' bandwidth, with real traffic: they hold, change on a living pod, come back, and go. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
}

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use knit_kni::{Reason, v1};
use knit_testbed::{Dump, Pod, eventually};
use support::agent::{Machine, addresses, attach, netns, ports};

/// What is asked for: 20 Mbit/s.
const LIMIT: u64 = 20_000_000;
/// What an unlimited pod has at least, on any machine that these tests run on.
const PLENTY: f64 = 200_000_000.0;

/// Bits per second from one pod to another, once the first burst is over.
fn speed(from: &Pod, to: &Pod, address: &str) -> f64 {
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
    // What is still under way would count with time in which nothing was sent.
    drop(stream);
    sink.join().unwrap()
}

#[track_caller]
fn assert_near(speed: f64, limit: u64) {
    let share = speed / limit as f64;
    assert!((0.6..1.2).contains(&share), "{:.1} Mbit/s at a limit of {} bits", speed / 1e6, limit);
}

fn limited(id: &str, pod: &Pod, ingress: &str, egress: &str) -> v1::AttachRequest {
    let mut request = attach(id, &netns(pod));
    let said = [("ingress", ingress), ("egress", egress)].into_iter().filter(|(_, limit)| !limit.is_empty());
    request.sandbox.as_mut().unwrap().annotations =
        said.map(|(way, limit)| (format!("kubernetes.io/{way}-bandwidth"), limit.to_owned())).collect();
    request
}

#[test]
fn a_limited_pod_gets_its_rate_each_way_and_another_clearly_more() {
    let machine = Machine::new("limits-speed");
    let pods = ["slow", "one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pods[0].namespace()));
    let given = agent.try_attach(limited("slow", &pods[0], "20M", "20M")).unwrap();
    let slow = addresses(&given, "eth0")[0].clone();
    let one = addresses(&agent.attach("one", &pods[1]), "eth0")[0].clone();
    let two = addresses(&agent.attach("two", &pods[2]), "eth0")[0].clone();
    assert_near(speed(&pods[1], &pods[0], &slow), LIMIT);
    assert_near(speed(&pods[0], &pods[1], &one), LIMIT);
    let free = speed(&pods[1], &pods[2], &two);
    assert!(free > PLENTY, "{:.1} Mbit/s without a limit", free / 1e6);
    let shown = agent.pod("slow").unwrap().interfaces[0].bandwidth.unwrap();
    assert_eq!((shown.ingress_bits, shown.egress_bits), (LIMIT, LIMIT));

    // The same interface with another limit: at once, and nothing else of it changes.
    let links = pods[0].ip(&["-o", "link", "show", "dev", "eth0"]);
    let changed = agent.try_attach(limited("slow", &pods[0], "", "5M")).unwrap();
    assert!(changed.changed && addresses(&changed, "eth0")[0] == slow);
    assert_near(speed(&pods[0], &pods[1], &one), 5_000_000);
    let free = speed(&pods[1], &pods[0], &slow);
    assert!(free > PLENTY, "{:.1} Mbit/s once the limit was taken away", free / 1e6);
    let index = |line: &str| line.split(':').next().unwrap().to_owned();
    assert_eq!(index(&pods[0].ip(&["-o", "link", "show", "dev", "eth0"])), index(&links));

    // Somebody takes it away by hand.
    pods[0].namespace().output("tc", &["qdisc", "del", "dev", "eth0", "root"]).unwrap();
    let queue = || pods[0].namespace().output("tc", &["qdisc", "show", "dev", "eth0"]).unwrap();
    eventually("the limit is back", Duration::from_secs(10), || queue().contains("rate 5Mbit"));
    eventually("it is said", Duration::from_secs(5), || machine.log().contains("is repaired"));

    for id in ["slow", "one", "two"] {
        agent.delete(id);
    }
    eventually("the links are reaped", Duration::from_secs(5), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pods[0].namespace());
}

#[test]
fn limits_outlive_a_crash_and_bad_ones_change_nothing() {
    let machine = Machine::new("limits-crash");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.try_attach(limited("sb1", &pod, "10M", "10M")).unwrap();
    let before = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    for wrong in ["fast", "10", "2000P", "-1M"] {
        let refused = agent.try_attach(limited("sb1", &pod, wrong, "")).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::InvalidValue), "{refused}");
        assert!(refused.to_string().contains("kubernetes.io/ingress-bandwidth"), "{refused}");
    }
    let mut request = attach("sb1", &netns(&pod));
    let bandwidth = v1::Bandwidth { egress_burst_bytes: 9, ..Default::default() };
    request.interfaces = vec![v1::InterfaceSpec { bandwidth: Some(bandwidth), ..Default::default() }];
    let refused = agent.try_attach(request).unwrap_err().to_string();
    assert!(refused.contains("interfaces[0].bandwidth.egress_burst_bytes"), "{refused}");
    agent.crash();
    // Changed at every step of which the agent dies: the next one has either, and then what is asked for.
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
