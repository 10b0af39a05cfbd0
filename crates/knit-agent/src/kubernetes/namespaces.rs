//! Namespace labels with network settings of the administrator, with the profile `primary`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use knit_engine::Event;
use knit_engine::namespaces::{NamespaceEvent, NamespaceOptions};
use knit_engine::policies::PolicyEvent;
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;
use knit_policy::{PolicyNamespace, is_isolated};

use super::{Context, informers, policies};

/// Watches all namespaces. While the API server is unavailable, the last known settings stay, also across a restart.
pub(super) async fn run(context: Context) {
    let submit = |seen: WatchUpdate<Namespace>| {
        context.handle.submit(policies::drop_logs::of_namespaces(&seen));
        policies::submit(&context, policy_event(&seen));
        context.handle.submit(Event::Namespaces(event(seen)));
    };
    let api: Api<Namespace> = Api::all(context.client.clone());
    informers::watch(&context.handle, "namespaces", api, watcher::Config::default(), submit).await;
}

/// What policies need of namespaces.
fn policy_event(seen: &WatchUpdate<Namespace>) -> PolicyEvent {
    let name = |one: &Namespace| one.metadata.name.clone().unwrap_or_default();
    match seen {
        WatchUpdate::Listed(all) => {
            PolicyEvent::NamespacesListed(all.iter().map(|one| (name(one), policy_namespace(one))).collect())
        }
        WatchUpdate::Applied(one) => {
            PolicyEvent::NamespaceChanged { name: name(one), namespace: Some(policy_namespace(one)) }
        }
        WatchUpdate::Deleted(one) => PolicyEvent::NamespaceChanged { name: name(one), namespace: None },
    }
}

fn policy_namespace(one: &Namespace) -> PolicyNamespace {
    let labels = one.metadata.labels.clone().unwrap_or_default();
    let annotations = one.metadata.annotations.clone().unwrap_or_default();
    PolicyNamespace { isolated: is_isolated(&labels, &annotations), labels }
}

fn event(seen: WatchUpdate<Namespace>) -> NamespaceEvent {
    match seen {
        WatchUpdate::Listed(all) => {
            let all = all.into_iter().map(read).filter(|(_, options)| !options.is_default());
            NamespaceEvent::Listed(all.collect())
        }
        WatchUpdate::Applied(one) => {
            let (name, options) = read(one);
            NamespaceEvent::Changed { name, options }
        }
        WatchUpdate::Deleted(one) => NamespaceEvent::Changed {
            name: one.metadata.name.unwrap_or_default(),
            options: NamespaceOptions::default(),
        },
    }
}

fn read(namespace: Namespace) -> (String, NamespaceOptions) {
    let name = namespace.metadata.name.unwrap_or_default();
    let labels: BTreeMap<String, String> = namespace.metadata.labels.unwrap_or_default();
    let (terms, warnings) = NamespaceOptions::of(&labels);
    for warning in warnings {
        tracing::warn!(namespace = name, "{warning}");
    }
    (name, terms)
}

#[cfg(test)]
mod tests {
    use knit_engine::namespaces::{ANTI_SPOOFING, MASQUERADE};
    use serde_json::json;

    use super::*;

    fn namespace(name: &str, labels: serde_json::Value) -> Namespace {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    #[test]
    fn settings_follow_the_labels() {
        let off = json!({ANTI_SPOOFING: "off"});
        let listed = vec![namespace("a", off.clone()), namespace("b", json!({}))];
        let unguarded = NamespaceOptions { allow_spoofing: true, masquerade: None };
        assert_eq!(
            event(WatchUpdate::Listed(listed)),
            NamespaceEvent::Listed([("a".to_owned(), unguarded)].into())
        );
        let changed = |options| NamespaceEvent::Changed { name: "a".to_owned(), options };
        let applied = |labels| event(WatchUpdate::Applied(namespace("a", labels)));
        let excluded = NamespaceOptions { allow_spoofing: false, masquerade: Some(false) };
        assert_eq!(applied(json!({MASQUERADE: "off"})), changed(excluded));
        assert_eq!(applied(json!({})), changed(NamespaceOptions::default()));
        let deleted = event(WatchUpdate::Deleted(namespace("a", off)));
        assert_eq!(deleted, changed(NamespaceOptions::default()));
    }
}
