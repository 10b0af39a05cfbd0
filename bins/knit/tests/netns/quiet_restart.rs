//! A start of an agent that finds everything as it was: it writes nothing to the kernel, and only takes over its nftables tables.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::support::agent::{Machine, attach, netns};
use knit_kni::v1;
use knit_testbed::{Dump, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long the programs that monitor the kernel need to start, and its notifications to arrive.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// How long the kernel may take to give a link its own address.
const ADDRESS_TIME: Duration = Duration::from_secs(3);

const OBJECTS: &str = "\
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {name: b}, spec: {name: br1, cidr: 10.9.0.0/24}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: v}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: '10.9.0.0/24,fd09::/64'}}
";

/// What the kernel reports of changes of links, addresses, routes, rules and nftables while `work` runs.
fn notifications(machine: &Machine, work: impl FnOnce()) -> String {
    let monitors: [(&str, &[&str]); 2] =
        [("ip", &["monitor", "link", "address", "route", "rule"]), ("nft", &["monitor"])];
    let running = monitors
        .map(|(program, arguments)| machine.host.spawn(machine.host.command(program).args(arguments)));
    sleep(SETTLE_TIME);
    work();
    sleep(SETTLE_TIME);
    running.iter().for_each(|monitor| drop(monitor.stop()));
    running.map(|monitor| monitor.output()).concat()
}

#[test]
fn an_agent_with_nothing_to_change_only_takes_over_its_tables() {
    let machine = Machine::new("quiet-restart");
    let pod = machine.testbed.pod("one");
    let arguments = ["--cluster-anti-spoofing"];
    let agent = machine.agent_with(&arguments, &[]);
    fs::write(machine.path("objects/objects.yaml"), OBJECTS).unwrap();
    let port = v1::PortMapping { container_port: 80, host_port: 8080, ..Default::default() };
    let mut request = attach("sb1", &netns(&pod));
    request.sandbox.as_mut().unwrap().labels.insert("app".to_owned(), "x".to_owned());
    request.interfaces = vec![v1::InterfaceSpec { port_mappings: vec![port], ..Default::default() }];
    agent.try_attach(request).unwrap();
    let has_both = || pod.namespace().output("ip", &["link", "show", "net1"]).is_ok();
    eventually("the pod has its second interface", TIMEOUT, has_both);
    // The kernel gives links their own addresses a moment after they have a carrier, and checks them for duplicates.
    let addresses = || machine.host.ip(&["-6", "address", "show"]);
    let is_settled = || {
        let before = addresses();
        sleep(ADDRESS_TIME);
        !before.contains("tentative") && addresses() == before
    };
    eventually("the kernel's own addresses are there", TIMEOUT, is_settled);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.crash();

    let seen = notifications(&machine, || {
        let agent = machine.agent_with(&arguments, &[]);
        eventually("the agent has its pod", TIMEOUT, || agent.check("sb1").is_empty());
        agent.crash();
    });
    // It becomes the owner of its tables.
    let is_takeover = |line: &&str| line.starts_with("add table ") || line.starts_with("# new generation ");
    let (takeovers, changes): (Vec<&str>, Vec<&str>) = seen.lines().partition(is_takeover);
    assert_eq!(changes, [""; 0], "{seen}");
    let tables: Vec<&str> = takeovers.into_iter().filter(|line| line.starts_with("add table ")).collect();
    assert_eq!(tables.len(), 2, "{seen}");
    for table in ["add table inet knit", "add table bridge knit"] {
        assert!(tables.iter().any(|line| line.starts_with(table)), "{seen}");
    }
    host.assert_unchanged(&machine.host);
    inside.assert_unchanged(pod.namespace());

    // The monitors work: a change by hand is seen, and so is its repair.
    let seen = notifications(&machine, || {
        machine.host.output("nft", &["flush", "chain", "bridge", "knit", "prerouting"]).unwrap();
        machine.host.ip(&["link", "set", "br1", "down"]);
        machine.agent_with(&arguments, &[]).crash();
    });
    assert!(seen.contains("br1") && seen.contains("prerouting"), "{seen}");
}
