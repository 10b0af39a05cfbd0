//! Renders the node for knit.v1: its networks, their capacity, its readiness.

use knit_engine::{State, Unit, cluster};
use knit_kni::v1;

use super::pods;
use crate::capacity::{NetworkAddresses, networks};
use crate::daemon::ReadinessBlocker;
use crate::node::Node;

/// Every network of the node.
pub(super) fn all_networks(state: &State) -> Vec<v1::Network> {
    let cluster = state.cluster();
    let mut all: Vec<v1::Network> = networks(state)
        .map(|(namespace, network)| {
            let is_cluster = cluster.is_some_and(|cluster| cluster.is(namespace, &network.name));
            let requested = if is_cluster {
                cluster.map(|cluster| cluster.bridge.to_string()).unwrap_or_default()
            } else {
                knit_model::intent::NetworkIntent::bridge_name(&network.name)
            };
            let bridges = state.units.iter().filter_map(|(unit, unit_state)| match unit {
                Unit::Bridge(key) if key.namespace == namespace => unit_state.bridge.as_ref(),
                _ => None,
            });
            let mut links =
                bridges.filter(|bridge| bridge.requested == requested).map(|bridge| bridge.name.to_string());
            let conditions = readiness_of(state, namespace, &requested);
            v1::Network {
                name: network.name.clone(),
                namespace: shown_namespace(state, namespace, &network.name).to_owned(),
                default: is_cluster,
                readiness: Some(v1::Readiness { ready: conditions.is_empty(), conditions }),
                ranges: network.ranges.iter().map(ToString::to_string).collect(),
                mtu: network.mtu.unwrap_or(1500),
                transport: "bridge".to_owned(),
                isolated: network.isolated,
                link: links.next_back().unwrap_or_default(),
                capacity: NetworkAddresses::of(state, namespace, network)
                    .iter()
                    .map(|one| capacity(state, one))
                    .collect(),
                interfaces: interfaces_on(state, namespace, &network.name),
                object: if is_cluster {
                    String::new()
                } else {
                    format!("VirtualNetwork {namespace}/{}", network.name)
                },
            }
        })
        .collect();
    all.extend(super::plugin_chain::networks(state));
    all.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    all
}

/// The problems of a network's bridge.
fn readiness_of(state: &State, namespace: &str, bridge: &str) -> Vec<v1::Condition> {
    let problems = state.problems.iter().filter_map(|(unit, problems)| match unit {
        Unit::Bridge(key) if key.namespace == namespace && key.name.as_str() == bridge => Some(problems),
        _ => None,
    });
    let conditions = problems.flatten().map(|(object, problem)| v1::Condition {
        r#type: "NetworkReady".to_owned(),
        ok: false,
        reason: problem.reason.name().to_owned(),
        message: problem.to_string(),
        object: object.to_string(),
        since: None,
    });
    conditions.collect()
}

fn interfaces_on(state: &State, namespace: &str, network: &str) -> u32 {
    let of_calls = state
        .attachments
        .all()
        .filter(|attachment| attachment.tenant == namespace && attachment.network == network)
        .count();
    u32::try_from(of_calls).unwrap_or(u32::MAX)
}

/// A network's namespace as shown to users: the cluster network has none.
pub(super) fn shown_namespace<'a>(state: &State, namespace: &'a str, network: &str) -> &'a str {
    let is_cluster = state.cluster().is_some_and(|cluster| cluster.is(namespace, network));
    if is_cluster { "" } else { namespace }
}

pub(super) fn capacity(state: &State, capacity: &NetworkAddresses) -> v1::Capacity {
    let number = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
    v1::Capacity {
        network: capacity.network.clone(),
        namespace: shown_namespace(state, &capacity.namespace, &capacity.network).to_owned(),
        family: pods::family(capacity.ipv6).into(),
        total: number(capacity.total),
        used: number(capacity.used),
        cooling: 0,
        free: number(capacity.free),
        exhausted: capacity.free == 0,
    }
}

/// The conditions of exhausted families of the cluster network.
pub(super) fn exhaustion(state: &State) -> Vec<v1::Condition> {
    let of_family = |one: &NetworkAddresses| v1::Condition {
        r#type: "AddressesLeft".to_owned(),
        ok: false,
        reason: "AddressesExhausted".to_owned(),
        message: format!(
            "network {} has no free {} address: all {} are in use",
            one.network,
            if one.ipv6 { "IPv6" } else { "IPv4" },
            one.total
        ),
        object: format!("network {}", one.network),
        since: None,
    };
    NetworkAddresses::exhausted(state).iter().map(of_family).collect()
}

/// The readiness of the node's own network, and for new pods.
pub(super) fn readiness(state: &State) -> v1::NodeReadiness {
    let well = |what: &str, reason: &str| v1::Condition {
        r#type: what.to_owned(),
        ok: true,
        reason: reason.to_owned(),
        ..v1::Condition::default()
    };
    let mut conditions: Vec<v1::Condition> = Vec::new();
    if let Some(cluster) = state.cluster() {
        conditions.extend(readiness_of(state, cluster::NAMESPACE, cluster.bridge.as_str()));
        let key = cluster.bridge_key();
        if conditions.is_empty() && !state.units.contains_key(&Unit::Bridge(key)) {
            let message =
                format!("bridge {} of network {} does not exist yet", cluster.bridge, cluster::NAME);
            conditions.push(v1::Condition {
                r#type: "NetworkReady".to_owned(),
                ok: false,
                reason: "NotReady".to_owned(),
                message,
                ..v1::Condition::default()
            });
        }
    }
    let ready = conditions.is_empty();
    if ready {
        conditions.push(well("NetworkReady", "Configured"));
    }
    // The state is writable: otherwise the loop would not answer.
    conditions.push(well("StateWritable", "Writable"));
    let mut for_pods = exhaustion(state);
    let has_addresses = for_pods.is_empty();
    if has_addresses {
        for_pods.push(well("AddressesLeft", "Free"));
    }
    let missing = missing_extensions(state);
    let complete = missing.is_empty();
    for_pods.splice(0..0, missing);
    if complete && !state.required_extensions().is_empty() {
        for_pods.push(well("ExtensionsRegistered", "AsRequired"));
    }
    for_pods.extend(conditions.iter().cloned());
    v1::NodeReadiness {
        node: Some(v1::Readiness { ready, conditions }),
        new_pods: Some(v1::Readiness { ready: ready && has_addresses && complete, conditions: for_pods }),
    }
}

/// The conditions of extensions that an object requires and that are not registered.
fn missing_extensions(state: &State) -> Vec<v1::Condition> {
    let missing = state.missing_extensions().into_iter();
    let condition = |(name, object): (&str, &knit_engine::ObjectKey)| v1::Condition {
        r#type: "ExtensionsRegistered".to_owned(),
        ok: false,
        reason: "NotReady".to_owned(),
        message: format!("extension {name} is required by {object} and is not registered on this node"),
        object: object.to_string(),
        since: None,
    };
    missing.map(condition).collect()
}

/// Adds what prevents new pods besides the node's own network.
pub(super) fn add_blockers(new_pods: &mut v1::Readiness, blockers: &[ReadinessBlocker]) {
    new_pods.ready &= blockers.is_empty();
    new_pods.conditions.extend(blockers.iter().map(|one| v1::Condition {
        r#type: one.condition.to_owned(),
        ok: false,
        reason: one.reason.to_owned(),
        message: one.message.clone(),
        ..v1::Condition::default()
    }));
}

/// Describes this agent's node.
pub(super) fn node(node: &Node, about: &super::AgentInfo, epoch: &str) -> v1::Node {
    let state = node.state();
    let interfaces: usize = state.units.values().map(|unit_state| unit_state.interfaces.len()).sum();
    v1::Node {
        name: about.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: crate::sandboxes::boot_id().unwrap_or_default(),
        profile: about.profile.clone(),
        started: Some(pods::timestamp(about.started)),
        position: Some(v1::Position { epoch: epoch.to_owned(), sequence: node.last_seq().0 }),
        default_network: state.cluster().map(|_| cluster::NAME.to_owned()).unwrap_or_default(),
        pods: u32::try_from(state.sandboxes.len()).unwrap_or(u32::MAX),
        interfaces: u32::try_from(interfaces).unwrap_or(u32::MAX),
        state_dir: about.state_dir.display().to_string(),
    }
}
