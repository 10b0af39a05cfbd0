//! A fault at every step of every plan: a kernel error is rolled back, a crash is recovered by the next start.
//! Needs root.

use crate::support::fault_steps::{Operation, inject_at_every_step};

/// All features of one interface: a bridge with addresses, routes, rules, sysctls.
const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:1::/64', mtu: 1400,
    alias: one, routes: [{to: 10.50.0.0/16, via: 10.1.0.1}], rules: [{priority: 900, from: 10.1.0.0/24, table: 100}],
    gateways: ['fd00:1::1'], sysctls: {ipv4/rp_filter: '2'}}}";

/// The same with every field changed on the existing link.
const CHANGED: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:2::/64', mtu: 1300,
    alias: two, routes: [{to: 10.50.0.0/16, via: 10.1.0.9}, {to: 10.60.0.0/16, type: blackhole}],
    rules: [{priority: 901, from: 10.1.0.0/24, table: 101}], sysctls: {ipv4/rp_filter: '1'}}}";

/// A change of a link that Knit did not make.
const PRIMARY: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: first}, spec: {
    selector: {matchLabels: {app: x}}, mtu: 1300, txQLen: 77, hardwareAddr: '02:00:00:00:00:61',
    sysctls: {ipv4/rp_filter: '2'}, routes: [{to: 10.70.0.0/16, via: 10.9.0.1}]}}";

/// Stacked links without a host end.
const STACKED: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodNetworkConfig, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, additionalNetworks: [
        {networkName: top, linkType: macvlan, master: low, cidr: 10.8.0.0/24},
        {networkName: low, linkType: macvlan, master: eth0, cidr: 10.7.0.0/24, networkDescription: below}]}}";

/// A tunnel.
const TUNNEL: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vxlan, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: vx0, vni: 7, remote: 10.9.0.3, addresses: ['10.7.0.2/24']}}";

/// The same with another VNI: the link is recreated.
const OTHER_TUNNEL: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vxlan, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: vx0, vni: 8, remote: 10.9.0.4, addresses: ['10.7.0.3/24']}}";

/// An interface of Knit's, next to the foreign `eth0`.
const SECOND: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, addresses: ['10.8.0.2/24']}}";

/// All create_of_routes_recovers entries, on both interfaces.
const ROUTING: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, routes: [
        {to: 10.50.0.0/16, via: 10.9.0.1}, {to: 10.51.0.0/16, type: blackhole}, {to: 10.52.0.0/16, nextHops: [
            {via: 10.9.0.1, weight: 2}, {via: 10.8.0.1, dev: mv0}]}, {to: 'fd50::/32', via: 'fe80::1', dev: mv0}],
    rules: [{priority: 900, from: 10.9.0.0/24, table: 100}], neighbours: [
        {address: 10.9.0.77, dev: eth0, hardwareAddr: '02:00:00:00:00:77'}, {address: 10.8.0.77, dev: mv0, proxy: true}],
    sysctls: {net.ipv4.conf.eth0.rp_filter: '2', net.ipv4.conf.mv0.rp_filter: '2', net.ipv4.ip_nonlocal_bind: '1'}}}";

/// The same with every field changed that can change.
const CHANGED_ROUTING: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, routes: [
        {to: 10.50.0.0/16, via: 10.9.0.3, mtu: 1300, src: 10.9.0.2}, {to: 10.51.0.0/16, via: 10.8.0.1},
        {to: 10.52.0.0/16, type: prohibit}, {to: 'fd50::/32', type: blackhole}],
    rules: [{priority: 901, from: 10.9.0.0/24, table: 100}],
    neighbours: [{address: 10.9.0.77, dev: eth0, hardwareAddr: '02:00:00:00:00:78'}],
    sysctls: {net.ipv4.conf.eth0.rp_filter: '0', net.ipv4.conf.mv0.rp_filter: '1'}}}";

/// A host NIC moved into the pod.
const MOVED_NIC: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Uplink, metadata: {name: wire}, spec: {
    link: nic0, namespaces: [default], kinds: [host-device]}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: HostDevice, metadata: {name: nic}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: wire0, parent: wire, addresses: ['10.7.0.2/24'], mtu: 1300,
    hardwareAddr: '02:00:00:00:00:62'}}";

/// The same without the Uplink, which stays when the NIC is returned.
const MOVED_NIC_DEVICE: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: HostDevice, metadata: {name: nic}, spec: {
    interfaceName: wire0, parent: wire}}";

#[test]
fn attach_recovers() {
    inject_at_every_step("f-attach", None, Operation::Apply(VETH)).assert_with_filter();
}

#[test]
fn detach_recovers() {
    inject_at_every_step("f-detach", Some(VETH), Operation::Delete(VETH)).assert_with_filter();
}

#[test]
fn change_recovers() {
    inject_at_every_step("f-change", Some(VETH), Operation::Apply(CHANGED)).assert_with_filter();
}

#[test]
fn change_of_a_foreign_link_recovers() {
    inject_at_every_step("f-first", None, Operation::Apply(PRIMARY));
}

#[test]
fn restore_of_a_foreign_link_recovers() {
    inject_at_every_step("f-back", Some(PRIMARY), Operation::Delete(PRIMARY));
}

#[test]
fn create_of_stacked_pod_links_recovers() {
    inject_at_every_step("f-tower", None, Operation::Apply(STACKED));
}

#[test]
fn delete_of_stacked_pod_links_recovers() {
    inject_at_every_step("f-untower", Some(STACKED), Operation::Delete(STACKED));
}

#[test]
fn move_of_a_nic_recovers() {
    inject_at_every_step("f-lend", None, Operation::Apply(MOVED_NIC));
}

#[test]
fn return_of_a_nic_recovers() {
    inject_at_every_step("f-unlend", Some(MOVED_NIC), Operation::Delete(MOVED_NIC_DEVICE));
}

#[test]
fn recreate_of_a_link_recovers() {
    inject_at_every_step("f-again", Some(TUNNEL), Operation::Apply(OTHER_TUNNEL));
}

#[test]
fn create_of_routes_recovers() {
    inject_at_every_step("f-route", [SECOND], Operation::Apply(ROUTING));
}

#[test]
fn change_of_routes_recovers() {
    inject_at_every_step("f-reroute", [SECOND, ROUTING], Operation::Apply(CHANGED_ROUTING));
}

#[test]
fn delete_of_routes_recovers() {
    inject_at_every_step("f-unroute", [SECOND, ROUTING], Operation::Delete(ROUTING));
}

#[test]
fn delete_of_an_interface_with_routes_recovers() {
    inject_at_every_step("f-under", [SECOND, ROUTING], Operation::Delete(SECOND));
}
