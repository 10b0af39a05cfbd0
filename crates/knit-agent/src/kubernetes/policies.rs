//! Network policies, the isolation of apps, and the pods that they refer to, with the profile `primary`.
//!
//! Pods of the whole cluster are watched only while there is a policy or anything is isolated.

pub(super) mod drop_logs;
mod policy_pod;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_kube::WatchUpdate;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::core::ApiResource;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{self, Api, Client, ResourceExt};
use knit_policy::cluster_network_policy::{GROUP, KIND, PLURAL, VERSION};
use knit_policy::{APP_LABEL, Policy, PolicyId, PolicyKind, cluster_network_policy, network_policy};
use tokio::time::sleep;

use self::policy_pod::WatchedPod;
use super::{Context, informers};

/// Page size of the list of pods: a page is in memory as a whole.
const PAGE_SIZE: u32 = 500;
/// How often the need for pods is checked without a change.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// How often an API server without ClusterNetworkPolicies is checked for them.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Delay after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Watches policies and pods. While the API server is unavailable, the last known ones stay in force.
pub(super) async fn run(context: Context) {
    tokio::join!(
        watch_network_policies(&context),
        watch_cluster_network_policies(&context),
        watch_app_pods(&context),
        watch_pods(&context),
    );
}

/// Submits a change, after which other pods may have to be known.
pub(super) fn submit(context: &Context, event: PolicyEvent) {
    context.handle.submit(Event::Policies(event));
    context.policies_changed.notify_one();
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

/// Watches ClusterNetworkPolicies. Their CRD is not Knit's and may not be installed. Then it is looked for periodically.
async fn watch_cluster_network_policies(context: &Context) {
    loop {
        match has_cluster_network_policies(&context.client).await {
            Ok(true) => break,
            Ok(false) => {
                submit(context, PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new()));
                sleep(DISCOVERY_INTERVAL).await;
            }
            Err(why) => {
                tracing::debug!(error = %why, "cannot discover the ClusterNetworkPolicy CRD");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.to_owned(),
        plural: PLURAL.to_owned(),
    };
    let handle = |seen: WatchUpdate<DynamicObject>| {
        let kind = PolicyKind::ClusterNetworkPolicy;
        context.handle.submit(drop_logs::of_policies(kind, cluster_policy_id, &seen));
        submit(context, cluster_policy_event(&seen));
    };
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    informers::watch(&context.handle, PLURAL, api, watcher::Config::default(), handle).await;
}

async fn has_cluster_network_policies(client: &Client) -> kube::Result<bool> {
    match client.list_api_group_resources(&format!("{GROUP}/{VERSION}")).await {
        Ok(all) => Ok(all.resources.iter().any(|one| one.name == PLURAL)),
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(false),
        Err(why) => Err(why),
    }
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
        until(context, true).await;
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
            () = until(context, false) => {}
        }
        context.handle.submit(Event::Policies(PolicyEvent::PodsForgotten));
    }
}

/// Waits until all pods are needed, or no longer.
async fn until(context: &Context, needed: bool) {
    while context.handle.query(|one| one.state().has_policies()).await != Ok(needed) {
        // The loop may have reopened its state.
        let _ = tokio::time::timeout(RESYNC_INTERVAL, context.policies_changed.notified()).await;
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
