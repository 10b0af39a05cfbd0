//! Routes, sysctls and forwarding in the tenant's pods that would reach beyond them.

use serde_json::{Value, json};

use crate::hostile::objects::{object, select};
use crate::hostile::stage::stage;
use crate::support::operator::{eventually, on_node};
use crate::support::programs::script;

#[track_caller]
fn assert_sysctl_refused(name: &str, value: &str) {
    assert_podroute_refused(name, value, "not an allowed sysctl");
}

#[track_caller]
fn assert_podroute_refused(sysctl: &str, value: &str, expected: &str) {
    let spec = json!({"selector": select("plain"), "sysctls": {sysctl: value}});
    stage().assert_refused(&object("PodRoute", &spec), expected, &[]);
}

#[test]
fn podroute_with_a_sysctl_of_the_whole_kernel() {
    assert_sysctl_refused("kernel.core_pattern", "|/tmp/x");
}

#[test]
fn podroute_with_a_sysctl_that_opens_loopback_addresses() {
    assert_sysctl_refused("net.ipv4.conf.eth0.route_localnet", "1");
}

#[test]
fn podroute_with_a_sysctl_of_all_namespaces() {
    assert_sysctl_refused("net.netfilter.nf_conntrack_max", "1");
}

#[test]
fn podroute_with_a_sysctl_of_shared_neighbour_tables() {
    assert_sysctl_refused("net.ipv4.neigh.default.gc_thresh3", "1");
}

#[test]
fn podroute_with_a_sysctl_that_is_a_path() {
    assert_podroute_refused("net.ipv4.conf.../../../kernel/hostname.forwarding", "1", "must not contain `/`");
}

#[test]
fn interface_with_a_sysctl_that_opens_loopback_addresses() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr7", "sysctls": {"ipv4/route_localnet": "1"}});
    stage.assert_refused(&object("Veth", &spec), "sysctl", &[]);
}

#[test]
fn interface_with_a_sysctl_that_is_a_path() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr7", "sysctls": {"ipv4/../../eth0/forwarding": "1"}});
    stage.assert_refused(&object("Veth", &spec), "sysctl", &[]);
}

/// Creates a PodRoute for the attacker's pod, and waits until this is in its tables.
#[track_caller]
fn assert_route_harmless(spec: Value, show: &str, expected: &str) {
    let stage = stage();
    let mut all = json!({"selector": select("plain")});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let before = stage.host_state(&[]);
    let _route = stage.create(&object("PodRoute", &all));
    let shown = || script(&stage.attacker, "plain", show);
    eventually("it is applied in the pod", shown, |shown| shown.contains(expected));
    stage.assert_unaffected(&before, &[]);
    // Forwarding and routes in the pod do not let it send packets of others.
    stage.assert_dropped(&stage.plain, |to, note| {
        vec![stage.spoofed(&stage.plain, "203.0.113.9".parse().unwrap(), to, note)]
    });
}

#[test]
fn podroute_with_forwarding_does_not_let_a_pod_send_packets_of_others() {
    let spec = json!({"sysctls": {"net.ipv4.ip_forward": "1"}});
    assert_route_harmless(spec, "cat /proc/sys/net/ipv4/ip_forward", "1");
}

#[test]
fn podroute_with_a_proxy_for_addresses_of_others() {
    let near = stage().near.ipv4;
    let entry = json!({"address": near, "dev": "eth0", "proxy": true});
    assert_route_harmless(json!({"neighbours": [entry]}), "ip neigh show proxy", &near.to_string());
}

#[test]
fn podroute_by_the_other_node_does_not_change_what_others_reach() {
    let gateway = on_node("node2", &["ip", "-4", "-o", "addr", "show", "dev", "eth0"]);
    let (_, rest) = gateway.split_once("inet ").unwrap();
    let (address, _) = rest.split_once('/').unwrap();
    let route = json!({"to": "203.0.113.0/24", "via": address, "dev": "eth0", "onlink": true});
    assert_route_harmless(json!({"routes": [route]}), "ip route", "203.0.113.0/24");
}
