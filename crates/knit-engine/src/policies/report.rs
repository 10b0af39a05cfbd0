//! What network policies do on this node, for people: which policies restrict which pods, and why a connection is allowed or
//! denied.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::SandboxId;
use knit_policy::{
    CLOSED, Direction, DropRule, Flow, PodChains, PodKey, PolicyId, PolicyKind, Segment, Tier, TraceStep,
    Verdict,
};

use super::key_of;
use crate::overlay::gateway_addresses;
use crate::state::State;

/// Whether policies are enforced on this node, and what is not known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether they are enforced.
    pub is_enforced: bool,
    /// Whether this node has a cluster network that could enforce them.
    pub has_cluster_network: bool,
    /// What is not listed yet. Until it is, rules stay as they are and new pods are closed.
    pub pending: Vec<&'static str>,
    /// Whether packets between pods of this node bypass all policies, because `br_netfilter` is not loaded.
    pub lacks_bridge_filter: bool,
}

/// A policy that restricts pods of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// Its group.
    pub tier: Tier,
    /// The directions with rules, of the pods of this node.
    pub directions: BTreeSet<Direction>,
    /// The number of these pods.
    pub pods: usize,
}

/// All policies that restrict pods of this node, and all segments with pods of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyList {
    /// The policies.
    pub policies: BTreeMap<PolicyId, PolicyEntry>,
    /// The segments, each with the number of its pods on this node.
    pub segments: BTreeMap<Segment, usize>,
}

/// What restricts one pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPolicies {
    /// Its addresses on the cluster network; none while it is not known.
    pub addresses: Vec<IpAddr>,
    /// Policies about connections to it.
    pub ingress: DirectionPolicies,
    /// Policies about connections from it.
    pub egress: DirectionPolicies,
    /// Its segment, if it is isolated, with the chain and the number of pods of this node that share it.
    pub segment: Option<(Segment, (String, usize))>,
    /// Whether it is closed in a direction, because its labels or its namespace are not known yet.
    pub is_closed: bool,
}

/// The policies about one direction of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectionPolicies {
    /// Each policy with the number of its rules, in the order of their evaluation.
    pub policies: Vec<(PolicyId, Tier, usize)>,
    /// The chains with their rules, in the order of their evaluation; none if the pod is not restricted.
    pub chains: Vec<String>,
    /// The number of pods of this node that share the chains.
    pub pods: usize,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A pod by its name.
    Pod(PodKey),
    /// An address.
    Address(IpAddr),
}

/// A connection that is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionQuery {
    /// The initiator.
    pub from: Endpoint,
    /// The other end, after translation by Services.
    pub to: Endpoint,
    /// The number of the layer 4 protocol.
    pub protocol: u8,
    /// The destination port.
    pub port: u16,
    /// Whether a Service translated its destination.
    pub through_service: bool,
}

/// Why a connection is allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    /// The connection.
    pub flow: Flow,
    /// The end of the source.
    pub egress: EndReport,
    /// The end of the destination.
    pub ingress: EndReport,
    /// The segment of the destination, if it is isolated from the source. The node of the source enforces it.
    pub isolated: Option<Segment>,
}

/// What the policies about one end do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndReport {
    /// The pod; `None`: the address is not that of a pod on the cluster network.
    pub pod: Option<PodKey>,
    /// The node that enforces policies about this end.
    pub node: PodNode,
    /// Whether the other end is the pod's own node: no policy is about such a connection.
    pub is_own_node: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// The policies with what they do, in the order of their evaluation.
    pub trace: Vec<TraceStep>,
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodNode {
    /// On this node.
    Local,
    /// On another node.
    Remote(String),
    /// No pod, or no node is known to have its address.
    Unknown,
}

/// Why a connection cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainError {
    /// Policies are not enforced on this node.
    NotEnforced,
    /// Not everything is listed yet.
    Pending(Vec<&'static str>),
    /// No pod has this name.
    UnknownPod(PodKey),
    /// The pod has no address on the cluster network.
    NoAddress(PodKey),
    /// The ends have no common address family.
    NoCommonFamily,
}

impl State {
    /// Whether policies are enforced, and what is not known yet.
    pub fn policy_status(&self) -> PolicyStatus {
        let policies = &self.policies;
        let is_enforced = self.enforces_policies();
        let listed = |kind: PolicyKind| policies.listed.contains(&kind);
        let known = [
            (listed(PolicyKind::NetworkPolicy), "NetworkPolicies"),
            (listed(PolicyKind::ClusterNetworkPolicy), "ClusterNetworkPolicies"),
            (policies.has_namespaces, "Namespaces"),
            (policies.app_pods.is_some(), "pods of apps"),
            (policies.has_pods || !policies.needs_pods(), "Pods"),
        ];
        let pending = known.into_iter().filter(|(is_known, _)| is_enforced && !is_known);
        PolicyStatus {
            is_enforced,
            has_cluster_network: self.cluster().is_some_and(|cluster| cluster.node_routes.is_some()),
            pending: pending.map(|(_, what)| what).collect(),
            lacks_bridge_filter: is_enforced && self.settings.lacks_bridge_filter,
        }
    }

    /// The policies that restrict pods of this node.
    pub fn policy_list(&self) -> PolicyList {
        let (index, mut list) = (&self.policies.index, PolicyList::default());
        if !self.enforces_policies() {
            return list;
        }
        for key in self.known_pods().map(|(_, key)| key) {
            let mut counted = BTreeSet::new();
            for direction in Direction::ALL {
                for policy in index.policies_about(&key, direction) {
                    let new = || PolicyEntry { tier: policy.tier, directions: BTreeSet::new(), pods: 0 };
                    let entry = list.policies.entry(policy.id.clone()).or_insert_with(new);
                    entry.directions.insert(direction);
                    entry.pods += usize::from(counted.insert(&policy.id));
                }
            }
            if let Some(segment) = index.segment(&key) {
                *list.segments.entry(segment).or_default() += 1;
            }
        }
        list
    }

    /// What restricts a pod of this node; `None` if there is no such sandbox.
    pub fn pod_policies(&self, id: &SandboxId) -> Option<PodPolicies> {
        let sandbox = self.sandboxes.get(id)?;
        let (key, index) = (key_of(sandbox), &self.policies.index);
        let pod = index.pod(&key).filter(|pod| pod.has_uid(&sandbox.uid));
        let chains = if self.enforces_policies() { self.chains_of(id) } else { PodChains::default() };
        let direction = |direction: Direction, chain: fn(&PodChains) -> &Option<String>| {
            let first = chain(&chains).as_ref();
            let is_known = pod.is_some() && self.enforces_policies();
            let about = if is_known { index.policies_about(&key, direction) } else { Vec::new() };
            let sharing = |one: &&PodChains| first.is_some() && chain(one).as_ref() == first;
            DirectionPolicies {
                policies: about
                    .into_iter()
                    .map(|policy| {
                        (policy.id.clone(), policy.tier, policy.rules(direction).map_or(0, <[_]>::len))
                    })
                    .collect(),
                chains: first.map(|first| index.chains_from(first)).unwrap_or_default(),
                pods: index.all_local_chains().map(|(_, chains)| chains).filter(sharing).count(),
            }
        };
        let is_closed = [&chains.ingress, &chains.egress].into_iter().flatten().any(|chain| chain == CLOSED);
        let segment_chain = chains.segment.clone().map(|chain| {
            let all = index.all_local_chains().map(|(_, chains)| chains);
            let pods = all.filter(|one| one.segment.as_ref() == Some(&chain)).count();
            (chain, pods)
        });
        Some(PodPolicies {
            addresses: pod.map(|pod| pod.addresses().collect()).unwrap_or_default(),
            ingress: direction(Direction::Ingress, |chains| &chains.ingress),
            egress: direction(Direction::Egress, |chains| &chains.egress),
            segment: pod.and_then(|_| index.segment(&key)).zip(segment_chain),
            is_closed,
        })
    }

    /// The rules that count dropped packets.
    pub fn policy_drop_rules(&self) -> Vec<DropRule> {
        if !self.enforces_policies() {
            return Vec::new();
        }
        let index = &self.policies.index;
        let pods = index.all_local_chains().map(|(key, chains)| (key.clone(), chains));
        index.drop_rules(&index.tables(), pods)
    }

    /// Why a connection is allowed or denied, in each address family that both ends have. Empty if there are no policies and
    /// nothing is isolated: then every connection is allowed.
    pub fn explain_connection(&self, query: &ConnectionQuery) -> Result<Vec<ConnectionReport>, ExplainError> {
        let status = self.policy_status();
        if !status.is_enforced {
            return Err(ExplainError::NotEnforced);
        }
        if !status.pending.is_empty() {
            return Err(ExplainError::Pending(status.pending));
        }
        if !self.has_policies() {
            return Ok(Vec::new());
        }
        let (sources, destinations) = (self.addresses_of(&query.from)?, self.addresses_of(&query.to)?);
        let pairs = [true, false].into_iter().filter_map(|is_ipv4| {
            let of_family = |all: &[IpAddr]| all.iter().copied().find(|one| one.is_ipv4() == is_ipv4);
            Some((of_family(&sources)?, of_family(&destinations)?))
        });
        let reports: Vec<ConnectionReport> = pairs
            .map(|(source, destination)| {
                let ConnectionQuery { protocol, port, through_service, .. } = *query;
                self.connection_report(Flow { source, destination, protocol, port, through_service })
            })
            .collect();
        if reports.is_empty() { Err(ExplainError::NoCommonFamily) } else { Ok(reports) }
    }

    fn connection_report(&self, flow: Flow) -> ConnectionReport {
        let decision = self.policies.index.evaluate(&flow);
        let end = |own: IpAddr, other: IpAddr, direction: Direction, verdict: Verdict| {
            let pod = self.policies.index.pod_with_address(own);
            let node = pod.as_ref().map_or(PodNode::Unknown, |pod| self.node_of_pod(pod, own));
            let is_own_node = node != PodNode::Unknown && self.node_with_address(other) == node;
            let (verdict, trace) = match is_own_node {
                true => (Verdict::Unrestricted, Vec::new()),
                false => (verdict, self.policies.index.trace(&flow, direction)),
            };
            EndReport { pod, node, is_own_node, verdict, trace }
        };
        ConnectionReport {
            flow,
            egress: end(flow.source, flow.destination, Direction::Egress, decision.egress),
            ingress: end(flow.destination, flow.source, Direction::Ingress, decision.ingress),
            isolated: decision.isolated,
        }
    }

    fn addresses_of(&self, end: &Endpoint) -> Result<Vec<IpAddr>, ExplainError> {
        match end {
            Endpoint::Address(address) => Ok(vec![*address]),
            Endpoint::Pod(key) => match self.policies.index.pod(key) {
                None => Err(ExplainError::UnknownPod(key.clone())),
                Some(pod) => {
                    let addresses: Vec<IpAddr> = pod.addresses().collect();
                    if addresses.is_empty() {
                        Err(ExplainError::NoAddress(key.clone()))
                    } else {
                        Ok(addresses)
                    }
                }
            },
        }
    }

    /// The pods of this node whose labels are known.
    fn known_pods(&self) -> impl Iterator<Item = (&SandboxId, PodKey)> {
        self.sandboxes.values().filter_map(|sandbox| {
            let key = key_of(sandbox);
            let pod = self.policies.index.pod(&key)?;
            pod.has_uid(&sandbox.uid).then_some((&sandbox.id, key))
        })
    }

    fn node_of_pod(&self, pod: &PodKey, address: IpAddr) -> PodNode {
        if self.sandboxes.values().any(|sandbox| key_of(sandbox) == *pod) {
            return PodNode::Local;
        }
        let has_pod = |ranges: &[ipnet::IpNet]| ranges.iter().any(|range| range.contains(&address));
        let peer = self.peers.values().find(|peer| has_pod(&peer.ranges));
        peer.map_or(PodNode::Unknown, |peer| PodNode::Remote(peer.name.clone()))
    }

    /// The node that has an address, of its own or as the gateway of its pods.
    fn node_with_address(&self, address: IpAddr) -> PodNode {
        let nodes = self.nodes.routed().into_iter().flat_map(|(nodes, _)| nodes.values());
        let is_own = nodes.filter(|node| node.is_local).any(|node| node.addresses.contains(&address));
        let ranges = self.cluster().map(|cluster| cluster.network.ranges.as_slice()).unwrap_or_default();
        if is_own || gateway_addresses(ranges).contains(&address) {
            return PodNode::Local;
        }
        let peer = self.peers.values().find(|peer| {
            peer.all_addresses().any(|one| one == address)
                || gateway_addresses(&peer.ranges).contains(&address)
        });
        peer.map_or(PodNode::Unknown, |peer| PodNode::Remote(peer.name.clone()))
    }
}

impl ConnectionReport {
    /// Whether both ends allow the connection.
    pub fn is_allowed(&self) -> bool {
        self.egress.verdict.is_allowed() && self.ingress.verdict.is_allowed() && self.isolated.is_none()
    }
}
