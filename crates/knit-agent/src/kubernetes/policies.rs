//! NetworkPolicies, and the pods that they refer to, with the profile `primary`.
//!
//! Pods of the whole cluster are watched only while there is a policy.

mod policy_pod;

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_kube::WatchUpdate;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, ResourceExt};
use knit_policy::{Policy, PolicyId, network_policy};
use policy_pod::WatchedPod;
use tokio::sync::watch;

use super::{Context, informers};

/// Page size of the list of pods: a page is in memory as a whole.
const PAGE_SIZE: u32 = 500;

/// Watches all NetworkPolicies. While the API server is unavailable, the last known ones stay in force.
pub(super) async fn run(context: Context) {
    let (has_policies, any) = watch::channel(false);
    tokio::spawn(watch_pods(context.clone(), any));
    let mut known = BTreeSet::new();
    let handle = |seen: WatchUpdate<NetworkPolicy>| {
        let event = event(seen, &mut known);
        context.handle.submit(Event::Policies(event));
        has_policies
            .send_if_modified(|before| std::mem::replace(before, !known.is_empty()) == known.is_empty());
    };
    let api: Api<NetworkPolicy> = Api::all(context.client.clone());
    informers::watch(&context.handle, "networkpolicies", api, watcher::Config::default(), handle).await;
}

fn event(seen: WatchUpdate<NetworkPolicy>, known: &mut BTreeSet<PolicyId>) -> PolicyEvent {
    match seen {
        WatchUpdate::Listed(all) => {
            let policies: Vec<Policy> = all.iter().map(read).collect();
            *known = policies.iter().map(|policy| policy.id.clone()).collect();
            PolicyEvent::PoliciesListed(policies)
        }
        WatchUpdate::Applied(one) => {
            known.insert(id(&one));
            PolicyEvent::PolicyApplied(Box::new(read(&one)))
        }
        WatchUpdate::Deleted(one) => {
            known.remove(&id(&one));
            PolicyEvent::PolicyDeleted(id(&one))
        }
    }
}

fn id(policy: &NetworkPolicy) -> PolicyId {
    PolicyId { namespace: policy.namespace().unwrap_or_default(), name: policy.name_any() }
}

fn read(policy: &NetworkPolicy) -> Policy {
    let spec = serde_json::to_value(policy.spec.as_ref()).unwrap_or_default();
    let (policy, warning) = network_policy::translate(id(policy), &spec);
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    policy
}

/// Watches all pods while there are policies.
async fn watch_pods(context: Context, mut has_policies: watch::Receiver<bool>) {
    loop {
        if has_policies.wait_for(|any| *any).await.is_err() {
            return;
        }
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
            ended = has_policies.wait_for(|any| !*any) => if ended.is_err() { return },
        }
        context.handle.submit(Event::Policies(PolicyEvent::PodsForgotten));
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
        let mut known = BTreeSet::new();
        let listed = event(WatchUpdate::Listed(vec![policy("a", "10.0.0.0/8")]), &mut known);
        let PolicyEvent::PoliciesListed(listed) = listed else { panic!("{listed:?}") };
        assert_eq!((listed.len(), known.len()), (1, 1));
        assert_eq!(listed[0].ingress.as_ref().map(Vec::len), Some(1));
        // A policy that cannot be read allows nothing.
        let applied = event(WatchUpdate::Applied(policy("b", "10.0.0.0")), &mut known);
        let PolicyEvent::PolicyApplied(applied) = applied else { panic!("{applied:?}") };
        assert_eq!((applied.ingress, known.len()), (Some(Vec::new()), 2));
        let deleted = event(WatchUpdate::Deleted(policy("a", "10.0.0.0/8")), &mut known);
        assert!(matches!(deleted, PolicyEvent::PolicyDeleted(id) if id.name == "a"));
        assert_eq!(known.len(), 1);
    }
}
