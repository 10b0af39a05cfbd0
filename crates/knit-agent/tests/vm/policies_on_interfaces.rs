//! MultiNetworkPolicies on interfaces of kinds that need the guest's kernel. Needs root.

use crate::support::interface_policies::check;

const VLAN: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: {name: trunk}
spec: {selector: {matchLabels: {net: x}}, interfaceName: trunk0, master: trunkbr0}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Vlan
metadata: {name: office}
spec: {selector: {matchLabels: {net: x}}, interfaceName: vl100, parent: trunk0, id: 100, cidr: 10.47.0.0/24}
";

const IPVLAN: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Uplink
metadata: {name: fabric}
spec: {link: nic0, namespaces: [default], kinds: [ipvlan]}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Ipvlan
metadata: {name: lan}
spec: {selector: {matchLabels: {net: x}}, interfaceName: ipv0, parent: fabric, cidr: 10.48.0.0/24}
";

#[test]
fn policies_apply_to_vlans_of_pods() {
    check("np-vlan", VLAN, "Vlan/default/office");
}

#[test]
fn policies_apply_to_ipvlan_interfaces() {
    check("np-ipvlan", IPVLAN, "Ipvlan/default/lan");
}
