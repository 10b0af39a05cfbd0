//! Ranges of others for the tenant's own networks. A range in use would make its first address local on every node, and its
//! route would be more specific than those of the cluster.

use serde_json::{Value, json};

use crate::hostile::objects::{object, select};
use crate::hostile::stage::{Stage, stage};
use crate::support::kubectl::kubectl;

/// The pod ranges of a node, one of each family.
fn pod_ranges(node: &str) -> (String, String) {
    let ranges = kubectl(&["get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}"]);
    let (v4, v6) = ranges.split_once(' ').unwrap();
    (v4.to_owned(), v6.to_owned())
}

/// A range of this length with these last digits in place of the range's own: `10.1.2.0/24` with `128/25`.
fn part(range: &str, suffix: &str) -> String {
    let (network, _) = range.split_once('/').unwrap();
    let (prefix, _) = network.rsplit_once(['.', ':']).unwrap();
    let separator = if network.contains(':') { ':' } else { '.' };
    format!("{prefix}{separator}{suffix}")
}

/// The node network, from the address of the control plane in it.
fn node_range() -> (String, String) {
    let address = kubectl(&[
        "get",
        "node",
        "node1",
        "-o",
        "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}",
    ]);
    let address = address.split_whitespace().find(|one| one.contains('.')).unwrap().to_owned();
    let (prefix, _) = address.rsplit_once('.').unwrap();
    (format!("{prefix}.0/24"), prefix.to_owned())
}

fn bridge(cidr: &str) -> Value {
    object("Bridge", &json!({"name": "attbr0", "cidr": cidr}))
}

#[track_caller]
fn assert_bridge_refused(cidr: &str, first: &str) {
    stage().assert_refused_by_nodes(&bridge(cidr), "overlaps", &[first]);
}

#[test]
fn bridge_over_the_upper_half_of_the_other_nodes_pods() {
    let range = pod_ranges("node2").0;
    assert_bridge_refused(&part(&range, "128/25"), &part(&range, "129"));
}

#[test]
fn bridge_over_the_lower_half_of_the_other_nodes_pods() {
    let range = pod_ranges("node2").0;
    assert_bridge_refused(&part(&range, "0/25"), &part(&range, "1"));
}

#[test]
fn bridge_over_all_pods_of_the_other_node() {
    let range = pod_ranges("node2").0;
    assert_bridge_refused(&range, &part(&range, "1"));
}

#[test]
fn bridge_over_the_pods_of_all_nodes() {
    let range = pod_ranges("node2").0;
    let mut parts = range.split('.');
    let network = format!("{}.{}.0.0/16", parts.next().unwrap(), parts.next().unwrap());
    let first = network.replace("0.0/16", "0.1");
    assert_bridge_refused(&network, &first);
}

#[test]
fn bridge_over_the_pods_of_its_own_node() {
    let range = pod_ranges("node1").0;
    assert_bridge_refused(&part(&range, "128/25"), &part(&range, "129"));
}

#[test]
fn bridge_over_half_of_the_other_nodes_ipv6_pods() {
    let range = pod_ranges("node2").1.replace("/64", "/65");
    assert_bridge_refused(&range, &part(&range, "1"));
}

#[test]
fn bridge_over_the_address_of_one_pod_of_another_tenant() {
    let stage = stage();
    let cidr = format!("{}/32", stage.far.ipv4);
    stage.assert_refused(&bridge(&cidr), "overlaps", &[]);
}

#[test]
fn bridge_over_all_services() {
    assert_bridge_refused("10.96.0.0/16", "10.96.0.1");
}

#[test]
fn bridge_over_more_than_all_services() {
    assert_bridge_refused("10.64.0.0/10", "10.64.0.1");
}

#[test]
fn bridge_over_the_service_of_the_api_server() {
    assert_bridge_refused("10.96.0.0/30", "10.96.0.1");
}

#[test]
fn bridge_over_the_service_of_the_dns_server() {
    assert_bridge_refused("10.96.0.8/29", "10.96.0.9");
}

#[test]
fn bridge_over_ipv6_services() {
    assert_bridge_refused("fd00:96::/120", "fd00:96::1");
}

#[test]
fn bridge_over_the_network_of_the_nodes() {
    let (range, prefix) = node_range();
    assert_bridge_refused(&range, &format!("{prefix}.1"));
}

#[test]
fn bridge_over_the_api_server() {
    let (_, prefix) = node_range();
    assert_bridge_refused(&format!("{prefix}.0/30"), &format!("{prefix}.1"));
}

#[test]
fn bridge_over_the_other_node() {
    let (_, prefix) = node_range();
    assert_bridge_refused(&format!("{prefix}.8/29"), &format!("{prefix}.12"));
}

#[test]
fn bridge_over_link_local_addresses() {
    // Many clouds serve credentials there.
    stage().assert_refused(&bridge("169.254.169.252/30"), "overlaps", &["169.254.169.254"]);
}

#[test]
fn bridge_over_loopback_addresses() {
    stage().assert_refused(&bridge("127.0.0.0/8"), "overlaps", &["127.0.0.53"]);
}

#[test]
fn bridge_over_multicast_addresses() {
    stage().assert_refused(&bridge("224.0.0.0/24"), "overlaps", &["224.0.0.5"]);
}

#[test]
fn bridge_over_all_addresses() {
    stage().assert_refused(&bridge("0.0.0.0/0"), "overlaps", &[]);
}

#[test]
fn bridge_over_ipv4_mapped_addresses() {
    stage().assert_refused(&bridge("::ffff:10.96.0.0/112"), "overlaps", &[]);
}

#[test]
fn bridge_with_a_second_range_over_services() {
    assert_bridge_refused("192.168.111.0/24,fd00:96::/120", "fd00:96::1");
}

#[test]
fn bridge_that_is_changed_to_a_range_of_services() {
    let stage = stage();
    let mut object = bridge("192.168.111.0/24");
    let stored = stage.create(&object);
    stored.assert_message("\"phase\":\"configured\"");
    let before = stage.host_state(&["10.96.0.1"]);
    object["spec"]["cidr"] = json!("10.96.0.0/30");
    let args = [stage.tenant.as_str(), "apply", "-f", "-"];
    let (accepted, output) = stage.attacker.feed(&args, &object.to_string());
    assert!(accepted, "{output}");
    stored.assert_message("overlaps");
    stage.assert_unaffected(&before, &["10.96.0.1"]);
}

/// An object whose interface in the tenant's pod gives its bridge a range.
#[track_caller]
fn assert_interface_refused(stage: &Stage, kind: &str, spec: Value, first: &str) {
    stage.assert_refused_by_nodes(&object(kind, &spec), "overlaps", &[first]);
}

#[test]
fn veth_with_a_range_of_the_other_nodes_pods() {
    let range = pod_ranges("node2").0;
    let cidr = part(&range, "128/25");
    let spec =
        json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr1", "cidr": cidr});
    assert_interface_refused(&stage(), "Veth", spec, &part(&range, "129"));
}

#[test]
fn virtualnetwork_over_services() {
    let stage = stage();
    let network = object("VirtualNetwork", &json!({"subnets": ["10.96.0.0/24"]}));
    let network_name = network["metadata"]["name"].clone();
    let _network = stage.create(&network);
    let spec = json!({"selector": select("plain"), "interfaceName": "att0", "network": network_name});
    assert_interface_refused(&stage, "Veth", spec, "10.96.0.1");
}

#[test]
fn podconfig_with_a_range_of_services() {
    let entry = json!({"name": "att", "linkType": "veth", "master": "attbr2", "cidr": "10.96.0.0/24"});
    let spec = json!({"selector": select("plain"), "networkAttachments": [entry]});
    assert_interface_refused(&stage(), "PodConfig", spec, "10.96.0.1");
}

#[test]
fn podnetworkconfig_with_a_range_of_the_nodes() {
    let (range, prefix) = node_range();
    let entry = json!({"namePrefix": "att", "master": "attbr3", "cidr": range});
    let spec = json!({"selector": select("plain"), "links": [entry]});
    assert_interface_refused(&stage(), "PodNetworkConfig", spec, &format!("{prefix}.1"));
}
