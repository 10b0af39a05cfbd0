//! Effects, carried out.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use knit_crds::Object;
use knit_crds::states::{NodeNetwork, PodAddressBlock};
use knit_engine::ObjectKey;
use knit_kube::kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use knit_kube::kube::{self, Api, Client, ResourceExt};
use knit_kube::{MANAGER, Recorder, Severity, resource};
use knit_model::provenance::ObjectRef;
use serde_json::json;

use crate::sample;
use crate::step::{Effect, Event};

/// What effects need.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    /// What the pods of sample Deployments run.
    pub(crate) image: String,
}

impl Hands {
    /// Does it. Returns what has to be looked at again, if it could not be done.
    pub(crate) async fn carry_out(&self, effect: Effect, object: Option<Object>) -> Option<Event> {
        let (key, result) = match effect {
            Effect::WriteStatus(key, status) => {
                let info = Object::find_kind(&key.kind)?;
                let manifest = json!({
                    "apiVersion": info.api_version(),
                    "kind": info.kind,
                    "metadata": {"name": key.name},
                    "status": status,
                });
                let params = PatchParams::apply(MANAGER).force();
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
            Effect::DropClaims { key, nodes, used, version } => {
                let claims: BTreeMap<String, ()> = nodes.into_iter().map(|node| (node, ())).collect();
                let patch = json!({
                    "metadata": {"resourceVersion": version},
                    "status": {"claims": claims, "used": used},
                });
                let params = PatchParams::default();
                let written = self.api(&key)?.patch_status(&key.name, &params, &Patch::Merge(&patch)).await;
                (key, written.map(|_| ()))
            }
            Effect::MakeSample { key, name } => {
                let made = self.make_sample(&object?, &name).await;
                (key, made)
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
                        tracing::warn!(node, %why, "the node's labels could not be written; it is tried again");
                        Some(Event::Unlabelled(node))
                    }
                };
            }
            Effect::DeleteNodeState(name) => {
                let api: Api<NodeNetwork> = Api::all(self.client.clone());
                // The API server's own garbage collector may be faster.
                let _ = api.delete(&name, &DeleteParams::default()).await;
                return None;
            }
            Effect::DeleteBlock { name, uid } => {
                let api: Api<PodAddressBlock> = Api::all(self.client.clone());
                let only = Preconditions { uid: Some(uid), ..Preconditions::default() };
                let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                match api.delete(&name, &params).await {
                    Ok(_) => tracing::info!(block = name, "deleted: its node is gone"),
                    // It is looked at again soon.
                    Err(why) => tracing::warn!(block = name, %why, "could not be deleted"),
                }
                return None;
            }
            Effect::Tell { object, severity, reason, note } => {
                self.recorder.tell(&reference(&object)?, severity, &reason, &note).await;
                return None;
            }
        };
        match result {
            Ok(()) => None,
            // It is gone, or has changed since: a watch says so, and then it is looked at anyway.
            Err(kube::Error::Api(why)) if [404, 409].contains(&why.code) => None,
            Err(why) => {
                tracing::warn!(object = %key, %why, "could not be written; it is tried again");
                Some(Event::Failed(key))
            }
        }
    }

    fn api(&self, key: &ObjectKey) -> Option<Api<DynamicObject>> {
        let kind = resource(Object::find_kind(&key.kind)?);
        let client = self.client.clone();
        Some(if key.namespace.is_empty() {
            Api::all_with(client, &kind)
        } else {
            Api::namespaced_with(client, &key.namespace, &kind)
        })
    }

    async fn make_sample(&self, object: &Object, name: &str) -> kube::Result<()> {
        let me = object.object_ref();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &me.namespace);
        let manifest = sample::deployment(object, name, &self.image);
        let deployment = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        let made = api.create(&PostParams::default(), &deployment).await;
        if matches!(&made, Err(kube::Error::Api(why)) if why.code == 409) {
            let there = api.get_opt(name).await?;
            let is_mine = |found: &Deployment| found.labels().get(sample::LABEL) == Some(&me.name);
            if there.as_ref().is_some_and(is_mine) {
                return Ok(());
            }
        }
        if let (Err(kube::Error::Api(why)), Some(about)) = (&made, reference(&me)) {
            let note = format!("spec.sampleDeployment: Deployment {name} cannot be made: {}", why.message);
            self.recorder.tell(&about, Severity::Warning, "SampleRefused", &note).await;
        }
        made.map(|_| ())
    }
}

fn reference(object: &ObjectRef) -> Option<ObjectReference> {
    let info = Object::find_kind(&object.kind)?;
    Some(ObjectReference {
        api_version: Some(info.api_version()),
        kind: Some(info.kind.clone()),
        name: Some(object.name.clone()),
        namespace: (!object.namespace.is_empty()).then(|| object.namespace.clone()),
        uid: Some(object.uid.clone()),
        ..ObjectReference::default()
    })
}
