//! Objects of one kind, from the API server to the loop.

use knit_crds::{KindInfo, Object};
use knit_engine::objects::News;
use knit_engine::{ObjectKey, StoredObject, cluster, egress, pools, quota};
use knit_kube::kube::Api;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;
use knit_kube::{Seen, object_of, resource};
use knit_model::provenance::Dialect;

use super::Shared;

/// Watches all objects of a kind.
pub(super) async fn follow(shared: Shared, kind: &'static KindInfo) {
    let api: Api<DynamicObject> = Api::all_with(shared.client.clone(), &resource(kind));
    let tell = |seen: Seen<DynamicObject>| {
        let of_quotas = (kind.kind == quota::KIND).then(|| seen.clone());
        if let Some(news) = news(kind, seen) {
            shared.handle.feed(move |state| news.events(state));
        }
        // After the loop: nothing is claimed of a quota that it does not know.
        if let Some(seen) = of_quotas {
            shared.quotas.hear(seen);
        }
        if kind.kind == pools::KIND {
            shared.ranges.pools_are_known();
        }
        if kind.kind == cluster::KIND {
            shared.spans.notify_one();
        }
        if kind.kind == egress::KIND {
            shared.gateways.notify_one();
        }
    };
    shared.teller().follow(&kind.plural, api, watcher::Config::default(), tell).await;
}

/// An object in the engine's words.
enum Read {
    Usable(Box<StoredObject>),
    /// It is there, and what it asks for cannot be: the controller says so in its status.
    Refused(ObjectKey),
    /// It is gone, or goes as soon as everyone has let go of it.
    Going(ObjectKey),
}

/// What a watch tells, in the engine's words; nothing, where what an object asked for before stays.
fn news(kind: &KindInfo, seen: Seen<DynamicObject>) -> Option<News> {
    Some(match seen {
        Seen::Listed(found) => {
            let (mut objects, mut refused) = (Vec::new(), Vec::new());
            for found in &found {
                match read(kind, found) {
                    Read::Usable(object) => objects.push(*object),
                    Read::Refused(key) => refused.push(key),
                    Read::Going(_) => {}
                }
            }
            News::Listed { kind: kind.kind.clone(), objects, refused }
        }
        Seen::Applied(found) => match read(kind, &found) {
            Read::Usable(object) => News::Applied(object),
            Read::Going(key) => News::Deleted(key),
            Read::Refused(_) => return None,
        },
        Seen::Deleted(found) => News::Deleted(key(kind, &found)),
    })
}

fn read(kind: &KindInfo, found: &DynamicObject) -> Read {
    let key = key(kind, found);
    if found.metadata.deletion_timestamp.is_some() {
        return Read::Going(key);
    }
    let Some(object) = object_of(kind, found) else { return Read::Refused(key) };
    match object.intents(Dialect::Kubernetes) {
        Ok(translation) => Read::Usable(Box::new(StoredObject {
            object: object.object_ref(),
            intents: translation.intents,
            warnings: translation.warnings,
            manifest: manifest(&object),
            since: 0,
            file: None,
        })),
        Err(problems) => {
            tracing::warn!(object = %key, "{problems}");
            Read::Refused(key)
        }
    }
}

/// What is remembered of an object: who it is and what it asks for. A status changes far more often.
fn manifest(object: &Object) -> serde_json::Value {
    let mut manifest = object.to_value();
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = manifest.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()) {
        metadata.retain(|field, _| ["name", "namespace", "uid", "generation"].contains(&field.as_str()));
    }
    manifest
}

fn key(kind: &KindInfo, found: &DynamicObject) -> ObjectKey {
    ObjectKey {
        kind: kind.kind.clone(),
        namespace: found.metadata.namespace.clone().unwrap_or_default(),
        name: found.metadata.name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use knit_engine::{Event, State};
    use serde_json::json;

    use super::*;

    fn found(spec: serde_json::Value, extra: serde_json::Value) -> DynamicObject {
        let mut metadata = json!({"name": "a", "namespace": "tenant", "uid": "1", "generation": 1});
        metadata.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn kind() -> &'static KindInfo {
        Object::find_kind("podconfig").unwrap()
    }

    fn good() -> serde_json::Value {
        json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.0/24"}]})
    }

    #[test]
    fn an_object_that_goes_is_gone_for_the_node_before_its_finalizer_is() {
        let mut state = State::default();
        let events = news(kind(), Seen::Applied(found(good(), json!({})))).unwrap().events(&state);
        let [Event::ObjectApplied(object)] = &events[..] else { panic!("{events:?}") };
        state.record(&knit_engine::Record::ObjectApplied(Box::new(object.clone())));
        let going = found(good(), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        let events = news(kind(), Seen::Applied(going)).unwrap().events(&state);
        assert!(matches!(&events[..], [Event::ObjectDeleted(key)] if key.name == "a"), "{events:?}");
    }

    #[test]
    fn what_cannot_be_is_no_event() {
        let bad =
            json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.7/24"}]});
        assert!(news(kind(), Seen::Applied(found(bad, json!({})))).is_none());
    }
}
