//! Network policies for knit.v1: which restrict pods of this node, and why a connection is allowed or denied.

mod calls;
mod drops;
mod explain;

use std::collections::BTreeMap;

use knit_engine::State;
use knit_engine::policies::report::{DirectionPolicies, PodPolicies, PolicyEntry, PolicyList, PolicyStatus};
use knit_kni::v1;
use knit_model::SandboxId;
use knit_policy::{Direction, PodKey, PolicyId, Segment, Tier};

use crate::policy_drops::PolicyDrops;

/// The name of the profile that enforces policies.
const PRIMARY: &str = "primary";

/// Whether policies are enforced on this node, with this profile.
fn status(state: &State, profile: &str) -> v1::PolicyStatus {
    let status = state.policy_status();
    v1::PolicyStatus {
        enforced: status.is_enforced,
        reason: if status.is_enforced { String::new() } else { reason(&status, profile) },
        pending: status.pending.iter().map(|what| (*what).to_owned()).collect(),
        warnings: warnings(&status),
    }
}

/// Why policies are not enforced.
fn reason(status: &PolicyStatus, profile: &str) -> String {
    match (profile, status.has_cluster_network) {
        (PRIMARY, true) => "`clusterNetwork.networkPolicy` is false in the agent's configuration".to_owned(),
        (PRIMARY, false) => "the cluster network is not configured yet".to_owned(),
        _ => format!(
            "Knit enforces policies only as the cluster network (profile `primary`), and this agent has profile `{profile}`"
        ),
    }
}

fn warnings(status: &PolicyStatus) -> Vec<String> {
    let warning = "connections between pods of this node bypass all policies: the kernel module br_netfilter is not loaded";
    status.lacks_bridge_filter.then(|| warning.to_owned()).into_iter().collect()
}

/// The policies that restrict pods of this node, in the order of their evaluation, with what they dropped, if that is known.
fn entries(list: &PolicyList, drops: Option<&PolicyDrops>) -> Vec<v1::Policy> {
    let mut policies: Vec<(&PolicyId, &PolicyEntry)> = list.policies.iter().collect();
    policies.sort_by(|(id, entry), (other, than)| (entry.tier, id).cmp(&(than.tier, other)));
    let policies = policies.into_iter().map(|(id, entry)| v1::Policy {
        dropped_packets: drops.map(|drops| drops.of_policy(id)),
        ..entry_of(id, entry)
    });
    let mut segments: BTreeMap<&Segment, usize> =
        drops.into_iter().flat_map(PolicyDrops::segments).map(|segment| (segment, 0)).collect();
    segments.extend(list.segments.iter().map(|(segment, pods)| (segment, *pods)));
    let segments = segments.into_iter().map(|(segment, pods)| v1::Policy {
        dropped_packets: drops.map(|drops| drops.of_segment(segment)),
        ..segment_entry(segment, pods)
    });
    policies.chain(segments).collect()
}

/// Whether a policy is listed for a namespace; all are if it is empty.
fn is_of(one: &v1::Policy, namespace: &str) -> bool {
    let policy = one.policy.as_ref().map(|policy| policy.namespace.as_str()).unwrap_or_default();
    namespace.is_empty() || policy.is_empty() || policy == namespace
}

fn entry_of(id: &PolicyId, entry: &PolicyEntry) -> v1::Policy {
    let (tier, priority) = tier_of(entry.tier);
    v1::Policy {
        policy: Some(policy_ref(id)),
        tier: tier.into(),
        priority,
        directions: entry.directions.iter().map(|direction| direction_of(*direction).into()).collect(),
        pods: count(entry.pods),
        dropped_packets: None,
    }
}

fn segment_entry(segment: &Segment, pods: usize) -> v1::Policy {
    v1::Policy {
        policy: Some(segment_ref(segment)),
        tier: v1::PolicyTier::Unspecified.into(),
        priority: 0,
        directions: vec![v1::PolicyDirection::Ingress.into()],
        pods: count(pods),
        dropped_packets: None,
    }
}

/// What restricts a pod; `None` if the sandbox is not known.
fn pod(state: &State, profile: &str, id: &SandboxId) -> Option<v1::GetPodPoliciesResponse> {
    let sandbox = state.sandboxes.get(id)?;
    let PodPolicies { addresses, ingress, egress, segment, is_closed } = state.pod_policies(id)?;
    let (isolation, chain) = segment.unzip();
    Some(v1::GetPodPoliciesResponse {
        status: Some(status(state, profile)),
        id: id.0.clone(),
        name: sandbox.pod.clone(),
        namespace: sandbox.namespace.clone(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        closed: is_closed,
        directions: vec![
            direction_policies(Direction::Ingress, ingress),
            direction_policies(Direction::Egress, egress),
        ],
        isolation: isolation.as_ref().map(segment_ref),
        isolation_chain: chain.map(|(name, pods)| policy_chain(name, pods)),
    })
}

fn direction_policies(direction: Direction, of_pod: DirectionPolicies) -> v1::DirectionPolicies {
    let DirectionPolicies { policies, chains, pods } = of_pod;
    let has_network_policies = policies.iter().any(|(_, tier, _)| *tier == Tier::Namespace);
    let applied = |(id, tier, rules): &(PolicyId, Tier, usize)| {
        let skipped = has_network_policies && *tier > Tier::Namespace;
        let (tier, priority) = tier_of(*tier);
        let policy = Some(policy_ref(id));
        v1::AppliedPolicy { policy, tier: tier.into(), priority, rules: count(*rules), skipped }
    };
    v1::DirectionPolicies {
        direction: direction_of(direction).into(),
        restricted: !chains.is_empty(),
        policies: policies.iter().map(applied).collect(),
        chains: chains.into_iter().map(|name| policy_chain(name, pods)).collect(),
    }
}

fn policy_chain(name: String, pods: usize) -> v1::PolicyChain {
    v1::PolicyChain { name, pods: count(pods), dropped_packets: None }
}

fn policy_ref(id: &PolicyId) -> v1::PolicyRef {
    v1::PolicyRef { kind: id.kind.name().to_owned(), namespace: id.namespace.clone(), name: id.name.clone() }
}

fn segment_ref(segment: &Segment) -> v1::PolicyRef {
    let (kind, namespace, name) = match segment {
        Segment::Namespace(namespace) => ("IsolatedNamespace", namespace.clone(), String::new()),
        Segment::App { namespace, name } => ("App", namespace.clone(), name.clone()),
    };
    v1::PolicyRef { kind: kind.to_owned(), namespace, name }
}

fn named_pod(pod: &PodKey) -> v1::NamedPod {
    v1::NamedPod { namespace: pod.namespace.clone(), name: pod.name.clone() }
}

/// The tier of a policy, with its priority.
fn tier_of(tier: Tier) -> (v1::PolicyTier, u32) {
    match tier {
        Tier::Admin(priority) => (v1::PolicyTier::Admin, priority.into()),
        Tier::Namespace => (v1::PolicyTier::NetworkPolicy, 0),
        Tier::Baseline(priority) => (v1::PolicyTier::Baseline, priority.into()),
    }
}

fn direction_of(direction: Direction) -> v1::PolicyDirection {
    match direction {
        Direction::Ingress => v1::PolicyDirection::Ingress,
        Direction::Egress => v1::PolicyDirection::Egress,
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
