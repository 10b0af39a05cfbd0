//! Watches objects of one kind.

use knit_crds::KindInfo;
use knit_engine::objects::ObjectEvent;
use knit_engine::{Event, ObjectKey, StoredObject, cluster, egress, pools, quota};
use knit_kube::kube::Api;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;
use knit_kube::{WatchUpdate, api_resource, parse_object};

use super::{Context, quotas};
use crate::api_objects;

/// Watches all objects of a kind.
pub(super) async fn run(context: Context, kind: &'static KindInfo) {
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &api_resource(kind));
    let handle = |seen: WatchUpdate<DynamicObject>| {
        let for_quotas = (kind.kind == quota::KIND).then(|| seen.clone());
        if let Some(news) = convert(kind, seen) {
            context.handle.submit(Event::Objects(Box::new(news)));
        }
        if let Some(news) = for_quotas.and_then(|seen| quotas::event(&context.node, seen)) {
            context.handle.submit(Event::Quotas(news));
        }
        if kind.kind == pools::KIND {
            context.network_inputs.set_pools_known();
        }
        if kind.kind == cluster::KIND {
            context.overlay_changed.notify_one();
        }
        if kind.kind == egress::KIND {
            context.gateways_changed.notify_one();
        }
    };
    context.informer().run(&kind.plural, api, watcher::Config::default(), handle).await;
}

/// An object converted for the engine.
enum Conversion {
    Valid(Box<StoredObject>),
    /// It is invalid; the controller reports it in its status.
    Invalid(ObjectKey),
    /// It is gone, or waits for its finalizers.
    Terminating(ObjectKey),
}

/// Converts a watch event for the engine; `None` where the last valid version stays in effect.
fn convert(kind: &KindInfo, seen: WatchUpdate<DynamicObject>) -> Option<ObjectEvent> {
    Some(match seen {
        WatchUpdate::Listed(found) => {
            let (mut objects, mut refused) = (Vec::new(), Vec::new());
            for found in &found {
                match read(kind, found) {
                    Conversion::Valid(object) => objects.push(*object),
                    Conversion::Invalid(key) => refused.push(key),
                    Conversion::Terminating(_) => {}
                }
            }
            ObjectEvent::Listed { kind: kind.kind.clone(), objects, rejected: refused }
        }
        WatchUpdate::Applied(found) => match read(kind, &found) {
            Conversion::Valid(object) => ObjectEvent::Applied(object),
            Conversion::Terminating(key) => ObjectEvent::Deleted { key, uid: uid(&found) },
            Conversion::Invalid(_) => return None,
        },
        WatchUpdate::Deleted(found) => ObjectEvent::Deleted { key: key(kind, &found), uid: uid(&found) },
    })
}

fn read(kind: &KindInfo, found: &DynamicObject) -> Conversion {
    let key = key(kind, found);
    if found.metadata.deletion_timestamp.is_some() {
        return Conversion::Terminating(key);
    }
    let Some(object) = parse_object(kind, found) else { return Conversion::Invalid(key) };
    match api_objects::stored(&object) {
        Ok(stored) => Conversion::Valid(Box::new(stored)),
        Err(problems) => {
            tracing::warn!(object = %key, "{problems}");
            Conversion::Invalid(key)
        }
    }
}

fn uid(found: &DynamicObject) -> String {
    found.metadata.uid.clone().unwrap_or_default()
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
    use knit_crds::Object;
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

    fn valid_spec() -> serde_json::Value {
        json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.0/24"}]})
    }

    #[test]
    fn a_terminating_object_is_deleted_on_the_node_before_its_finalizer() {
        let mut state = State::default();
        let mut count = |update: WatchUpdate<DynamicObject>| {
            let event = Event::Objects(Box::new(convert(kind(), update).unwrap()));
            knit_engine::step(&mut state, event, knit_ipam::Time(0));
            state.objects.len() + state.unused_objects.len()
        };
        assert_eq!(count(WatchUpdate::Applied(found(valid_spec(), json!({})))), 1);
        let terminating = found(valid_spec(), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(count(WatchUpdate::Applied(terminating)), 0);
    }

    #[test]
    fn an_invalid_object_causes_no_event() {
        let invalid_spec =
            json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.7/24"}]});
        assert!(convert(kind(), WatchUpdate::Applied(found(invalid_spec, json!({})))).is_none());
    }
}
