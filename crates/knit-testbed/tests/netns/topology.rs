//! A testbed's topology works.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use knit_testbed::{Error, Testbed};

use crate::{message, pair, text};

#[test]
fn connected_namespaces_ping_each_other_in_both_families() {
    let testbed = Testbed::new("ping");
    let (a, b) = pair(&testbed);
    for target in ["10.0.0.2", "fd00::2"] {
        let rtt = a.ping(target).unwrap();
        assert!(rtt < Duration::from_secs(4), "{rtt:?}");
    }
    b.ping("10.0.0.1").unwrap();
    b.ip(&["link", "set", "eth0", "down"]);
    let error = a.ping("10.0.0.2").unwrap_err();
    assert!(matches!(error, Error::Unreachable { protocol: "ping", .. }), "{error}");
}

#[test]
fn pods_on_a_bridge_reach_each_other_over_tcp_and_udp() {
    let testbed = Testbed::new("bridge");
    let host = testbed.host();
    let (a, b) = (testbed.pod("a"), testbed.pod("b"));
    testbed.bridge(&host, "br0");
    for (pod, port, number) in [(&a, "port-a", 1), (&b, "port-b", 2)] {
        testbed.connect(pod, "eth0", &host, port);
        host.enslave(port, "br0");
        pod.address("eth0", &format!("10.0.0.{number}/24"));
        pod.address("eth0", &format!("fd00::{number}/64"));
    }
    for address in ["10.0.0.2:0", "[fd00::2]:0"] {
        let (tcp, udp) = (b.tcp_echo(address), b.udp_echo(address));
        a.tcp_reaches(tcp.address()).unwrap();
        a.udp_reaches(udp.address()).unwrap();
        tcp.stop();
        udp.stop();
        a.tcp_reaches(tcp.address()).unwrap_err();
        a.udp_reaches(udp.address()).unwrap_err();
    }
}

#[test]
fn closure_and_command_run_inside() {
    let testbed = Testbed::new("inside");
    let namespace = testbed.namespace("a");
    let link = |path: &str| std::fs::read_link(path).unwrap();
    let inside = namespace.run(|| link("/proc/thread-self/ns/net"));
    assert_ne!(inside, link("/proc/self/ns/net"), "the closure ran in the machine's namespace");
    assert_eq!(link("/proc/thread-self/ns/net"), link("/proc/self/ns/net"), "this thread was moved");
    let seen = namespace.output("readlink", &["/proc/self/ns/net"]).unwrap();
    assert_eq!(Path::new(seen.trim()), inside);
    let flags = &namespace.ip_json(&["link", "show", "lo"])[0]["flags"];
    assert!(flags.as_array().unwrap().contains(&"UP".into()), "lo is not up: {flags}");
    let by_nsenter = Command::new("nsenter")
        .arg(format!("--net={}", namespace.path().display()))
        .args(["readlink", "/proc/self/ns/net"])
        .output()
        .unwrap();
    assert_eq!(Path::new(text(&by_nsenter).trim()), inside);
}

#[test]
fn sysctls_are_read_and_written_inside_only() {
    let testbed = Testbed::new("sysctl");
    let (a, b) = (testbed.namespace("a"), testbed.namespace("b"));
    let key = "net.ipv4.ip_default_ttl";
    a.set_sysctl(key, "77");
    assert_eq!(a.sysctl(key).unwrap(), "77");
    assert_ne!(b.sysctl(key).unwrap(), "77");
    assert!(matches!(a.sysctl("net.ipv4.no_such_thing"), Err(Error::Sysctl { .. })));
}

#[test]
fn parallel_testbeds_of_the_same_name_do_not_collide() {
    let threads: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(|| {
                let mut testbed = Testbed::new("same");
                let (a, _b) = pair(&testbed);
                a.ping("10.0.0.2").unwrap();
                let names: Vec<_> = testbed.namespaces().iter().map(|one| one.name().to_owned()).collect();
                testbed.close();
                testbed.assert_nothing_left();
                names
            })
        })
        .collect();
    let names: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), 6 * 3, "{names:?}");
}

#[test]
fn label_can_be_used_once_per_testbed() {
    let testbed = Testbed::new("label");
    let _first = testbed.namespace("a");
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.namespace("a"))).unwrap_err();
    assert!(message(panic).contains("namespace a exists already"));
}

#[test]
fn pod_is_found_by_its_pid() {
    let testbed = Testbed::new("pod");
    let pod = testbed.pod("a");
    let by_pid = std::fs::read_link(format!("/proc/{}/ns/net", pod.pid())).unwrap();
    let inside = pod.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    assert_eq!(by_pid, inside);
    assert_eq!(pod.processes(), [(pod.pid(), "sleep infinity".to_owned())]);
}
