//! Virtual machines on taps: a real guest and a pod reach each other.

use std::time::Duration;

use crate::support::agent::{Machine, addresses, attach, ports};
use crate::support::guest::Guest;
use knit_kni::{Reason, kni, v1};
use knit_testbed::{Dump, eventually};

fn machine_of(id: &str, tap: v1::Tap) -> v1::AttachRequest {
    let mut request = attach(id, "");
    request.sandbox.as_mut().unwrap().isolation =
        Some(v1::Isolation { domain: Some(v1::isolation::Domain::Tap(tap)) });
    request
}

#[test]
fn a_guest_on_a_tap_and_a_pod_reach_each_other() {
    let machine = Machine::new("machine-guest");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    let host = Dump::settled(&machine.host);
    let targets = addresses(&agent.attach("pod", &pod), "eth0");
    let mut request = machine_of("vm", v1::Tap::default());
    request.dns = Some(v1::DnsConfig { servers: vec!["10.0.0.10".to_owned()], ..Default::default() });
    let response = agent.try_attach(request.clone()).unwrap();
    let shown = response.pod.unwrap();
    assert_eq!(
        (shown.isolation(), shown.netns_path.as_str(), shown.netns_cookie),
        (v1::IsolationKind::Tap, "", 0)
    );
    assert_eq!(shown.dns.as_ref().unwrap().servers, ["10.0.0.10"]);
    let interface = shown.interfaces[0].clone();
    assert_eq!((interface.name.as_str(), interface.kind.as_str(), interface.mtu), ("eth0", "tap", 1500));
    assert_eq!((interface.master.as_str(), interface.addresses[0].gateway.as_str()), ("knit0", "10.75.0.1"));

    let targets: Vec<&str> = targets.iter().map(String::as_str).chain(["10.75.0.1"]).collect();
    let mut guest = Guest::boot(&machine.host, &interface, &targets);
    guest.wait_for_console(&format!("KNIT mac {} mtu 1500", interface.mac));
    for target in &targets {
        guest.wait_for_console(&format!("KNIT reached {target}"));
    }
    for address in &interface.addresses {
        pod.ping(&address.address).unwrap();
        machine.host.ping(&address.address).unwrap();
    }
    // A repeated attach has the same result; comparison and agent restart do not interrupt traffic.
    assert_eq!(agent.try_attach(request).unwrap().pod.unwrap(), shown);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!machine.log().contains("drift repaired"), "{}", machine.log());
    agent.crash();
    let agent = machine.agent();
    assert_eq!(agent.pod("vm").unwrap(), shown);
    pod.ping(&interface.addresses[0].address).unwrap();

    // Detach removes the tap, also while the machine has it open.
    assert!(agent.delete("vm") && agent.delete("pod"));
    assert_eq!(agent.used_addresses(), 0);
    eventually("the tap is gone", Duration::from_secs(5), || ports(&machine.host) == 0);
    drop(guest);
    host.assert_unchanged(&machine.host);
}

#[test]
fn package_kni_creates_and_removes_taps() {
    let machine = Machine::new("machine-kni");
    let agent = machine.agent();
    let host = Dump::settled(&machine.host);
    let owner = [("owner_uid".to_owned(), "424242".to_owned()), ("queues".to_owned(), "2".to_owned())];
    let isolation =
        kni::Isolation { r#type: "tap".to_owned(), extradata: owner.into(), ..Default::default() };
    let ask = |isolation: kni::Isolation| {
        let request = kni::AttachInterfaceRequest {
            name: "vm".to_owned(),
            namespace: "default".to_owned(),
            id: "vm".to_owned(),
            isolation: Some(isolation),
            ..Default::default()
        };
        agent.with(|client| async move { client.kni().attach_interface(request).await })
    };
    let config = ask(isolation.clone()).unwrap().into_inner().ipconfigs.remove("eth0").unwrap();
    assert_eq!(config.ip, ["10.75.0.2", "fd75:6b6e:6974::2"]);
    let tap = &config.extradata["hostInterface"];
    let shown = machine.host.ip_json(&["-d", "link", "show", "dev", tap]);
    let data = &shown[0]["linkinfo"]["info_data"];
    assert_eq!((shown[0]["master"].as_str(), data["type"].as_str()), (Some("knit0"), Some("tap")));
    assert_eq!((data["user"].as_u64(), data["multi_queue"].as_bool()), (Some(424_242), Some(true)), "{data}");
    assert_ne!(shown[0]["address"], config.mac, "the machine's address is not the tap's own");
    // Another isolation for the same machine is rejected, and so is a netns together with a tap.
    let other = kni::Isolation { r#type: "tap".to_owned(), ..Default::default() };
    let error = ask(other).unwrap_err();
    assert!(error.message().contains("detach it first"), "{error}");
    let both = kni::Isolation { path: "/run/netns/x".to_owned(), ..isolation };
    assert!(ask(both).unwrap_err().message().contains("isolation.path"));
    let request = kni::DeleteNetworkRequest { id: "vm".to_owned(), ..Default::default() };
    agent.with(|client| async move { client.kni().delete_network(request).await }).unwrap();
    assert!(agent.pod("vm").is_none());
    eventually("the tap is gone", Duration::from_secs(5), || ports(&machine.host) == 0);
    host.assert_unchanged(&machine.host);
}

#[test]
fn an_agent_killed_at_any_step_of_a_tap_attach_leaves_no_tap() {
    let machine = Machine::new("machine-kill");
    let agent = machine.agent();
    let host = Dump::settled(&machine.host);
    agent.crash();
    for step in 0..10 {
        let mut agent = machine.agent_with(&[], &[("KNIT_FAULT_KILL_AT", &step.to_string())]);
        let killed = agent.try_attach(machine_of("vm", v1::Tap::default())).is_err();
        if killed {
            agent.wait();
        } else {
            agent.crash();
        }
        let agent = machine.agent();
        agent.try_attach(machine_of("vm", v1::Tap::default())).unwrap();
        assert_eq!((agent.used_addresses(), ports(&machine.host)), (2, 1), "step {step}");
        assert!(agent.delete("vm"));
        eventually("the tap is gone", Duration::from_secs(5), || ports(&machine.host) == 0);
        assert_eq!(agent.used_addresses(), 0);
        host.assert_unchanged(&machine.host);
        agent.crash();
        if !killed {
            assert!(step > 1, "a tap is made and goes up");
            return;
        }
    }
    panic!("an attach of a tap has fewer than 10 steps");
}

#[test]
fn taps_are_repaired_and_limited_and_unsupported_settings_are_rejected() {
    let machine = Machine::new("machine-hand");
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    let limited = |ingress_bits, egress_bits| {
        let mut request = machine_of("vm", v1::Tap { owner_uid: Some(424_242), ..Default::default() });
        let bandwidth = Some(v1::Bandwidth { ingress_bits, egress_bits, ..Default::default() });
        request.interfaces = vec![v1::InterfaceSpec { bandwidth, mtu: 1400, ..Default::default() }];
        agent.try_attach(request)
    };
    let error = limited(0, 1_000_000).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NotAllowed), "{error}");
    assert!(agent.pod("vm").is_none());
    let tap = limited(8_000_000, 0).unwrap().pod.unwrap().interfaces[0].host_link.clone();
    let shown = || {
        machine.host.output("ip", &["-d", "link", "show", "dev", &tap]).unwrap_or_default()
            + &machine.host.output("tc", &["qdisc", "show", "dev", &tap]).unwrap_or_default()
    };
    let is_whole = || {
        let shown = shown();
        ["user 424242", "mtu 1400", "master knit0", "rate 8Mbit", "UP"]
            .iter()
            .all(|part| shown.contains(part))
    };
    assert!(is_whole(), "{}", shown());
    machine.host.ip(&["link", "del", &tap]);
    eventually("the tap is back", Duration::from_secs(10), is_whole);
    machine.host.ip(&["link", "set", &tap, "nomaster", "mtu", "1300"]);
    eventually("it is a port again", Duration::from_secs(10), is_whole);
    let object = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Dummy\nmetadata: {name: d, namespace: default}\n\
                  spec: {interfaceName: d0, selector: {matchLabels: {app: vm}}}\n";
    let mut request = machine_of("vm2", v1::Tap::default());
    request.sandbox.as_mut().unwrap().labels = [("app".to_owned(), "vm".to_owned())].into();
    agent.try_attach(request).unwrap();
    std::fs::write(machine.path("objects").join("d.yaml"), object).unwrap();
    eventually("the error is in the status", Duration::from_secs(10), || {
        machine.log().contains("is a virtual machine")
    });
    assert!(agent.pod("vm2").unwrap().interfaces[0].ready);
}
