//! A fault at every step of plans inside a VRF of the pod, on a kernel with VRFs. Needs root.

use crate::support::fault_steps::{Operation, inject_at_every_step};

/// A VRF.
const VRF: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vrf, metadata: {name: red}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: red, table: 1010}}";

/// An interface in the VRF.
const PORT: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, vrf: red, addresses: ['10.62.0.2/24']}}";

/// The same VRF with another table: it is recreated.
const OTHER_TABLE: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vrf, metadata: {name: red}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: red, table: 1011}}";

/// All routing entries, inside the VRF.
const ROUTING: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, vrf: red, routes: [
        {to: 10.99.0.0/16, via: 10.62.0.1}, {to: 10.98.0.0/16, type: blackhole},
        {to: 'fd98::/32', type: unreachable}, {to: 10.97.0.0/16, via: 10.62.0.1, mtu: 1300, src: 10.62.0.2}],
    rules: [{priority: 900, from: 10.62.0.0/24, table: 1010}],
    neighbours: [{address: 10.62.0.77, dev: mv0, hardwareAddr: '02:00:00:00:00:77'}],
    sysctls: {net.ipv4.conf.mv0.rp_filter: '2'}}}";

/// The same with every field changed that can change.
const CHANGED_ROUTING: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, vrf: red, routes: [
        {to: 10.99.0.0/16, via: 10.62.0.3}, {to: 10.98.0.0/16, type: prohibit},
        {to: 'fd97::/32', type: blackhole}, {to: 10.97.0.0/16, via: 10.62.0.1, mtu: 1200}],
    rules: [{priority: 901, from: 10.62.0.0/24, table: 1010}],
    neighbours: [{address: 10.62.0.77, dev: mv0, hardwareAddr: '02:00:00:00:00:78'}],
    sysctls: {net.ipv4.conf.mv0.rp_filter: '1'}}}";

#[test]
fn create_of_vrf_routes_recovers() {
    inject_at_every_step("f-vroute", [VRF, PORT], Operation::Apply(ROUTING));
}

#[test]
fn change_of_vrf_routes_recovers() {
    inject_at_every_step("f-vreroute", [VRF, PORT, ROUTING], Operation::Apply(CHANGED_ROUTING));
}

#[test]
fn delete_of_vrf_routes_recovers() {
    inject_at_every_step("f-vunroute", [VRF, PORT, ROUTING], Operation::Delete(ROUTING));
}

#[test]
fn recreate_of_a_vrf_with_routes_recovers() {
    inject_at_every_step("f-vagain", [VRF, PORT, ROUTING], Operation::Apply(OTHER_TABLE));
}

#[test]
fn delete_of_a_vrf_with_routes_recovers() {
    inject_at_every_step("f-vunder", [VRF, PORT, ROUTING], Operation::Delete(VRF));
}

#[test]
fn delete_of_a_vrf_port_with_routes_recovers() {
    inject_at_every_step("f-vport", [VRF, PORT, ROUTING], Operation::Delete(PORT));
}
