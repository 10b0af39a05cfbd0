//! Address ranges, static addresses and devices in CNI commands.

use std::fs;
use std::time::Duration;

use crate::support::agent::{Machine, attach, netns, ports};
use crate::support::cni::{CniCall, addresses};
use knit_kni::v1;
use knit_testbed::{Dump, Pod, eventually};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(10);
/// The sysfs directory of PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
const ID: &str = "0000:00:1f.6";

fn add(machine: &Machine, id: &str, pod: &Pod, key: &str, value: Value) -> CniCall {
    let runtime = json!({ key: value });
    CniCall::new(machine, "ADD", id, &netns(pod)).with("runtimeConfig", runtime)
}

fn check(add: &CniCall, result: &Value) -> CniCall {
    CniCall { command: "CHECK", ..add.clone().with("prevResult", result.clone()) }
}

fn del(add: &CniCall) -> CniCall {
    CniCall { command: "DEL", started_at: knit_cni::boot_time_nanos(), ..add.clone() }
}

#[test]
fn addresses_are_allocated_from_the_requested_ranges() {
    let machine = Machine::new("cni-ranges");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let ranges = json!([
        [
            {"subnet": "10.75.9.0/24", "rangeStart": "10.75.9.20", "rangeEnd": "10.75.9.20", "gateway": "10.75.0.1"},
            {"subnet": "10.75.8.0/30", "rangeStart": "10.75.8.2"},
        ],
        [{"subnet": "fd75:6b6e:6974::9:0/112"}],
    ]);
    let calls: Vec<CniCall> = (["c1", "c2", "c3"].iter().zip(&pods))
        .map(|(id, pod)| add(&machine, id, pod, "ipRanges", ranges.clone()))
        .collect();
    let first = calls[0].succeeded();
    assert_eq!(addresses(&first), ["10.75.9.20", "fd75:6b6e:6974::9:1"]);
    assert_eq!(first["ips"][0]["address"], "10.75.9.20/16", "the network's prefix length: {first}");
    pods[0].ping("10.75.0.1").unwrap();
    let second = calls[1].succeeded();
    assert_eq!(addresses(&second), ["10.75.8.2", "fd75:6b6e:6974::9:2"], "the next range of the set");
    pods[1].ping("10.75.9.20").unwrap();
    // Both ranges of the set are exhausted: a retryable error without partial state.
    let inside = Dump::settled(pods[2].namespace());
    let (code, message) = calls[2].failed();
    assert_eq!(code, 11, "{message}");
    assert!(message.contains("10.75.9.20-10.75.9.20 of 10.75.0.0/16, 10.75.8.2-10.75.8.2"), "{message}");
    assert!(agent.pod("c3").is_none() && agent.used_addresses() == 4);
    inside.assert_unchanged(pods[2].namespace());
    // The request survives an agent restart: CHECK compares with it, and a repeated ADD has the same result.
    agent.crash();
    let agent = machine.agent();
    for (call, result) in calls.iter().zip([&first, &second]) {
        check(call, result).succeeded();
    }
    let range = |subnet: &str, [first, last, gateway]: [&str; 3]| v1::AddressRange {
        subnet: subnet.to_owned(),
        first: first.to_owned(),
        last: last.to_owned(),
        gateway: gateway.to_owned(),
    };
    let mut again = attach("c2", &netns(&pods[1]));
    again.interfaces = vec![v1::InterfaceSpec {
        range_sets: vec![
            v1::RangeSet {
                ranges: vec![
                    range("10.75.9.0/24", ["10.75.9.20", "10.75.9.20", "10.75.0.1"]),
                    range("10.75.8.0/30", ["10.75.8.2", "", ""]),
                ],
            },
            v1::RangeSet { ranges: vec![range("fd75:6b6e:6974::9:0/112", [""; 3])] },
        ],
        ..Default::default()
    }];
    let response = agent.try_attach(again).unwrap();
    assert!(!response.changed);
    assert_eq!(crate::support::agent::addresses(&response, "eth0"), ["10.75.8.2", "fd75:6b6e:6974::9:2"]);
    // CHECK with another range fails.
    let other_subnet = add(&machine, "c1", &pods[0], "ipRanges", json!([[{"subnet": "10.75.7.0/24"}]]));
    let (code, message) = check(&other_subnet, &first).failed();
    assert!(code == 100 && message.contains("in another way"), "{code}: {message}");
    del(&calls[0]).succeeded();
    assert_eq!(addresses(&calls[2].succeeded())[0], "10.75.9.20");
    del(&calls[1]).succeeded();
    del(&calls[2]).succeeded();
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn annotations_request_static_or_sticky_addresses() {
    let machine = Machine::new("cni-annotations");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    let call = |id: &str, pod, annotations: Value| {
        let mut call = add(&machine, id, pod, "io.kubernetes.cri.pod-annotations", annotations);
        call.args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={id}");
        call
    };
    let fixed = json!({"knit.opdev.io/addresses": "10.75.9.20", "other/x": "y"});
    let first = call("db-0", &pods[0], fixed.clone());
    // Static addresses come after allocated ones; the other family is unaffected.
    assert_eq!(addresses(&first.succeeded()), ["fd75:6b6e:6974::2", "10.75.9.20"]);
    pods[0].ping("10.75.0.1").unwrap();
    let (code, message) = call("db-1", &pods[1], fixed).failed();
    assert!(message.contains("10.75.9.20 is in use by interface eth0 of pod shop/db-0"), "{code}: {message}");
    for (text, expected) in
        [("10.9.0.1", "10.9.0.1 is in no range of network"), ("x", "`x` is not an address")]
    {
        let error = call("db-1", &pods[1], json!({"knit.opdev.io/addresses": text}));
        let (code, message) = error.failed();
        assert!(message.contains(expected), "{code}: {message}");
    }
    // A pod of the same name in a new sandbox, after other pods were attached and detached.
    let sticky = json!({"knit.opdev.io/sticky-addresses": "web"});
    let before = call("web-a", &pods[1], sticky.clone());
    let had = addresses(&before.succeeded());
    del(&before).succeeded();
    let other = call("other", &pods[1], json!({}));
    assert_ne!(addresses(&other.succeeded()), had);
    agent.crash();
    let agent = machine.agent();
    let after = call("web-b", &pods[2], sticky);
    assert_eq!(addresses(&after.succeeded()), had);
    pods[2].ping("10.75.9.20").unwrap();
    for one in [&first, &other, &after] {
        del(one).succeeded();
    }
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn ranges_outside_the_network_are_rejected() {
    let machine = Machine::new("cni-outside");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    for (ranges, expected) in [
        (
            json!([[{"subnet": "10.75.9.0/24"}], [{"subnet": "10.9.0.0/16"}]]),
            "10.9.0.0/16 is not within a range of network",
        ),
        (json!([[{"subnet": "10.0.0.0/8"}]]), "10.0.0.0/8 is not within a range of network"),
        (
            json!([[{"subnet": "10.75.9.0/24", "gateway": "10.75.9.1"}]]),
            "10.75.9.1 is not the gateway of network",
        ),
        (json!([[{"subnet": "10.75.9.0/24", "rangeStart": "10.75.8.1"}]]), "10.75.8.1 is not in the subnet"),
        (json!([[{"subnet": "10.75.9.1/24"}]]), "use 10.75.9.0/24"),
        (json!([[{"subnet": "10.75.9.0/24"}], [{"subnet": "10.75.9.0/25"}]]), "overlaps set 0"),
        (json!([[{"subnet": "all"}]]), "`all` is not a valid subnet"),
        (json!([[{"rangeStart": "10.75.9.1"}]]), "subnet: required"),
        (json!([[]]), "this set has no range"),
        (json!([{"subnet": "10.75.9.0/24"}]), "runtimeConfig.ipRanges[0]"),
    ] {
        let (code, message) = add(&machine, "c1", &pod, "ipRanges", ranges.clone()).failed();
        assert!(code == 7 && message.contains(expected), "{ranges}: {code}: {message}");
    }
    assert!(agent.pod("c1").is_none() && agent.used_addresses() == 0);
    inside.assert_unchanged(pod.namespace());
    host.assert_unchanged(&machine.host);
}

/// Makes the link of the host appear as the NIC of a PCI device in sysfs.
fn show_device(machine: &Machine, nic: &str) {
    let folder = machine.path("devices").join(ID).join("net").join(nic);
    fs::create_dir_all(&folder).unwrap();
    let link = &machine.host.ip_json(&["link", "show", nic])[0];
    fs::write(folder.join("ifindex"), format!("{}\n", link["ifindex"])).unwrap();
}

fn open_uplink(machine: &Machine, kinds: &str) {
    let uplink = format!(
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Uplink\nmetadata: {{ name: wire }}\n\
         spec: {{ link: nic0, namespaces: [shop], kinds: [{kinds}] }}\n"
    );
    fs::create_dir_all(machine.path("objects")).unwrap();
    fs::write(machine.path("objects/uplink.yaml"), uplink).unwrap();
}

#[test]
fn a_requested_device_is_moved_to_the_pod_and_back() {
    let machine = Machine::new("cni-device");
    let outside = machine.testbed.namespace("outside");
    machine.testbed.connect(&machine.host, "nic0", &outside, "far0");
    outside.address("far0", "10.2.0.200/24");
    machine.host.ip(&["link", "set", "nic0", "mtu", "1400"]);
    show_device(&machine, "nic0");
    open_uplink(&machine, "macvlan");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent_with_bind_mount(&machine.path("devices"), PCI);
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pods[0].namespace()));
    let call = |id: &str, pod, device: &str| {
        let mut call = add(&machine, id, pod, "deviceID", json!(device));
        call.config["runtimeConfig"]["ips"] = json!(["10.2.0.2/24"]);
        call.args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web".to_owned();
        call
    };
    let lent = call("c1", &pods[0], ID);
    // Devices without an Uplink and missing devices are rejected.
    let (code, message) = lent.failed();
    assert!(
        code == 7 && message.contains("NIC nic0 must not be moved into pods of namespace shop"),
        "{code}: {message}"
    );
    for (device, expected) in [
        ("0000:00:1f.7", "device 0000:00:1f.7 does not exist on a PCI or auxiliary bus"),
        ("../0000:00:1f.6", "is neither a PCI address nor"),
    ] {
        let (code, message) = call("c1", &pods[0], device).failed();
        assert!(code == 7 && message.contains(expected), "{code}: {message}");
    }
    assert!(agent.pod("c1").is_none() && agent.used_addresses() == 0);
    inside.assert_unchanged(pods[0].namespace());
    host.assert_unchanged(&machine.host);

    open_uplink(&machine, "host-device");
    let mut result = Value::Null;
    eventually("the uplink is read", TIMEOUT, || {
        let outcome = lent.outcome();
        result = serde_json::from_str(&outcome.output).unwrap();
        outcome.success
    });
    assert_eq!(result["ips"][0]["address"], "10.2.0.2/24", "{result}");
    let made = &result["interfaces"][0];
    assert_eq!((&made["name"], &made["pciID"], &made["mtu"]), (&json!("eth0"), &json!(ID), &json!(1400)));
    assert!(!machine.host.ip(&["link"]).contains("nic0"));
    pods[0].ping("10.2.0.200").unwrap();
    check(&lent, &result).succeeded();
    let known = agent.pod("c1").unwrap();
    assert_eq!(
        (known.interfaces[0].kind.as_str(), known.interfaces[0].device_id.as_str()),
        ("host-device", ID)
    );
    let (code, message) = call("c2", &pods[1], ID).failed();
    assert!(code == 100 && message.contains("is interface eth0 of sandbox c1"), "{code}: {message}");

    agent.crash();
    let agent = machine.agent_with_bind_mount(&machine.path("devices"), PCI);
    check(&lent, &result).succeeded();
    pods[0].ping("10.2.0.200").unwrap();
    del(&lent).succeeded();
    assert!(agent.pod("c1").is_none() && agent.used_addresses() == 0);
    inside.assert_unchanged(pods[0].namespace());
    host.assert_unchanged(&machine.host);

    // On a network the device gets an address from the requested range; it is not a port of the bridge.
    show_device(&machine, "nic0");
    let mut named = add(&machine, "c2", &pods[1], "deviceID", json!(ID)).with("network", "cluster-network");
    named.config["runtimeConfig"]["ipRanges"] = json!([[{"subnet": "10.75.9.0/24"}]]);
    named.args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web".to_owned();
    let result = named.succeeded();
    assert_eq!(addresses(&result)[1], "10.75.9.1", "{result}");
    assert!(result["ips"][0].get("gateway").is_none() && result["routes"] == json!([]), "{result}");
    assert_eq!(ports(&machine.host), 0);
    check(&named, &result).succeeded();
    del(&named).succeeded();
    assert_eq!(agent.used_addresses(), 0);
    host.assert_unchanged(&machine.host);
}
