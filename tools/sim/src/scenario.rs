//! The cluster's contents: nodes with a pod range each, tenants whose ranges nodes share, and their objects.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use knit_crds::Object;
use knit_engine::{StoredObject, cluster};
use knit_model::IfName;
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use serde_json::{Value, json};

/// Nodes per tenant.
const NODES_PER_TENANT: usize = 16;
/// Every agent holds the manifest of every object, and every block, so memory grows with tenants times nodes.
const MAX_TENANTS: usize = 60;

/// A tenant: a namespace with one range, on some nodes.
pub(crate) struct Tenant {
    pub(crate) namespace: String,
    /// As written by its author.
    pub(crate) manifest: Value,
    first: usize,
    nodes: usize,
}

impl Tenant {
    /// Tenants for a cluster of this size. Some have more nodes than blocks, some more pods than addresses.
    pub(crate) fn all(nodes: usize) -> Vec<Self> {
        let count = (nodes / NODES_PER_TENANT).clamp(1, MAX_TENANTS);
        let tenant = |index: usize| {
            let namespace = format!("tenant-{index}");
            let (prefix, width) = match index % 4 {
                0 => (24, 20),
                1 => (27, 12),
                _ => (20, 12),
            };
            let start = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + (index as u32) * 4_096;
            let range = format!("{}/{prefix}", Ipv4Addr::from(start));
            let manifest = json!({
                "apiVersion": "podnetwork.opdev.io/v1alpha1",
                "kind": "Veth",
                "metadata": {"name": "net", "namespace": namespace, "uid": format!("net-{index}"), "generation": 1},
                "spec": {
                    "selector": {"matchLabels": {"net": "yes"}},
                    "interfaceName": "net0",
                    "master": format!("tbr{index}"),
                    "cidr": range,
                },
            });
            Self { namespace, manifest, first: index * nodes / count, nodes: width.min(nodes) }
        };
        (0..count).map(tenant).collect()
    }

    /// Whether its pods may run on this node.
    pub(crate) fn is_on(&self, node: usize, nodes: usize) -> bool {
        (node + nodes - self.first) % nodes < self.nodes
    }

    /// The object in the API server.
    pub(crate) fn object(&self) -> Object {
        Object::from_manifest(&self.manifest).expect("the manifest is valid")
    }

    /// The object as an agent stores it.
    pub(crate) fn stored(&self) -> StoredObject {
        stored(&self.manifest)
    }
}

/// An object as an agent stores it.
pub(crate) fn stored(manifest: &Value) -> StoredObject {
    let object = Object::from_manifest(manifest).expect("the manifest is valid");
    let translation = object.intents(Dialect::Kubernetes).expect("the manifest can be translated");
    StoredObject {
        object: object.object_ref(),
        intents: translation.intents,
        warnings: translation.warnings,
        manifest: manifest.clone(),
        since: 0,
        file: None,
    }
}

/// A node's name.
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node:05}")
}

/// A node's pod range.
pub(crate) fn pod_range(node: usize) -> IpNet {
    let start = u32::from(Ipv4Addr::new(10, 0, 0, 0)) + (node as u32) * 256;
    IpNet::new(IpAddr::from(Ipv4Addr::from(start)), 24).expect("24 is a prefix length")
}

/// A node's own address; all nodes share a link.
pub(crate) fn node_address(node: usize) -> IpNet {
    let address = u32::from(Ipv4Addr::new(172, 16, 0, 1)) + node as u32;
    IpNet::new(IpAddr::from(Ipv4Addr::from(address)), 12).expect("12 is a prefix length")
}

/// The node's link to the others.
pub(crate) fn uplink() -> IfName {
    IfName::new("eth0").expect("eth0 is a valid name")
}

/// The cluster network object of a node. Routes to other nodes are left out: each node would have all others.
pub(crate) fn cluster_network(node: usize) -> StoredObject {
    let bridge = IfName::new("knit0").expect("knit0 is a valid name");
    let node_routes =
        NodeRoutesIntent { anti_spoofing: true, masquerade: true, ..NodeRoutesIntent::default() };
    cluster::object(&[pod_range(node)], &bridge, Some(1_500), Some(&node_routes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenant_has_nodes_and_its_own_range() {
        for nodes in [1, 7, 50, 5_000] {
            let tenants = Tenant::all(nodes);
            for tenant in &tenants {
                assert!((0..nodes).any(|node| tenant.is_on(node, nodes)), "{}", tenant.namespace);
                assert_eq!(tenant.stored().intents.len(), 1);
            }
            let ranges: std::collections::BTreeSet<String> =
                tenants.iter().map(|tenant| tenant.manifest["spec"]["cidr"].to_string()).collect();
            assert_eq!(ranges.len(), tenants.len());
        }
    }
}
