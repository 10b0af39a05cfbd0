//! The names of sets, maps and chains of Services in the table `inet knit`. Those of one IP family have the suffix `4` or `6`.
//!
//! A *frontend* is an (address . protocol . port), or a (protocol . port) of the node: there is a set for each of both.

use knit_model::filter::field::IpFamily;

/// What the names of everything here start with.
pub const NAME_PREFIX: &str = "service_";

/// What each kind of frontend has.
pub(crate) struct FrontendSets {
    /// Frontend to the number of its slots.
    pub(crate) slots: &'static str,
    /// The same for clients in the cluster, where it differs.
    pub(crate) internal_slots: &'static str,
    /// (Frontend . slot) to (address . port) of a backend. If the Service has affinity: (frontend . id of a backend).
    pub(crate) backends: &'static str,
    /// Frontends whose connections are masqueraded, whatever their source.
    pub(crate) masquerade: &'static str,
    /// Frontends of which only the node's own connections are masqueraded.
    pub(crate) masquerade_node: &'static str,
    /// Frontends without endpoints: rejected.
    pub(crate) no_endpoints: &'static str,
    /// Frontends with endpoints, but none on this node as the traffic policy requires: dropped.
    pub(crate) no_local_endpoints: &'static str,
    /// (Frontend . slot) to the id of a backend, if the Service has affinity.
    pub(crate) affinity_slots: &'static str,
    /// (Client . frontend) to the id of the backend of the client's last connection.
    pub(crate) affinity: &'static str,
}

/// Cluster IPs, external IPs, load balancer IPs.
pub(crate) const IPS: FrontendSets = FrontendSets {
    slots: "service_ips",
    internal_slots: "service_internal_ips",
    backends: "service_backends",
    masquerade: "service_masquerade",
    masquerade_node: "service_masquerade_node",
    no_endpoints: "service_no_endpoints",
    no_local_endpoints: "service_no_local_endpoints",
    affinity_slots: "service_affinity_slots",
    affinity: "service_affinity",
};
/// Node ports.
pub(crate) const NODE_PORTS: FrontendSets = FrontendSets {
    slots: "service_node_ports",
    internal_slots: "service_internal_node_ports",
    backends: "service_node_port_backends",
    masquerade: "service_node_port_masquerade",
    masquerade_node: "service_node_port_masquerade_node",
    no_endpoints: "service_node_port_no_endpoints",
    no_local_endpoints: "service_node_port_no_local_endpoints",
    affinity_slots: "service_node_port_affinity_slots",
    affinity: "service_node_port_affinity",
};

/// The verdict map from numbers of slots to the chains that choose one. The kernel validates the whole table whenever an
/// element with the name of a chain is added, for which it visits each such element: therefore Services have none.
pub(crate) const SLOTS: &str = "service_slots";
/// All cluster IPs.
pub(crate) const CLUSTER_IPS: &str = "service_cluster_ips";
/// The IPs of load balancers that Knit announces. The node that announces one has it on a link.
pub(crate) const ANNOUNCED: &str = "service_announced";
/// Frontends of load balancers with source ranges.
pub(crate) const RESTRICTED: &str = "service_restricted";
/// (Frontend . source range) that is allowed.
pub(crate) const ALLOWED_SOURCES: &str = "service_allowed_sources";
/// Backends that this node may lead to themselves, each address twice: source and destination of such a connection.
pub(crate) const HAIRPIN: &str = "service_hairpin";
/// The ranges of the cluster's pods.
const PODS: &str = "service_pods";

/// The set with the load balancer addresses that Knit announces: the node that has one on a link serves no ports of its own there.
pub fn announced_set(family: IpFamily) -> String {
    family.suffixed(ANNOUNCED)
}

/// The set of ranges with the addresses of the cluster's pods. The caller fills it.
pub fn pod_set(family: IpFamily) -> String {
    family.suffixed(PODS)
}

/// Whether a chain, set or map of the table `inet knit` belongs to Services.
pub fn is_service_name(name: &str) -> bool {
    name.starts_with(NAME_PREFIX)
}

/// Whether rules add the elements of this map, which are no part of the desired state.
pub fn is_dynamic_set(name: &str) -> bool {
    let affinity = [IPS.affinity, NODE_PORTS.affinity];
    IpFamily::ALL.into_iter().any(|family| affinity.iter().any(|map| family.suffixed(map) == name))
}
