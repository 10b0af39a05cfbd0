//! Kernel errors, drift and reboots.

use std::time::Duration;

use crate::support::agent::{Machine, addresses, attach, netns, ports, reference};
use knit_kni::{Reason, v1};
use knit_testbed::{Confinement, Dump, Testbed, eventually};

/// An upper bound of the steps of an attach.
const MAX_STEPS: usize = 40;

#[test]
fn check_reports_everything_missing_changed_or_left_over() {
    let machine = Machine::new("errors-check");
    let pod = machine.testbed.pod("one");
    // The periodic comparison is disabled during this test.
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
            "limit: none -> (bits 8000000",
            "missing host rule: rule 7500: from all to 10.75.0.0/16",
        ],
    );
    // A check changes nothing: the second one has the same result.
    assert_eq!(agent.check("sb1"), found);
    // The kernel notifies the agent of these, so each may be repaired before or during the check.
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
        "master: none -> knit0",
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
    let error = agent.with(|mut client| async move { client.check_pod(request).await }).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NotFound));
    // The first comparison after a restart repairs the drift.
    agent.crash();
    let agent = machine.agent();
    eventually("there is no drift", Duration::from_secs(10), || agent.check("sb1").is_empty());
    pod.ping("10.75.0.1").unwrap();
}

#[test]
fn a_deleted_link_is_recreated() {
    let machine = Machine::new("errors-notice");
    let pod = machine.testbed.pod("one");
    // Only the kernel notification can trigger the repair: the comparison interval is an hour.
    let agent = machine.agent_with(&["--resync-seconds", "3600"], &[]);
    let host_link = agent.attach("sb1", &pod).pod.unwrap().interfaces[0].host_link.clone();
    let reaches = || pod.namespace().output("ping", &["-n", "-c", "1", "-W", "1", "10.75.0.1"]).is_ok();
    let damages: [&dyn Fn(); 4] = [
        &|| drop(machine.host.ip(&["link", "del", &host_link])),
        &|| drop(pod.ip(&["link", "del", "eth0"])),
        &|| drop(machine.host.ip(&["link", "set", &host_link, "nomaster"])),
        &|| drop(machine.host.ip(&["link", "del", "knit0"])),
    ];
    for (number, harm) in damages.into_iter().enumerate() {
        assert!(reaches(), "before harm {number}");
        harm();
        eventually(&format!("harm {number} is repaired"), Duration::from_secs(10), reaches);
    }
    eventually("there is no drift", Duration::from_secs(10), || agent.check("sb1").is_empty());
    // Repairs are logged with a delay.
    let printed = || machine.log().matches("drift repaired").count();
    let mut repairs = printed();
    eventually("all repairs are reported", Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut repairs, printed());
        repairs > 0 && repairs == before
    });
    // Changes by Knit are not drift.
    agent.delete("sb1");
    agent.attach("sb1", &pod);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(printed(), repairs, "{}", machine.log());
}

#[test]
fn kernel_errors_are_reported_with_their_step_and_rolled_back() {
    let machine = Machine::new("errors-errno");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    agent.crash();
    for step in 0..MAX_STEPS {
        let errno = ["EBUSY", "EEXIST", "ENOBUFS", "ENODEV"][step % 4];
        let agent = machine.agent_with(&[], &[("KNIT_FAULT_FAIL_AT", &format!("{step}:{errno}"))]);
        let outcome = agent.try_attach(attach("sb1", &netns(&pod)));
        assert!(agent.is_running(), "{}", machine.log());
        let Err(error) = outcome else {
            assert!(step > 5, "an attach has more than {step} steps");
            return;
        };
        let printed = error.to_string();
        // ENODEV may be an error of the caller.
        let reason = if errno == "ENODEV" { Reason::NotFound } else { Reason::KernelError };
        assert_eq!((error.reason(), error.may_retry()), (Some(reason), errno != "ENODEV"), "{printed}");
        for part in [errno, "step ", "rolled back"] {
            assert!(printed.contains(part), "{part} is not in: {printed}");
        }
        assert_eq!(agent.used_addresses(), 0, "{printed}");
        eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
        host.assert_unchanged(&machine.host);
        inside.assert_unchanged(pod.namespace());
        // The same agent succeeds when the kernel does.
        agent.attach("sb1", &pod);
        pod.ping("10.75.0.1").unwrap();
        agent.delete("sb1");
        eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
        agent.crash();
    }
    panic!("an attach has more than {MAX_STEPS} steps");
}

#[test]
fn a_failed_repair_is_retried() {
    let machine = Machine::new("errors-repair");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    agent.attach("sb1", &pod);
    agent.crash();
    for errno in ["ENOBUFS", "EBUSY"] {
        let fault = format!("0:{errno}");
        let agent = machine.agent_with(&["--resync-seconds", "1"], &[("KNIT_FAULT_FAIL_AT", fault.as_str())]);
        pod.ip(&["address", "del", "10.75.0.2/16", "dev", "eth0"]);
        eventually("the error is reported", Duration::from_secs(10), || machine.log().contains(errno));
        eventually("it is repaired", Duration::from_secs(10), || agent.check("sb1").is_empty());
        pod.ping("10.75.0.1").unwrap();
        assert_eq!(agent.used_addresses(), 2);
        agent.crash();
    }
}

#[test]
fn a_reboot_leaves_no_stale_lease_link_or_file() {
    let machine = Machine::new("errors-boot");
    let pod = machine.testbed.pod("one");
    // A service of the machine: a container cannot mount a new network namespace where the machine sees it.
    let agent = machine.confined_agent(&Confinement::none(), &[], &[]);
    agent.attach("sb1", &pod);
    let tap = v1::Isolation { domain: Some(v1::isolation::Domain::Tap(v1::Tap::default())) };
    let mut request = attach("vm", "");
    request.sandbox.as_mut().unwrap().isolation = Some(tap);
    agent.try_attach(request.clone()).unwrap();
    let made = v1::SandboxSpec { id: "made".to_owned(), name: "made".to_owned(), ..Default::default() };
    let create = v1::CreateSandboxRequest { sandbox: Some(made), ..Default::default() };
    let path = {
        let create = create.clone();
        let response = agent.with(|mut client| async move { client.create_sandbox(create).await });
        response.unwrap().pod.unwrap().netns_path
    };
    assert_eq!((agent.used_addresses(), ports(&machine.host)), (4, 2));
    agent.crash();
    // A boot removes links of the host and namespaces, but not the files that the namespaces were mounted on.
    nix::mount::umount2(path.as_str(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    let boot = machine.path("boot_id");
    std::fs::write(&boot, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let Machine { folder, testbed: _first, .. } = machine;
    let testbed = Testbed::new("errors-boot2");
    let host = testbed.host();
    let machine = Machine { testbed, host, folder };
    let agent = machine.rebooted(&boot);
    assert_eq!((agent.used_addresses(), ports(&machine.host)), (0, 0), "{}", machine.log());
    for id in ["sb1", "vm", "made"] {
        assert!(agent.pod(id).is_none(), "{id}");
    }
    assert!(!std::path::Path::new(&path).exists(), "the file of a namespace that is gone");
    // Everything can be attached again, starting with the first address.
    let next = machine.testbed.pod("next");
    assert_eq!(addresses(&agent.attach("sb1", &next), "eth0")[0].split('.').next(), Some("10"));
    agent.try_attach(request).unwrap();
    assert_eq!((agent.used_addresses(), ports(&machine.host)), (4, 2));
    let again = agent.with(|mut client| async move { client.create_sandbox(create).await }).unwrap();
    assert!(again.created && std::path::Path::new(&path).exists());
    assert!(agent.delete("made"));
}
