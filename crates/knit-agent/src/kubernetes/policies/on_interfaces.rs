//! MultiNetworkPolicies, and the addresses of pods on additional networks.
//!
//! Addresses come from PodNetworkStates, which agents write, not from annotations, which tenants can change.

use knit_crds::states::ADDITIONAL_NETWORKS_LABEL;
use knit_engine::policies::PolicyEvent;
use knit_engine::{Event, State};
use knit_kube::WatchUpdate;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;
use knit_kube::kube::{Api, ResourceExt};
use knit_policy::multi_network_policy::{GROUP, KIND, PLURAL, POLICY_FOR, VERSIONS, translate};
use knit_policy::{Policy, PolicyId, PolicyKind};

use super::watched_state::WatchedState;
use super::{PAGE_SIZE, submit, until};
use crate::kubernetes::informers::OptionalKind;
use crate::kubernetes::{Context, informers, namespaces};

const POLICIES: OptionalKind = OptionalKind { group: GROUP, versions: &VERSIONS, kind: KIND, plural: PLURAL };

/// Watches policies about additional networks, the addresses of pods there, and unless `has_namespaces`, namespaces.
pub(super) async fn run(context: &Context, has_namespaces: bool) {
    let of_namespaces = async {
        if !has_namespaces {
            watch_namespaces(context).await;
        }
    };
    tokio::join!(watch_policies(context), watch_pod_networks(context), of_namespaces);
}

/// Watches namespaces while there is a policy about an additional network.
async fn watch_namespaces(context: &Context) {
    loop {
        until(context, State::has_policies_on_interfaces, true).await;
        tokio::select! {
            () = namespaces::run_for_policies(context) => return,
            () = until(context, State::has_policies_on_interfaces, false) => {}
        }
    }
}

async fn watch_policies(context: &Context) {
    let none = || PolicyEvent::PoliciesListed(PolicyKind::MultiNetworkPolicy, Vec::new());
    let resource = POLICIES.wait(&context.client, || submit(context, none())).await;
    let handle = |seen: WatchUpdate<DynamicObject>| submit(context, event(&seen));
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    informers::watch(&context.handle, PLURAL, api, watcher::Config::default(), handle).await;
}

fn event(seen: &WatchUpdate<DynamicObject>) -> PolicyEvent {
    match seen {
        WatchUpdate::Listed(all) => {
            PolicyEvent::PoliciesListed(PolicyKind::MultiNetworkPolicy, all.iter().map(read).collect())
        }
        WatchUpdate::Applied(one) => PolicyEvent::PolicyApplied(Box::new(read(one))),
        WatchUpdate::Deleted(one) => PolicyEvent::PolicyDeleted(id(one)),
    }
}

fn id(policy: &DynamicObject) -> PolicyId {
    PolicyId::multi_network(policy.namespace().unwrap_or_default(), policy.name_any())
}

fn read(policy: &DynamicObject) -> Policy {
    let policy_for = policy.annotations().get(POLICY_FOR).map(String::as_str);
    let (policy, warnings) = translate(id(policy), policy_for, &policy.data["spec"]);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    policy
}

/// Watches the addresses of pods on additional networks while there is a policy about one.
async fn watch_pod_networks(context: &Context) {
    loop {
        until(context, State::has_policies_on_interfaces, true).await;
        let api: Api<WatchedState> = Api::all(context.client.clone());
        let config = watcher::Config::default().labels(ADDITIONAL_NETWORKS_LABEL).page_size(PAGE_SIZE);
        let handle = |seen: WatchUpdate<WatchedState>| {
            context.handle.submit(Event::Policies(match seen {
                WatchUpdate::Listed(all) => {
                    PolicyEvent::PodNetworksListed(all.into_iter().map(WatchedState::into_networks).collect())
                }
                WatchUpdate::Applied(one) => {
                    let (key, networks) = one.into_networks();
                    PolicyEvent::PodNetworksChanged { key, networks: Some(networks) }
                }
                WatchUpdate::Deleted(one) => {
                    PolicyEvent::PodNetworksChanged { key: one.into_networks().0, networks: None }
                }
            }));
        };
        tokio::select! {
            () = informers::watch(&context.handle, "networks of pods", api, config, handle) => return,
            () = until(context, State::has_policies_on_interfaces, false) => {}
        }
        context.handle.submit(Event::Policies(PolicyEvent::PodNetworksForgotten));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_about_the_networks_of_its_annotation() {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta1",
            "kind": "MultiNetworkPolicy",
            "metadata": {"namespace": "shop", "name": "db", "annotations": {POLICY_FOR: "blue"}},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        }))
        .unwrap();
        let applied = event(&WatchUpdate::Applied(object.clone()));
        let PolicyEvent::PolicyApplied(policy) = applied else { panic!("{applied:?}") };
        assert_eq!(policy.networks, Some(["NetworkAttachmentDefinition/shop/blue".to_owned()].into()));
        assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), None));
        let deleted = event(&WatchUpdate::Deleted(object));
        assert_eq!(deleted, PolicyEvent::PolicyDeleted(PolicyId::multi_network("shop", "db")));
    }
}
