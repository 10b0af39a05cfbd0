//! Watches NetworkAttachmentDefinitions.

use knit_crds::attachments::{GROUP, KIND, PLURAL, SHARED_WITH, VERSION};
use knit_engine::Event;
use knit_engine::pod_annotations::{Definition, DefinitionEvent, DefinitionName};
use knit_kube::WatchUpdate;
use knit_kube::kube::Api;
use knit_kube::kube::api::DynamicObject;
use knit_kube::kube::runtime::watcher;

use super::Context;
use super::informers::OptionalKind;

const DEFINITIONS: OptionalKind =
    OptionalKind { group: GROUP, versions: &[VERSION], kind: KIND, plural: PLURAL };

/// Watches definitions.
pub(super) async fn run(context: Context) {
    let submit = |event: DefinitionEvent| {
        context.handle.submit(Event::Definitions(event));
        context.networks_changed.notify_one();
    };
    let mut informer = context.informer();
    let absent = || {
        submit(DefinitionEvent::Listed(Vec::new()));
        informer.mark_synced();
    };
    let resource = DEFINITIONS.wait(&context.client, absent).await;
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let handle = |seen: WatchUpdate<DynamicObject>| submit(convert(seen));
    informer.run(PLURAL, api, watcher::Config::default(), handle).await;
}

fn convert(seen: WatchUpdate<DynamicObject>) -> DefinitionEvent {
    match seen {
        WatchUpdate::Listed(all) => DefinitionEvent::Listed(all.iter().map(read).collect()),
        WatchUpdate::Applied(one) => {
            let (name, definition) = read(&one);
            DefinitionEvent::Applied(name, definition)
        }
        WatchUpdate::Deleted(one) => DefinitionEvent::Deleted(read(&one).0),
    }
}

fn read(found: &DynamicObject) -> (DefinitionName, Definition) {
    let name = (
        found.metadata.namespace.clone().unwrap_or_default(),
        found.metadata.name.clone().unwrap_or_default(),
    );
    let config = found.data.get("spec").and_then(|spec| spec.get("config")?.as_str()).unwrap_or_default();
    let shared_with = found.metadata.annotations.as_ref().and_then(|all| all.get(SHARED_WITH));
    let shared_with = shared_with.map(String::as_str).unwrap_or_default().split(',').map(str::trim);
    let shared_with = shared_with.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    (name, Definition { config: config.to_owned(), shared_with })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_is_shared_with_the_namespaces_of_its_annotation() {
        let shared_with = |annotations: serde_json::Value| {
            let definition = json!({
                "apiVersion": "k8s.cni.cncf.io/v1",
                "kind": "NetworkAttachmentDefinition",
                "metadata": {"namespace": "shop", "name": "blue", "annotations": annotations},
                "spec": {"config": "{}"},
            });
            let (name, definition) = read(&serde_json::from_value(definition).unwrap());
            assert_eq!(
                (name.0.as_str(), name.1.as_str(), definition.config.as_str()),
                ("shop", "blue", "{}")
            );
            definition.shared_with.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(shared_with(json!(null)), [""; 0]);
        assert_eq!(shared_with(json!({"knit.opdev.io/shared-with": ""})), [""; 0]);
        assert_eq!(shared_with(json!({"knit.opdev.io/shared-with": "lab, test,"})), ["lab", "test"]);
    }
}
