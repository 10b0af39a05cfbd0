//! The node as knit.v1 shows it: its networks, their capacity, and how ready it is.

use knit_engine::{State, Unit, cluster};
use knit_kni::v1;

use super::pods;
use crate::capacity::{Capacity, networks};
use crate::daemon::Outside;
use crate::node::Node;

/// Every network of the node.
pub(super) fn all_networks(state: &State) -> Vec<v1::Network> {
    let cluster = state.cluster();
    let mut all: Vec<v1::Network> = networks(state)
        .map(|(namespace, network)| {
            let is_cluster = cluster.is_some_and(|cluster| cluster.is(namespace, &network.name));
            let asked = if is_cluster {
                cluster.map(|cluster| cluster.bridge.to_string()).unwrap_or_default()
            } else {
                knit_model::intent::NetworkIntent::bridge_name(&network.name)
            };
            let bridges = state.made.iter().filter_map(|(unit, made)| match unit {
                Unit::Bridge(key) if key.namespace == namespace => made.bridge.as_ref(),
                _ => None,
            });
            let mut links =
                bridges.filter(|bridge| bridge.asked == asked).map(|bridge| bridge.name.to_string());
            let conditions = readiness_of(state, namespace, &asked);
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
                capacity: Capacity::of(state, namespace, network)
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
    all.extend(super::chained::networks(state));
    all.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    all
}

/// What stands in the way of a network's bridge.
fn readiness_of(state: &State, namespace: &str, bridge: &str) -> Vec<v1::Condition> {
    let problems = state.problems.iter().filter_map(|(unit, problems)| match unit {
        Unit::Bridge(key) if key.namespace == namespace && key.name.as_str() == bridge => Some(problems),
        _ => None,
    });
    let conditions = problems.flatten().map(|(object, problem)| v1::Condition {
        r#type: "NetworkReady".to_owned(),
        ok: false,
        reason: format!("{:?}", problem.reason),
        message: problem.to_string(),
        object: object.to_string(),
        since: None,
    });
    conditions.collect()
}

fn interfaces_on(state: &State, namespace: &str, network: &str) -> u32 {
    let of_calls =
        state.called.all().filter(|there| there.tenant == namespace && there.network == network).count();
    u32::try_from(of_calls).unwrap_or(u32::MAX)
}

/// A network's namespace as people see it: what Knit brings along for the whole cluster has none.
pub(super) fn shown_namespace<'a>(state: &State, namespace: &'a str, network: &str) -> &'a str {
    let is_cluster = state.cluster().is_some_and(|cluster| cluster.is(namespace, network));
    if is_cluster { "" } else { namespace }
}

pub(super) fn capacity(state: &State, capacity: &Capacity) -> v1::Capacity {
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

/// Why no more pods may come: the cluster's network has no address left.
pub(super) fn exhaustion(state: &State) -> Vec<v1::Condition> {
    let of_family = |one: &Capacity| v1::Condition {
        r#type: "AddressesLeft".to_owned(),
        ok: false,
        reason: "AddressesExhausted".to_owned(),
        message: format!(
            "network {} has no {} address left: all {} are in use",
            one.network,
            if one.ipv6 { "IPv6" } else { "IPv4" },
            one.total
        ),
        object: format!("network {}", one.network),
        since: None,
    };
    Capacity::is_exhausted(state).iter().map(of_family).collect()
}

/// The node's own part of the network, and whether new pods may come.
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
        if conditions.is_empty() && !state.made.contains_key(&Unit::Bridge(key)) {
            let message = format!("bridge {} of network {} is not there yet", cluster.bridge, cluster::NAME);
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
        conditions.push(well("NetworkReady", "AsAsked"));
    }
    // That this is answered at all means that the state could be written.
    conditions.push(well("StateWritable", "Writable"));
    let mut for_pods = exhaustion(state);
    let room = for_pods.is_empty();
    if room {
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
        new_pods: Some(v1::Readiness { ready: ready && room && complete, conditions: for_pods }),
    }
}

/// Why no pods may come: extensions that an object requires and that are not registered.
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

/// What is in the way of new pods beside the node's own network.
pub(super) fn add_outside(new_pods: &mut v1::Readiness, outside: &[Outside]) {
    new_pods.ready &= outside.is_empty();
    new_pods.conditions.extend(outside.iter().map(|one| v1::Condition {
        r#type: one.what.to_owned(),
        ok: false,
        reason: one.reason.to_owned(),
        message: one.message.clone(),
        ..v1::Condition::default()
    }));
}

/// Who this agent is.
pub(super) fn node(node: &Node, about: &super::About, epoch: &str) -> v1::Node {
    let state = node.state();
    let interfaces: usize = state.made.values().map(|made| made.interfaces.len()).sum();
    v1::Node {
        name: about.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: crate::sandboxes::boot_id().unwrap_or_default(),
        profile: about.profile.clone(),
        started: Some(pods::timestamp(about.started)),
        position: Some(v1::Position { epoch: epoch.to_owned(), sequence: node.last().0 }),
        default_network: state.cluster().map(|_| cluster::NAME.to_owned()).unwrap_or_default(),
        pods: u32::try_from(state.sandboxes.len()).unwrap_or(u32::MAX),
        interfaces: u32::try_from(interfaces).unwrap_or(u32::MAX),
        state_dir: about.state_dir.display().to_string(),
    }
}
