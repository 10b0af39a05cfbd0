//! `knit uninstall`: objects first, so that agents take back what they made; then Knit itself. Nothing is waited for longer
//! than was asked, and no finalizer is left behind.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knit_crds::states::{NodeNetwork, PodNetworkState};
use knit_crds::{KindInfo, Object};
use knit_kube::kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use knit_kube::kube::core::GroupVersionKind;
use knit_kube::kube::{self, Api, Client, Resource, ResourceExt};
use knit_kube::resource;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::labels;
use crate::step::finalizer;

/// What Knit's own manifests are labelled with.
const LABEL: &str = "app.kubernetes.io/part-of=knit";
/// How often is looked whether agents are done.
const AGAIN: Duration = Duration::from_millis(250);

/// Removes everything of Knit's from a cluster. `say` is told what is done.
pub async fn uninstall(client: Client, patience: Duration, mut say: impl FnMut(String)) -> kube::Result<()> {
    for kind in Object::kinds() {
        let gone = delete_objects(&client, kind).await?;
        if gone > 0 {
            say(format!("{gone} {} deleted", kind.plural));
        }
    }
    if agents_let_go(&client, patience).await? {
        say("nodes and pods are as they were".to_owned());
    } else {
        say(format!(
            "some agent did not answer within {} s: what it made stays until its node is restarted",
            patience.as_secs()
        ));
    }
    for kind in Object::kinds() {
        free_objects(&client, kind).await?;
    }
    remove(Api::<Namespace>::all(client.clone()), "namespace", &mut say).await?;
    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        remove(placement(&client, kind), &kind.to_lowercase(), &mut say).await?;
    }
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    remove(bindings, "validatingadmissionpolicybinding", &mut say).await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    remove(policies, "validatingadmissionpolicy", &mut say).await?;
    remove(Api::<ClusterRoleBinding>::all(client.clone()), "clusterrolebinding", &mut say).await?;
    remove(Api::<ClusterRole>::all(client.clone()), "clusterrole", &mut say).await?;
    // A controller that is still about to end may not put them back any more.
    unlabel_nodes(&client).await?;
    remove(Api::<CustomResourceDefinition>::all(client.clone()), "customresourcedefinition", &mut say).await
}

/// All objects of a kind; none where the kind is not installed.
async fn objects(client: &Client, kind: &KindInfo) -> kube::Result<Vec<DynamicObject>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(Vec::new()),
        listed => Ok(listed?.items),
    }
}

fn api(client: &Client, kind: &KindInfo, object: &DynamicObject) -> Api<DynamicObject> {
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource(kind)),
        None => Api::all_with(client.clone(), &resource(kind)),
    }
}

async fn delete_objects(client: &Client, kind: &KindInfo) -> kube::Result<usize> {
    let found = objects(client, kind).await?;
    for object in &found {
        let gone = api(client, kind, object).delete(&object.name_any(), &DeleteParams::default()).await;
        there_or_not(gone.map(|_| ()))?;
    }
    Ok(found.len())
}

/// Waits until no agent says that it has anything of an object.
async fn agents_let_go(client: &Client, patience: Duration) -> kube::Result<bool> {
    let end = Instant::now() + patience;
    let pods: Api<PodNetworkState> = Api::all(client.clone());
    let nodes: Api<NodeNetwork> = Api::all(client.clone());
    loop {
        let in_pods = count(pods.list(&ListParams::default()).await.map(|list| list.items.len()))?;
        let on_nodes = count(nodes.list(&ListParams::default()).await.map(|list| {
            let states = list.items.into_iter().filter_map(|node| node.status);
            states.map(|state| state.objects.len()).sum()
        }))?;
        if in_pods + on_nodes == 0 {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(AGAIN).await;
    }
}

/// Where the kind is not installed there is none.
fn count(found: kube::Result<usize>) -> kube::Result<usize> {
    match found {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(0),
        found => found,
    }
}

/// Takes Knit's finalizer from objects that still have it: nobody will any more.
async fn free_objects(client: &Client, kind: &KindInfo) -> kube::Result<()> {
    let Some(mine) = finalizer(&kind.kind) else { return Ok(()) };
    for object in objects(client, kind).await? {
        if !object.finalizers().iter().any(|one| one == mine) {
            continue;
        }
        let others: Vec<&String> = object.finalizers().iter().filter(|one| *one != mine).collect();
        let patch = json!({"metadata": {"finalizers": others}});
        let freed = api(client, kind, &object)
            .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        there_or_not(freed.map(|_| ()))?;
    }
    Ok(())
}

/// Deletes what is labelled as Knit's; nothing where the API server does not know the kind.
async fn remove<K>(api: Api<K>, kind: &str, say: &mut impl FnMut(String)) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let there = match api.list(&ListParams::default().labels(LABEL)).await {
        Err(kube::Error::Api(why)) if why.code == 404 => return Ok(()),
        there => there?,
    };
    for name in there.items.iter().map(ResourceExt::name_any) {
        there_or_not(api.delete(&name, &DeleteParams::default()).await.map(|_| ()))?;
        say(format!("{kind}/{name} deleted"));
    }
    Ok(())
}

/// Policies that put pods where their networks are. Older API servers do not know them.
fn placement(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

/// Takes Knit's labels from all nodes.
async fn unlabel_nodes(client: &Client) -> kube::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for node in api.list_metadata(&ListParams::default()).await? {
        let labels: BTreeMap<String, ()> =
            labels::own(node.labels()).into_keys().map(|key| (key, ())).collect();
        if !labels.is_empty() {
            let patch = json!({"metadata": {"labels": labels}});
            let params = PatchParams::default();
            there_or_not(
                api.patch_metadata(&node.name_any(), &params, &Patch::Merge(&patch)).await.map(|_| ()),
            )?;
        }
    }
    Ok(())
}

/// What is gone already is gone.
fn there_or_not(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(()),
        other => other,
    }
}
