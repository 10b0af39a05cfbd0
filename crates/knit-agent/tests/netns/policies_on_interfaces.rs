//! MultiNetworkPolicies on additional interfaces, with real packets. Needs root.

use serde_json::json;

use crate::support::interface_policies::{InterfaceNode, app, check};

const BRIDGE: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: lan}, spec: {
    selector: {matchLabels: {net: x}}, interfaceName: lan0, master: lanbr0, cidr: 10.44.0.0/24}}";

const VIRTUAL_NETWORK: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: VirtualNetwork
metadata: {name: blue}
spec: {subnets: [10.45.0.0/24, 'fd00:45::/64']}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: blue}
spec: {selector: {matchLabels: {net: x}}, interfaceName: blue0, network: blue}
";

const MACVLAN: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Uplink
metadata: {name: fabric}
spec: {link: nic0, namespaces: [default], kinds: [macvlan]}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Macvlan
metadata: {name: lan}
spec: {selector: {matchLabels: {net: x}}, interfaceName: mac0, parent: fabric, cidr: 10.46.0.0/24}
";

#[test]
fn policies_apply_to_hot_plugged_interfaces_on_a_bridge() {
    check("np-bridge", BRIDGE, "Bridge/default/lanbr0");
}

#[test]
fn policies_apply_to_interfaces_of_a_virtual_network_in_both_families() {
    check("np-virtual", VIRTUAL_NETWORK, "VirtualNetwork/default/blue");
}

#[test]
fn policies_apply_to_macvlan_interfaces() {
    check("np-macvlan", MACVLAN, "Macvlan/default/lan");
}

#[test]
fn an_interface_is_closed_until_its_policies_are_known() {
    let mut node = InterfaceNode::new("np-closed", BRIDGE);
    node.serve();
    // Whether there are policies is not known yet.
    node.assert_denied("web", "db", 80);
    node.list(&[]);
    node.assert_reached("web", "db", 80);
    // A policy about one of two interfaces.
    node.apply_objects(VIRTUAL_NETWORK);
    node.list_networks();
    let closed = json!({"podSelector": app("db"), "policyTypes": ["Ingress", "Egress"]});
    node.apply("db", "VirtualNetwork/blue", &closed);
    let addresses = |name: &str, node: &InterfaceNode| node.networks(name)["Bridge/default/lanbr0"].clone();
    let at = addresses("db", &node)[0];
    assert!(node.namespace("web").tcp_reaches((at, 80)).is_ok(), "{}", node.rules("db"));
    // A new interface of a restarted agent's pod is closed, too.
    node.restart();
    node.delete_objects(VIRTUAL_NETWORK);
    node.apply_objects(VIRTUAL_NETWORK);
    let blue = node.networks("web")["VirtualNetwork/default/blue"][0];
    let pings = |node: &InterfaceNode| {
        node.namespace("other").output("ping", &["-n", "-c", "1", "-W", "1", &blue.to_string()]).is_ok()
    };
    assert!(!pings(&node), "{}", node.rules("web"));
    node.list(&[]);
    assert!(pings(&node), "{}", node.rules("web"));
}
