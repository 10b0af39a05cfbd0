//! What an agent says and does when the kernel refuses, when someone changes things by hand, and after a reboot. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
}

use std::time::Duration;

use knit_kni::{Reason, v1};
use knit_testbed::{Dump, Testbed, eventually};
use support::agent::{Machine, addresses, attach, netns, ports, reference};

/// More steps than an attach has.
const MOST_STEPS: usize = 40;

#[test]
fn a_check_names_everything_that_is_missing_changed_or_left_over() {
    let machine = Machine::new("errors-check");
    let pod = machine.testbed.pod("one");
    // Nothing is compared by itself while this test runs.
    let agent = machine.agent_with(&["--resync-seconds", "3600"], &[]);
    let mut request = attach("sb1", &netns(&pod));
    let bandwidth = Some(v1::Bandwidth { ingress_bits: 8_000_000, ..Default::default() });
    let sysctls = [("ipv4/rp_filter".to_owned(), "2".to_owned())].into();
    request.interfaces = vec![v1::InterfaceSpec { bandwidth, sysctls, ..Default::default() }];
    let host_link = agent.try_attach(request).unwrap().pod.unwrap().interfaces[0].host_link.clone();
    assert_eq!(agent.check("sb1"), Vec::<String>::new());
    #[track_caller]
    fn assert_named(found: &[String], expected: &[&str]) {
        for part in expected {
            assert!(found.iter().any(|one| one.contains(part)), "{part} is not in {found:#?}");
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }
    pod.ip(&["route", "del", "default"]);
    pod.ip(&["link", "set", "eth0", "mtu", "1300"]);
    pod.namespace().set_sysctl("net.ipv4.conf.eth0.rp_filter", "0");
    machine.host.output("tc", &["qdisc", "del", "dev", &host_link, "root"]).unwrap();
    machine.host.ip(&["rule", "del", "to", "10.75.0.0/16", "table", "7500"]);
    let found = agent.check("sb1");
    assert_named(
        &found,
        &[
            "missing pod route: route 0.0.0.0/0 via 10.75.0.1 dev eth0",
            "changed pod link: link eth0: mtu: 1300 -> 1500",
            "changed pod sysctl: sysctl net/ipv4/conf/eth0/rp_filter: 0 -> 2",
            "limit: nothing -> (bits 8000000",
            "missing host rule: rule 7500: from all to 10.75.0.0/16",
        ],
    );
    // A check changes nothing: the same again.
    assert_eq!(agent.check("sb1"), found);
    // The kernel tells these by itself, so that each may be repaired before it is checked, or while it is made.
    let is_named = |harm: &dyn Fn(), expected: &str| {
        let mut found = Vec::new();
        let named = (0..20).any(|_| {
            harm();
            found = agent.check("sb1");
            found.iter().any(|one| one.contains(expected))
        });
        assert!(named, "{expected} is not in {found:#?}");
    };
    let inside = |arguments: &[&str]| drop(pod.namespace().output("ip", arguments));
    is_named(
        &|| drop(machine.host.output("ip", &["link", "set", &host_link, "nomaster"])),
        "master: nothing -> knit0",
    );
    is_named(
        &|| inside(&["address", "del", "10.75.0.2/16", "dev", "eth0"]),
        "missing pod address: address 10.75.0.2/16",
    );
    is_named(
        &|| {
            inside(&["link", "set", "eth0", "down"]);
            inside(&["link", "set", "eth0", "name", "other0"]);
        },
        "missing pod link: veth eth0",
    );
    let request = v1::CheckPodRequest { pod: Some(reference("nobody")) };
    let refused = agent.with(|mut client| async move { client.check_pod(request).await }).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::NotFound));
    // What was named is repaired by the next agent's first comparison.
    agent.crash();
    let agent = machine.agent();
    eventually("nothing differs", Duration::from_secs(10), || agent.check("sb1").is_empty());
    pod.ping("10.75.0.1").unwrap();
}

#[test]
fn a_link_that_somebody_deletes_is_back_in_a_moment() {
    let machine = Machine::new("errors-notice");
    let pod = machine.testbed.pod("one");
    // Only the kernel's own notice can tell: nothing is compared for an hour.
    let agent = machine.agent_with(&["--resync-seconds", "3600"], &[]);
    let host_link = agent.attach("sb1", &pod).pod.unwrap().interfaces[0].host_link.clone();
    let reaches = || pod.namespace().output("ping", &["-n", "-c", "1", "-W", "1", "10.75.0.1"]).is_ok();
    let ways: [&dyn Fn(); 4] = [
        &|| drop(machine.host.ip(&["link", "del", &host_link])),
        &|| drop(pod.ip(&["link", "del", "eth0"])),
        &|| drop(machine.host.ip(&["link", "set", &host_link, "nomaster"])),
        &|| drop(machine.host.ip(&["link", "del", "knit0"])),
    ];
    for (number, harm) in ways.into_iter().enumerate() {
        assert!(reaches(), "before harm {number}");
        harm();
        eventually(&format!("harm {number} is repaired"), Duration::from_secs(10), reaches);
    }
    eventually("nothing differs", Duration::from_secs(10), || agent.check("sb1").is_empty());
    // What was repaired is said a moment later.
    let said = || machine.log().matches("is repaired").count();
    let mut repairs = said();
    eventually("all repairs are said", Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut repairs, said());
        repairs > 0 && repairs == before
    });
    // What Knit does itself is no harm.
    agent.delete("sb1");
    agent.attach("sb1", &pod);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(said(), repairs, "{}", machine.log());
}

#[test]
fn whatever_the_kernel_refuses_is_said_with_its_step_and_leaves_nothing() {
    let machine = Machine::new("errors-errno");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.crash();
    for step in 0..MOST_STEPS {
        let errno = ["EBUSY", "EEXIST", "ENOBUFS", "ENODEV"][step % 4];
        let agent = machine.agent_with(&[], &[("KNIT_FAULT_FAIL_AT", &format!("{step}:{errno}"))]);
        let outcome = agent.try_attach(attach("sb1", &netns(&pod)));
        assert!(agent.is_running(), "{}", machine.log());
        let Err(refused) = outcome else {
            assert!(step > 5, "an attach has more than {step} steps");
            return;
        };
        let said = refused.to_string();
        // A device that is not there may be one that the call should not have named.
        let reason = if errno == "ENODEV" { Reason::NotFound } else { Reason::KernelRefused };
        assert_eq!((refused.reason(), refused.may_retry()), (Some(reason), errno != "ENODEV"), "{said}");
        for part in [errno, "step ", "is taken back"] {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert_eq!(agent.used(), 0, "{said}");
        eventually("the links are reaped", Duration::from_secs(10), || ports(&machine.host) == 0);
        host.assert_unchanged(&machine.host);
        inside.assert_unchanged(pod.namespace());
        // The same agent does it when the kernel does.
        agent.attach("sb1", &pod);
        pod.ping("10.75.0.1").unwrap();
        agent.delete("sb1");
        eventually("the links are reaped", Duration::from_secs(10), || ports(&machine.host) == 0);
        agent.crash();
    }
    panic!("an attach has fewer than {MOST_STEPS} steps");
}

#[test]
fn a_repair_that_the_kernel_refuses_is_tried_again() {
    let machine = Machine::new("errors-repair");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.attach("sb1", &pod);
    agent.crash();
    for errno in ["ENOBUFS", "EBUSY"] {
        let fault = format!("0:{errno}");
        let agent = machine.agent_with(&["--resync-seconds", "1"], &[("KNIT_FAULT_FAIL_AT", fault.as_str())]);
        pod.ip(&["address", "del", "10.75.0.2/16", "dev", "eth0"]);
        eventually("the refusal is said", Duration::from_secs(10), || machine.log().contains(errno));
        eventually("it is repaired all the same", Duration::from_secs(10), || agent.check("sb1").is_empty());
        pod.ping("10.75.0.1").unwrap();
        assert_eq!(agent.used(), 2);
        agent.crash();
    }
}

#[test]
fn a_reboot_leaves_no_stale_address_link_or_file() {
    let machine = Machine::new("errors-boot");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.attach("sb1", &pod);
    let tap = v1::Isolation { domain: Some(v1::isolation::Domain::Tap(v1::Tap::default())) };
    let mut request = attach("vm", "");
    request.sandbox.as_mut().unwrap().isolation = Some(tap);
    agent.try_attach(request.clone()).unwrap();
    let made = v1::SandboxSpec { id: "made".to_owned(), name: "made".to_owned(), ..Default::default() };
    let create = v1::CreateSandboxRequest { sandbox: Some(made), ..Default::default() };
    let path = {
        let create = create.clone();
        let answer = agent.with(|mut client| async move { client.create_sandbox(create).await });
        answer.unwrap().pod.unwrap().netns_path
    };
    assert_eq!((agent.used(), ports(&machine.host)), (4, 2));
    agent.crash();
    // What a boot takes away: the host's links, and namespaces but for the empty files that they were mounted on.
    nix::mount::umount2(path.as_str(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    let boot = machine.path("boot_id");
    std::fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let Machine { folder, testbed: _first, .. } = machine;
    let testbed = Testbed::new("errors-boot2");
    let host = testbed.host();
    let machine = Machine { testbed, host, folder };
    let agent = machine.rebooted(&boot);
    assert_eq!((agent.used(), ports(&machine.host)), (0, 0), "{}", machine.log());
    for id in ["sb1", "vm", "made"] {
        assert!(agent.pod(id).is_none(), "{id}");
    }
    assert!(!std::path::Path::new(&path).exists(), "the file of a namespace that is gone");
    // Everything can be had anew, from the first address on.
    let next = machine.testbed.pod("next");
    assert_eq!(addresses(&agent.attach("sb1", &next), "eth0")[0].split('.').next(), Some("10"));
    agent.try_attach(request).unwrap();
    assert_eq!((agent.used(), ports(&machine.host)), (4, 2));
    let again = agent.with(|mut client| async move { client.create_sandbox(create).await }).unwrap();
    assert!(again.created && std::path::Path::new(&path).exists());
    assert!(agent.delete("made"));
}
