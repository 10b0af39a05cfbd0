//! Ranges that no admin opened: the first address of a network would be local on every node, which then no longer reaches what has
//! this address outside of the cluster.

use serde_json::{Value, json};

use crate::hostile::objects::{object, select};
use crate::hostile::stage::{assert_denied, stage};
use crate::support::kubectl::{feed, run};
use crate::support::operator::{eventually, on_node};

/// Part of the message in the status.
const CLOSED: &str = "is not within a range that is open to tenants";
/// A public DNS server, and the ranges in which it is the first address.
const SERVER: [&str; 2] = ["1.1.1.1", "2606:4700:4700::1111"];
const RANGE: [&str; 2] = ["1.1.1.0/30", "2606:4700:4700::1110/124"];

fn bridge(cidr: &str) -> Value {
    object("Bridge", &json!({"name": "attbr0", "cidr": cidr}))
}

#[track_caller]
fn assert_refused(object: &Value, first: &str) {
    stage().assert_refused_by_nodes(object, CLOSED, &[first]);
}

/// Asserts that a network with this range gives the node no address, if an interface is on it.
#[track_caller]
fn assert_network_refused(mut spec: Value) {
    let stage = stage();
    spec["subnets"] = json!([RANGE[0]]);
    let network = object("VirtualNetwork", &spec);
    let name = network["metadata"]["name"].clone();
    let network = stage.create(&network);
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "network": name});
    stage.assert_refused_by_nodes(&object("Veth", &spec), CLOSED, &[SERVER[0]]);
    drop(network);
}

#[test]
fn bridge_over_an_address_outside_of_the_cluster() {
    assert_refused(&bridge(RANGE[0]), SERVER[0]);
}

#[test]
fn bridge_over_an_ipv6_address_outside_of_the_cluster() {
    assert_refused(&bridge(RANGE[1]), SERVER[1]);
}

#[test]
fn bridge_over_unused_private_addresses() {
    assert_refused(&bridge("10.200.0.0/24"), "10.200.0.1");
}

#[test]
fn bridge_over_more_than_an_open_range() {
    assert_refused(&bridge("192.168.64.0/18"), "192.168.64.1");
}

#[test]
fn bridge_with_a_second_range_outside_of_the_cluster() {
    assert_refused(&bridge("192.168.111.0/24,1.1.1.0/30"), SERVER[0]);
}

#[test]
fn bridge_that_is_changed_to_a_range_outside_of_the_cluster() {
    let stage = stage();
    let mut object = bridge("192.168.111.0/24");
    let stored = stage.create(&object);
    stored.assert_message("\"phase\":\"configured\"");
    let before = stage.host_state(&[SERVER[0]]);
    object["spec"]["cidr"] = json!(RANGE[0]);
    let args = [stage.tenant.as_str(), "apply", "-f", "-"];
    let (accepted, output) = stage.attacker.feed(&args, &object.to_string());
    assert!(accepted, "{output}");
    stored.assert_message(CLOSED);
    stage.assert_unaffected(&before, &[SERVER[0]]);
}

#[test]
fn veth_with_a_range_outside_of_the_cluster() {
    let spec =
        json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr1", "cidr": RANGE[0]});
    assert_refused(&object("Veth", &spec), SERVER[0]);
}

#[test]
fn virtualnetwork_with_a_range_outside_of_the_cluster() {
    assert_network_refused(json!({}));
}

#[test]
fn overlay_with_a_range_outside_of_the_cluster() {
    assert_network_refused(json!({"transport": "vxlan"}));
}

#[test]
fn podconfig_with_a_range_outside_of_the_cluster() {
    let entry = json!({"name": "att", "linkType": "veth", "master": "attbr2", "cidr": RANGE[0]});
    let spec = json!({"selector": select("plain"), "networkAttachments": [entry]});
    assert_refused(&object("PodConfig", &spec), SERVER[0]);
}

#[test]
fn podnetworkconfig_with_a_range_outside_of_the_cluster() {
    let entry = json!({"namePrefix": "att", "master": "attbr3", "cidr": RANGE[0]});
    let spec = json!({"selector": select("plain"), "links": [entry]});
    assert_refused(&object("PodNetworkConfig", &spec), SERVER[0]);
}

/// The ranges that the admin opens, deleted when dropped.
struct OpenRanges;

impl OpenRanges {
    fn new(tenants: &[&str]) -> Self {
        let object = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "ClusterRanges",
            "metadata": {"name": "cluster"},
            "spec": {"tenants": tenants},
        });
        let (accepted, output) = feed(&["apply", "-f", "-"], &object.to_string());
        assert!(accepted, "{output}");
        Self
    }
}

impl Drop for OpenRanges {
    fn drop(&mut self) {
        run(&["delete", "clusterranges.podnetwork.opdev.io", "cluster", "--ignore-not-found"]);
    }
}

#[test]
fn range_that_an_admin_opens_and_closes() {
    let stage = stage();
    let stored = stage.create(&bridge("10.201.0.0/24"));
    stored.assert_message(CLOSED);
    let ranges = OpenRanges::new(&["192.168.96.0/19", "10.201.0.0/16"]);
    let addresses = || on_node("node1", &["ip", "-4", "-o", "addr"]);
    eventually("the node has the gateway", addresses, |all| all.contains("10.201.0.1/24"));
    stored.assert_message("\"phase\":\"configured\"");
    // With a list in the cluster the API server rejects other ranges.
    let closed = bridge(RANGE[0]);
    let answer = || stage.try_create(&stage.tenant, &closed);
    let answer = eventually("the policy is in force", answer, |(accepted, _)| !accepted);
    assert_denied(answer, "1.1.1.0/30 is not within a range that is open to tenants, 192.168.96.0/19");
    drop(ranges);
    eventually("the node has no gateway", addresses, |all| !all.contains("10.201.0.1"));
    stored.assert_message(CLOSED);
}
