//! What admins say about namespaces, where Knit is the cluster's network: labels of the Namespaces, from the API server to the
//! loop.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use knit_engine::Event;
use knit_engine::namespaces::{Namespaces, Terms};
use knit_kube::Seen;
use knit_kube::kube::Api;
use knit_kube::kube::runtime::watcher;

use super::Shared;

/// Watches all namespaces. While the API server is away, what was said last holds, also for an agent that begins anew.
pub(super) async fn follow(shared: Shared) {
    let mut known = Namespaces::default();
    let tell = |seen: Seen<Namespace>| {
        take_in(&mut known, seen);
        let said = known.clone();
        // The loop hears it each time: only it knows whether it is news.
        shared.handle.feed(move |_| vec![Event::Namespaces(said)]);
    };
    let api: Api<Namespace> = Api::all(shared.client.clone());
    knit_kube::follow("namespaces", api, watcher::Config::default(), tell).await;
}

fn take_in(known: &mut Namespaces, seen: Seen<Namespace>) {
    match seen {
        Seen::Listed(all) => {
            *known = all.into_iter().map(read).filter(|(_, terms)| !terms.is_default()).collect();
        }
        Seen::Applied(one) => {
            let (name, terms) = read(one);
            match terms.is_default() {
                true => known.remove(&name),
                false => known.insert(name, terms),
            };
        }
        Seen::Deleted(one) => {
            known.remove(&one.metadata.name.unwrap_or_default());
        }
    }
}

fn read(namespace: Namespace) -> (String, Terms) {
    let name = namespace.metadata.name.unwrap_or_default();
    let labels: BTreeMap<String, String> = namespace.metadata.labels.unwrap_or_default();
    let (terms, sentences) = Terms::of(&labels);
    for sentence in sentences {
        tracing::warn!(namespace = name, "{sentence}");
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
    fn a_grant_comes_and_goes_with_its_label() {
        let mut known = Namespaces::default();
        let off = json!({ANTI_SPOOFING: "off"});
        take_in(
            &mut known,
            Seen::Listed(vec![namespace("a", off.clone()), namespace("b", json!({})), namespace("c", off)]),
        );
        let unguarded = Terms { unguarded: true, masquerade: None };
        assert_eq!(known, [("a".to_owned(), unguarded), ("c".to_owned(), unguarded)].into());
        take_in(&mut known, Seen::Applied(namespace("a", json!({MASQUERADE: "off"}))));
        take_in(&mut known, Seen::Deleted(namespace("c", json!({ANTI_SPOOFING: "off"}))));
        assert_eq!(known, [("a".to_owned(), Terms { unguarded: false, masquerade: Some(false) })].into());
        take_in(&mut known, Seen::Applied(namespace("a", json!({}))));
        assert_eq!(known, Namespaces::default());
    }
}
