//! A fault at every step of every plan: a refusal leaves everything as before the plan, a crash is mended by the next
//! start. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    pub mod every_step;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod world;
}

use support::every_step::{Act, every_step};

/// Everything that one interface can have: a bridge with addresses, routes, rules, sysctls.
const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:1::/64', mtu: 1400,
    alias: one, routes: [{to: 10.50.0.0/16, via: 10.1.0.1}], rules: [{priority: 900, from: 10.1.0.0/24, table: 100}],
    gateways: ['fd00:1::1'], sysctls: {ipv4/rp_filter: '2'}}}";

/// The same with every field changed on the living link.
const CHANGED: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: '10.1.0.0/24,fd00:2::/64', mtu: 1300,
    alias: two, routes: [{to: 10.50.0.0/16, via: 10.1.0.9}, {to: 10.60.0.0/16, type: blackhole}],
    rules: [{priority: 901, from: 10.1.0.0/24, table: 101}], sysctls: {ipv4/rp_filter: '1'}}}";

/// A change of what others made.
const PRIMARY: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: first}, spec: {
    selector: {matchLabels: {app: x}}, mtu: 1300, txQLen: 77, hardwareAddr: '02:00:00:00:00:61',
    sysctls: {ipv4/rp_filter: '2'}, routes: [{to: 10.70.0.0/16, via: 10.9.0.1}]}}";

/// Links with no end on the host, one on top of the other.
const TOWER: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodNetworkConfig, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, additionalNetworks: [
        {networkName: top, linkType: macvlan, master: low, cidr: 10.8.0.0/24},
        {networkName: low, linkType: macvlan, master: eth0, cidr: 10.7.0.0/24, networkDescription: below}]}}";

/// A tunnel.
const TUNNEL: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vxlan, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: vx0, vni: 7, remote: 10.9.0.3, addresses: ['10.7.0.2/24']}}";

/// The same as another network: the link has to be made again.
const OTHER_TUNNEL: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Vxlan, metadata: {name: vx}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: vx0, vni: 8, remote: 10.9.0.4, addresses: ['10.7.0.3/24']}}";

/// An interface of Knit's, beside the one of others.
const SECOND: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, addresses: ['10.8.0.2/24']}}";

/// Everything about routing, on both.
const ROUTING: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, routes: [
        {to: 10.50.0.0/16, via: 10.9.0.1}, {to: 10.51.0.0/16, type: blackhole}, {to: 10.52.0.0/16, nextHops: [
            {via: 10.9.0.1, weight: 2}, {via: 10.8.0.1, dev: mv0}]}, {to: 'fd50::/32', via: 'fe80::1', dev: mv0}],
    rules: [{priority: 900, from: 10.9.0.0/24, table: 100}], neighbours: [
        {address: 10.9.0.77, dev: eth0, hardwareAddr: '02:00:00:00:00:77'}, {address: 10.8.0.77, dev: mv0, proxy: true}],
    sysctls: {net.ipv4.conf.eth0.rp_filter: '2', net.ipv4.conf.mv0.rp_filter: '2', net.ipv4.ip_nonlocal_bind: '1'}}}";

/// The same with every field changed that can be.
const REROUTED: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PodRoute, metadata: {name: r}, spec: {
    selector: {matchLabels: {app: x}}, routes: [
        {to: 10.50.0.0/16, via: 10.9.0.3, mtu: 1300, src: 10.9.0.2}, {to: 10.51.0.0/16, via: 10.8.0.1},
        {to: 10.52.0.0/16, type: prohibit}, {to: 'fd50::/32', type: blackhole}],
    rules: [{priority: 901, from: 10.9.0.0/24, table: 100}],
    neighbours: [{address: 10.9.0.77, dev: eth0, hardwareAddr: '02:00:00:00:00:78'}],
    sysctls: {net.ipv4.conf.eth0.rp_filter: '0', net.ipv4.conf.mv0.rp_filter: '1'}}}";

/// A NIC of the host.
const LENT: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Uplink, metadata: {name: wire}, spec: {
    link: nic0, namespaces: [default], kinds: [host-device]}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: HostDevice, metadata: {name: nic}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: wire0, parent: wire, addresses: ['10.7.0.2/24'], mtu: 1300,
    hardwareAddr: '02:00:00:00:00:62'}}";

/// The same without the word of the admin, which stays when it is given back.
const LENT_TO: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: HostDevice, metadata: {name: nic}, spec: {
    interfaceName: wire0, parent: wire}}";

#[test]
fn attaching() {
    every_step("f-attach", None, Act::Apply(VETH));
}

#[test]
fn detaching() {
    every_step("f-detach", Some(VETH), Act::Delete(VETH));
}

#[test]
fn changing() {
    every_step("f-change", Some(VETH), Act::Apply(CHANGED));
}

#[test]
fn changing_what_others_made() {
    every_step("f-first", None, Act::Apply(PRIMARY));
}

#[test]
fn giving_back_what_others_made() {
    every_step("f-back", Some(PRIMARY), Act::Delete(PRIMARY));
}

#[test]
fn making_links_that_live_in_the_pod_alone() {
    every_step("f-tower", None, Act::Apply(TOWER));
}

#[test]
fn removing_links_that_live_in_the_pod_alone() {
    every_step("f-untower", Some(TOWER), Act::Delete(TOWER));
}

#[test]
fn lending_a_nic() {
    every_step("f-lend", None, Act::Apply(LENT));
}

#[test]
fn giving_a_nic_back() {
    every_step("f-unlend", Some(LENT), Act::Delete(LENT_TO));
}

#[test]
fn making_a_link_again() {
    every_step("f-again", Some(TUNNEL), Act::Apply(OTHER_TUNNEL));
}

#[test]
fn routing() {
    every_step("f-route", [SECOND], Act::Apply(ROUTING));
}

#[test]
fn routing_otherwise() {
    every_step("f-reroute", [SECOND, ROUTING], Act::Apply(REROUTED));
}

#[test]
fn routing_no_more() {
    every_step("f-unroute", [SECOND, ROUTING], Act::Delete(ROUTING));
}

#[test]
fn an_interface_goes_under_its_routes() {
    every_step("f-under", [SECOND, ROUTING], Act::Delete(SECOND));
}
