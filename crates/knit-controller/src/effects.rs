//! The executor of effects.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use knit_controller_engine::{Effect, Event, sample};
use knit_crds::Object;
use knit_crds::states::{NodeNetwork, PodAddressBlock};
use knit_engine::ObjectKey;
use knit_kube::kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use knit_kube::kube::{self, Api, Client, ResourceExt};
use knit_kube::{EventRecorder, FIELD_MANAGER, Severity, api_resource};
use knit_model::provenance::ObjectRef;
use serde_json::{Value, json};

/// Executes effects against the API server.
#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
    /// The image of sample Deployments.
    pub(crate) image: String,
}

impl Executor {
    /// Executes an effect. Returns an event if it must be retried.
    pub(crate) async fn execute(&self, effect: Effect, object: Option<Object>) -> Option<Event> {
        let (key, result) = match effect {
            Effect::WriteStatus(key, status) => {
                let info = Object::find_kind(&key.kind)?;
                let manifest = json!({
                    "apiVersion": info.api_version(),
                    "kind": info.kind,
                    "metadata": {"name": key.name},
                    "status": status,
                });
                let params = PatchParams::apply(FIELD_MANAGER).force();
                let written =
                    self.api(&key)?.patch_status(&key.name, &params, &Patch::Apply(&manifest)).await;
                (key, written.map(|_| ()))
            }
            Effect::SetFinalizers { key, finalizers, version } => {
                let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
                let params = PatchParams::default();
                let written = self.api(&key)?.patch(&key.name, &params, &Patch::Merge(&patch)).await;
                (key, written.map(|_| ()))
            }
            Effect::ReleaseClaims { key, nodes, used, version } => {
                let claims: BTreeMap<String, ()> = nodes.into_iter().map(|node| (node, ())).collect();
                let patch = json!({
                    "metadata": {"resourceVersion": version},
                    "status": {"claims": claims, "used": used},
                });
                let params = PatchParams::default();
                let written = self.api(&key)?.patch_status(&key.name, &params, &Patch::Merge(&patch)).await;
                (key, written.map(|_| ()))
            }
            Effect::CreateSample { key, name } => {
                let created = self.create_sample(&object?, &name).await;
                (key, created)
            }
            Effect::DeleteSample(key, (namespace, name)) => {
                let api: Api<Deployment> = Api::namespaced(self.client.clone(), &namespace);
                (key, api.delete(&name, &DeleteParams::background()).await.map(|_| ()))
            }
            Effect::LabelNode { node, labels } => {
                let api: Api<Node> = Api::all(self.client.clone());
                let patch = json!({"metadata": {"labels": labels}});
                let written = api.patch_metadata(&node, &PatchParams::default(), &Patch::Merge(&patch)).await;
                return match written {
                    Ok(_) => None,
                    Err(kube::Error::Api(why)) if why.code == 404 => None,
                    Err(why) => {
                        tracing::warn!(node, %why, "cannot write node labels; retrying");
                        Some(Event::LabelWriteFailed(node))
                    }
                };
            }
            Effect::DeleteNodeNetwork(name) => {
                let api: Api<NodeNetwork> = Api::all(self.client.clone());
                // The garbage collector of the API server may have deleted it already.
                let _ = api.delete(&name, &DeleteParams::default()).await;
                return None;
            }
            Effect::DeleteBlock { name, uid } => {
                let api: Api<PodAddressBlock> = Api::all(self.client.clone());
                let preconditions = Preconditions { uid: Some(uid), ..Preconditions::default() };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match api.delete(&name, &params).await {
                    Ok(_) => tracing::info!(block = name, "deleted the address block of a deleted node"),
                    // The next reconciliation retries.
                    Err(why) => tracing::warn!(block = name, %why, "cannot delete the address block"),
                }
                return None;
            }
            Effect::CreateSegment { key, manifest } => {
                let object = serde_json::from_value(manifest).ok()?;
                let created = self.api(&key)?.create(&PostParams::default(), &object).await;
                return segment_written(&key, "created", created.map(drop));
            }
            Effect::DeleteSegment { key, uid, version } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let deleted = self.api(&key)?.delete(&key.name, &params).await;
                return segment_written(&key, "deleted", deleted.map(drop));
            }
            Effect::WriteServiceStatus { service, manifest } => {
                return self.write_service_status(service, &manifest).await;
            }
            Effect::PublishEvent { object, severity, reason, note } => {
                self.recorder.publish(&reference(&object)?, severity, &reason, &note).await;
                return None;
            }
        };
        match result {
            Ok(()) => None,
            // Deleted or changed meanwhile: the watch triggers another reconciliation.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => None,
            Err(why) => {
                tracing::warn!(object = %key, %why, "cannot write the object; retrying");
                Some(Event::WriteFailed(key))
            }
        }
    }

    /// Writes what Knit owns of the status of a Service: fields that the manifest leaves out are removed if they are Knit's.
    async fn write_service_status(&self, service: (String, String), manifest: &Value) -> Option<Event> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.0);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch_status(&service.1, &params, &Patch::Apply(manifest)).await {
            Ok(_) => None,
            // Deleted or changed meanwhile: the watch triggers another reconciliation.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => None,
            Err(why) => {
                let (namespace, name) = &service;
                tracing::warn!(namespace, name, %why, "cannot write the address of the Service; retrying");
                Some(Event::ServiceWriteFailed(service))
            }
        }
    }

    fn api(&self, key: &ObjectKey) -> Option<Api<DynamicObject>> {
        let kind = api_resource(Object::find_kind(&key.kind)?);
        let client = self.client.clone();
        Some(if key.namespace.is_empty() {
            Api::all_with(client, &kind)
        } else {
            Api::namespaced_with(client, &key.namespace, &kind)
        })
    }

    async fn create_sample(&self, object: &Object, name: &str) -> kube::Result<()> {
        let owner = object.object_ref();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &owner.namespace);
        let manifest = sample::deployment(object, name, &self.image);
        let deployment = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        let created = api.create(&PostParams::default(), &deployment).await;
        if matches!(&created, Err(kube::Error::Api(why)) if why.code == 409) {
            let existing = api.get_opt(name).await?;
            let is_owned = |found: &Deployment| found.labels().get(sample::OWNER_LABEL) == Some(&owner.name);
            if existing.as_ref().is_some_and(is_owned) {
                return Ok(());
            }
        }
        if let (Err(kube::Error::Api(why)), Some(about)) = (&created, reference(&owner)) {
            let note = format!("spec.sampleDeployment: cannot create Deployment {name}: {}", why.message);
            self.recorder.publish(&about, Severity::Warning, "SampleDeploymentFailed", &note).await;
        }
        created.map(|_| ())
    }
}

/// Logs the result of a write of a segment. Returns an event if it must be retried.
fn segment_written(key: &ObjectKey, what: &str, result: kube::Result<()>) -> Option<Event> {
    match result {
        Ok(()) => tracing::info!(object = %key, "{what} the segment"),
        // There is an object of that name, it has changed or is deleted: the watch triggers another reconciliation.
        Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => {}
        Err(why) => {
            tracing::warn!(object = %key, %why, "the segment cannot be {what}; retrying");
            return Some(Event::SegmentWriteFailed(key.namespace.clone()));
        }
    }
    None
}

fn reference(object: &ObjectRef) -> Option<ObjectReference> {
    let api_version = match object.kind.as_str() {
        "Service" => "v1".to_owned(),
        kind => Object::find_kind(kind)?.api_version(),
    };
    Some(ObjectReference {
        api_version: Some(api_version),
        kind: Some(object.kind.clone()),
        name: Some(object.name.clone()),
        namespace: (!object.namespace.is_empty()).then(|| object.namespace.clone()),
        uid: Some(object.uid.clone()),
        ..ObjectReference::default()
    })
}
