//! Network policies, the isolation of apps, and the pods that they refer to.
//!
//! Pods of the whole cluster are watched only while there is a policy or anything is isolated.

pub(super) mod drop_logs;
mod on_interfaces;
mod policy_pod;
mod watched_state;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use knit_engine::policies::PolicyEvent;
use knit_engine::{Event, State};
use knit_kube::WatchUpdate;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, ResourceExt};
use knit_policy::cluster_network_policy::{GROUP, KIND, PLURAL, VERSION};
use knit_policy::{APP_LABEL, Policy, PolicyId, PolicyKind, cluster_network_policy, network_policy};

use self::policy_pod::WatchedPod;
use super::informers::OptionalKind;
use super::{Context, informers};

/// Page size of the list of pods: a page is in memory as a whole.
const PAGE_SIZE: u32 = 500;
/// How often the need for pods is checked without a change.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
const CLUSTER_POLICIES: OptionalKind =
    OptionalKind { group: GROUP, versions: &[VERSION], kind: KIND, plural: PLURAL };

/// Where policies are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyEnforcement {
    /// On the cluster network.
    pub(crate) on_cluster: bool,
    /// On additional interfaces.
    pub(crate) on_interfaces: bool,
    /// Whether namespaces are watched anyway.
    pub(crate) has_namespaces: bool,
}

/// Watches policies and pods. While the API server is unavailable, the last known ones stay in force.
pub(super) async fn run(context: Context, enforcement: PolicyEnforcement) {
    let PolicyEnforcement { on_cluster, on_interfaces, has_namespaces } = enforcement;
    let of_cluster = async {
        if on_cluster {
            tokio::join!(
                watch_network_policies(&context),
                watch_cluster_network_policies(&context),
                watch_app_pods(&context),
            );
        }
    };
    let of_interfaces = async {
        if on_interfaces {
            on_interfaces::run(&context, has_namespaces).await;
        }
    };
    if on_cluster || on_interfaces {
        tokio::join!(of_cluster, of_interfaces, watch_pods(&context));
    }
}

/// Submits a change, after which other pods may have to be known.
pub(super) fn submit(context: &Context, event: PolicyEvent) {
    context.handle.submit(Event::Policies(event));
    context.policies_changed.send_replace(());
}

async fn watch_network_policies(context: &Context) {
    let handle = |seen: WatchUpdate<NetworkPolicy>| {
        context.handle.submit(drop_logs::of_policies(PolicyKind::NetworkPolicy, network_policy_id, &seen));
        submit(context, network_policy_event(&seen));
    };
    let api: Api<NetworkPolicy> = Api::all(context.client.clone());
    informers::watch(&context.handle, "networkpolicies", api, watcher::Config::default(), handle).await;
}

fn network_policy_event(seen: &WatchUpdate<NetworkPolicy>) -> PolicyEvent {
    match seen {
        WatchUpdate::Listed(all) => PolicyEvent::PoliciesListed(
            PolicyKind::NetworkPolicy,
            all.iter().map(read_network_policy).collect(),
        ),
        WatchUpdate::Applied(one) => PolicyEvent::PolicyApplied(Box::new(read_network_policy(one))),
        WatchUpdate::Deleted(one) => PolicyEvent::PolicyDeleted(network_policy_id(one)),
    }
}

fn network_policy_id(policy: &NetworkPolicy) -> PolicyId {
    PolicyId::namespaced(policy.namespace().unwrap_or_default(), policy.name_any())
}

fn read_network_policy(policy: &NetworkPolicy) -> Policy {
    let spec = serde_json::to_value(policy.spec.as_ref()).unwrap_or_default();
    let (policy, warning) = network_policy::translate(network_policy_id(policy), &spec);
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    policy
}

/// Watches ClusterNetworkPolicies.
async fn watch_cluster_network_policies(context: &Context) {
    let none = || PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new());
    let resource = CLUSTER_POLICIES.wait(&context.client, || submit(context, none())).await;
    let handle = |seen: WatchUpdate<DynamicObject>| {
        let kind = PolicyKind::ClusterNetworkPolicy;
        context.handle.submit(drop_logs::of_policies(kind, cluster_policy_id, &seen));
        submit(context, cluster_policy_event(&seen));
    };
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    informers::watch(&context.handle, PLURAL, api, watcher::Config::default(), handle).await;
}

fn cluster_policy_event(seen: &WatchUpdate<DynamicObject>) -> PolicyEvent {
    match seen {
        WatchUpdate::Listed(all) => PolicyEvent::PoliciesListed(
            PolicyKind::ClusterNetworkPolicy,
            all.iter().filter_map(read_cluster_policy).collect(),
        ),
        WatchUpdate::Applied(one) => match read_cluster_policy(one) {
            Some(policy) => PolicyEvent::PolicyApplied(Box::new(policy)),
            None => PolicyEvent::PolicyDeleted(cluster_policy_id(one)),
        },
        WatchUpdate::Deleted(one) => PolicyEvent::PolicyDeleted(cluster_policy_id(one)),
    }
}

fn cluster_policy_id(policy: &DynamicObject) -> PolicyId {
    PolicyId::of_cluster(policy.name_any())
}

fn read_cluster_policy(policy: &DynamicObject) -> Option<Policy> {
    let (policy, warnings) =
        cluster_network_policy::translate(cluster_policy_id(policy), &policy.data["spec"]);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    policy
}

/// Watches pods with an app label, to know whether there are any.
async fn watch_app_pods(context: &Context) {
    let (mut apps, mut reported) = (BTreeSet::new(), None);
    let handle = |seen: WatchUpdate<WatchedPod>| {
        match seen {
            // The engine may have lost what it was sent.
            WatchUpdate::Listed(all) => (apps, reported) = (all.iter().map(WatchedPod::key).collect(), None),
            WatchUpdate::Applied(pod) => drop(apps.insert(pod.key())),
            WatchUpdate::Deleted(pod) => drop(apps.remove(&pod.key())),
        }
        if reported.replace(!apps.is_empty()) != Some(!apps.is_empty()) {
            submit(context, PolicyEvent::AppPodsListed(!apps.is_empty()));
        }
    };
    let api: Api<WatchedPod> = Api::all(context.client.clone());
    let config = watcher::Config::default().labels(APP_LABEL).page_size(PAGE_SIZE);
    informers::watch(&context.handle, "pods of apps", api, config, handle).await;
}

/// Watches all pods while they are needed.
async fn watch_pods(context: &Context) {
    loop {
        until(context, State::has_policies, true).await;
        let api: Api<WatchedPod> = Api::all(context.client.clone());
        let config = watcher::Config::default().page_size(PAGE_SIZE);
        let handle = |seen: WatchUpdate<WatchedPod>| {
            context.handle.submit(Event::Policies(match seen {
                WatchUpdate::Listed(all) => {
                    PolicyEvent::PodsListed(all.into_iter().filter_map(WatchedPod::into_member).collect())
                }
                WatchUpdate::Applied(pod) => PolicyEvent::PodChanged { key: pod.key(), pod: pod.into_pod() },
                WatchUpdate::Deleted(pod) => PolicyEvent::PodChanged { key: pod.key(), pod: None },
            }));
        };
        tokio::select! {
            () = informers::watch(&context.handle, "pods of policies", api, config, handle) => return,
            () = until(context, State::has_policies, false) => {}
        }
        context.handle.submit(Event::Policies(PolicyEvent::PodsForgotten));
    }
}

/// Waits until something is needed for policies, or no longer.
async fn until(context: &Context, is_needed: fn(&State) -> bool, expected: bool) {
    let mut changed = context.policies_changed.subscribe();
    while context.handle.query(move |one| is_needed(one.state())).await != Ok(expected) {
        // The loop may have reopened its state.
        let _ = tokio::time::timeout(RESYNC_INTERVAL, changed.changed()).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(name: &str, cidr: &str) -> NetworkPolicy {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]},
        }))
        .unwrap()
    }

    #[test]
    fn policies_follow_the_objects() {
        let listed = network_policy_event(&WatchUpdate::Listed(vec![policy("a", "10.0.0.0/8")]));
        let PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, listed) = listed else {
            panic!("{listed:?}")
        };
        assert_eq!(listed[0].ingress.as_ref().map(Vec::len), Some(1));
        // A policy that cannot be read allows nothing.
        let applied = network_policy_event(&WatchUpdate::Applied(policy("b", "10.0.0.0")));
        let PolicyEvent::PolicyApplied(applied) = applied else { panic!("{applied:?}") };
        assert_eq!(applied.ingress, Some(Vec::new()));
        let deleted = network_policy_event(&WatchUpdate::Deleted(policy("a", "10.0.0.0/8")));
        assert!(matches!(deleted, PolicyEvent::PolicyDeleted(id) if id.name == "a"));
    }

    #[test]
    fn a_cluster_policy_that_can_no_longer_be_read_is_not_enforced() {
        let policy = |subject: serde_json::Value| -> DynamicObject {
            serde_json::from_value(json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2",
                "kind": "ClusterNetworkPolicy",
                "metadata": {"name": "admin"},
                "spec": {"tier": "Admin", "priority": 1, "subject": subject},
            }))
            .unwrap()
        };
        let applied = cluster_policy_event(&WatchUpdate::Applied(policy(json!({"namespaces": {}}))));
        assert!(
            matches!(applied, PolicyEvent::PolicyApplied(one) if one.id == PolicyId::of_cluster("admin"))
        );
        let unread = cluster_policy_event(&WatchUpdate::Applied(policy(json!({"planets": {}}))));
        assert_eq!(unread, PolicyEvent::PolicyDeleted(PolicyId::of_cluster("admin")));
    }
}
