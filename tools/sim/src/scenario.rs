//! The cluster's contents: nodes with a pod range each, and tenants with their objects.

mod tenant;

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use knit_crds::Object;
use knit_engine::nodes::NodeInfo;
use knit_engine::pools::PodRanges;
use knit_engine::{StoredObject, cluster};
use knit_model::IfName;
use knit_model::connected_routes::ConnectedRoutes;
use knit_model::intent::NodeRoutesIntent;
use knit_model::provenance::Dialect;
use serde_json::{Value, json};

pub(crate) use self::tenant::{Definition, Tenant, block_audience, pools};

/// Who receives a change of the API server. Nodes with a full view receive all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Audience {
    /// The nodes of a tenant.
    Tenant(usize),
    /// The nodes of the tenants of a pool.
    Pool(usize),
    /// Only nodes with a full view.
    FullView,
}

/// The extension that every attach requires.
pub(crate) const REQUIRED_EXTENSION: &str = "mesh";

/// The object that requires it.
pub(crate) fn required_extension() -> Value {
    json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "Extension",
        "metadata": {"name": "mesh", "uid": "extension", "generation": 1},
        "spec": {"required": [REQUIRED_EXTENSION]},
    })
}

/// An object as stored in the API server.
pub(crate) fn object(manifest: &Value) -> Object {
    Object::from_manifest(manifest).expect("the manifest is valid")
}

/// An object as an agent stores it.
pub(crate) fn stored(manifest: &Value) -> StoredObject {
    let object = object(manifest);
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

/// The node with this name.
pub(crate) fn node_number(name: &str) -> usize {
    name.trim_start_matches("node-").parse().unwrap_or_default()
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

/// The cluster network object of a node with these ranges.
pub(crate) fn cluster_network(node: usize, ranges: &PodRanges) -> StoredObject {
    let bridge = IfName::new("knit0").expect("knit0 is a valid name");
    let node_routes = NodeRoutesIntent {
        anti_spoofing: true,
        masquerade: true,
        no_masquerade_ranges: vec![pod_range(node)],
        pools: ranges.pools.clone(),
        ..NodeRoutesIntent::default()
    };
    cluster::object(&ranges.own, &bridge, Some(1_500), Some(&node_routes))
}

/// A node as another one reads it from the API server.
pub(crate) fn node_info(node: usize, reader: usize) -> NodeInfo {
    NodeInfo {
        name: node_name(node),
        is_local: node == reader,
        ranges: vec![pod_range(node)],
        addresses: vec![node_address(node).addr()],
        other_addresses: Vec::new(),
        is_ready: true,
        key: None,
    }
}

/// The connected routes of every node: all nodes share a link.
pub(crate) fn connected_routes() -> ConnectedRoutes {
    ConnectedRoutes::new([(node_address(0).trunc(), 0, Some(uplink()))])
}

/// Whether a node receives everything: `full_view` of all nodes, evenly spread.
pub(crate) fn has_full_view(node: usize, nodes: usize, full_view: usize) -> bool {
    node * full_view % nodes < full_view
}

/// Whether a node joins after the start.
pub(crate) fn joins_late(node: usize, nodes: usize) -> bool {
    nodes >= 10 && (node % 50 == 49 || (nodes < 50 && node + 1 == nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_views_are_as_many_as_requested_and_spread() {
        for (nodes, full_view) in [(1, 1), (24, 24), (24, 5), (5_000, 10)] {
            let full: Vec<usize> = (0..nodes).filter(|node| has_full_view(*node, nodes, full_view)).collect();
            assert_eq!(full.len(), full_view);
            assert_eq!(full[0], 0);
            assert!(full.windows(2).all(|pair| pair[1] - pair[0] <= nodes.div_ceil(full_view)));
        }
    }

    #[test]
    fn node_names_have_the_number_of_their_node() {
        assert_eq!(node_number(&node_name(4_711)), 4_711);
    }
}
