//! Namespace labels with network settings of the administrator, with the profile `primary`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use knit_engine::Event;
use knit_engine::namespaces::{NamespaceOptions, Namespaces};
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::{Context, informers};

/// Watches all namespaces. While the API server is unavailable, the last known settings stay, also across a restart.
pub(super) async fn run(context: Context) {
    let mut known = Namespaces::default();
    let feed = |seen: WatchUpdate<Namespace>| {
        handle(&mut known, seen);
        let namespaces = known.clone();
        // Fed unconditionally: only the loop knows whether it changed.
        context.handle.submit(Event::Namespaces(namespaces));
    };
    let api: Api<Namespace> = Api::all(context.client.clone());
    informers::watch(&context.handle, "namespaces", api, watcher::Config::default(), feed).await;
}

fn handle(known: &mut Namespaces, seen: WatchUpdate<Namespace>) {
    match seen {
        WatchUpdate::Listed(all) => {
            *known = all.into_iter().map(read).filter(|(_, terms)| !terms.is_default()).collect();
        }
        WatchUpdate::Applied(one) => {
            let (name, terms) = read(one);
            match terms.is_default() {
                true => known.remove(&name),
                false => known.insert(name, terms),
            };
        }
        WatchUpdate::Deleted(one) => {
            known.remove(&one.metadata.name.unwrap_or_default());
        }
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
        let mut known = Namespaces::default();
        let off = json!({ANTI_SPOOFING: "off"});
        handle(
            &mut known,
            WatchUpdate::Listed(vec![
                namespace("a", off.clone()),
                namespace("b", json!({})),
                namespace("c", off),
            ]),
        );
        let unguarded = NamespaceOptions { allow_spoofing: true, masquerade: None };
        assert_eq!(known, [("a".to_owned(), unguarded), ("c".to_owned(), unguarded)].into());
        handle(&mut known, WatchUpdate::Applied(namespace("a", json!({MASQUERADE: "off"}))));
        handle(&mut known, WatchUpdate::Deleted(namespace("c", json!({ANTI_SPOOFING: "off"}))));
        assert_eq!(
            known,
            [("a".to_owned(), NamespaceOptions { allow_spoofing: false, masquerade: Some(false) })].into()
        );
        handle(&mut known, WatchUpdate::Applied(namespace("a", json!({}))));
        assert_eq!(known, Namespaces::default());
    }
}
