//! A fault at every step of plans inside a VRF of the pod, on a kernel that has them. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    pub mod every_step;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod world;
}

use support::every_step::{Act, every_step};

/// A VRF, and an interface that is its port.
const VRF: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vrf, metadata: {name: red}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: red, table: 1010}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, vrf: red, addresses: ['10.62.0.2/24']}}";

/// The same VRF with another table: it has to be made again.
const OTHER_TABLE: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vrf, metadata: {name: red}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: red, table: 1011}}";

/// Everything about routing, inside the VRF.
const ROUTING: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, vrf: red, routes: [
        {to: 10.99.0.0/16, via: 10.62.0.1}, {to: 10.98.0.0/16, type: blackhole},
        {to: 'fd98::/32', type: unreachable}, {to: 10.97.0.0/16, via: 10.62.0.1, mtu: 1300, src: 10.62.0.2}],
    rules: [{priority: 900, from: 10.62.0.0/24, table: 1010}],
    neighbours: [{address: 10.62.0.77, dev: mv0, hardwareAddr: '02:00:00:00:00:77'}],
    sysctls: {net.ipv4.conf.mv0.rp_filter: '2'}}}";

/// The same with every field changed that can be.
const REROUTED: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, vrf: red, routes: [
        {to: 10.99.0.0/16, via: 10.62.0.3}, {to: 10.98.0.0/16, type: prohibit},
        {to: 'fd97::/32', type: blackhole}, {to: 10.97.0.0/16, via: 10.62.0.1, mtu: 1200}],
    rules: [{priority: 901, from: 10.62.0.0/24, table: 1010}],
    neighbours: [{address: 10.62.0.77, dev: mv0, hardwareAddr: '02:00:00:00:00:78'}],
    sysctls: {net.ipv4.conf.mv0.rp_filter: '1'}}}";

#[test]
fn routing_inside_a_vrf() {
    every_step("f-vroute", [VRF], Act::Apply(ROUTING));
}

#[test]
fn routing_otherwise_inside_a_vrf() {
    every_step("f-vreroute", [VRF, ROUTING], Act::Apply(REROUTED));
}

#[test]
fn routing_no_more_inside_a_vrf() {
    every_step("f-vunroute", [VRF, ROUTING], Act::Delete(ROUTING));
}

#[test]
fn a_vrf_is_made_again_under_its_routes() {
    every_step("f-vagain", [VRF, ROUTING], Act::Apply(OTHER_TABLE));
}

#[test]
fn a_vrf_goes_under_its_routes() {
    every_step("f-vunder", [VRF, ROUTING], Act::Delete(VRF));
}
