//! `knit uninstall`: deletes the objects first, so that agents roll back their changes, and then Knit itself. It waits
//! no longer than the timeout, and removes all finalizers.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use knit_controller_engine::{finalizer, labels};
use knit_crds::states::{NodeNetwork, PodNetworkState};
use knit_crds::{KindInfo, Object};
use knit_kube::api_resource;
use knit_kube::kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use knit_kube::kube::core::GroupVersionKind;
use knit_kube::kube::{self, Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// The label selector of Knit's own manifests.
const LABEL: &str = "app.kubernetes.io/part-of=knit";
/// The binding that allows the controller to create segments of the cluster network, which it would do again.
const SEGMENTS_BINDING: &str = "knit-controller-segments";
/// The poll interval while agents roll back.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Removes everything of Knit from a cluster. `report` is called for each step.
pub async fn uninstall(
    client: Client,
    timeout: Duration,
    mut report: impl FnMut(String),
) -> kube::Result<()> {
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    ignore_not_found(bindings.delete(SEGMENTS_BINDING, &DeleteParams::default()).await.map(drop))?;
    for kind in Object::kinds() {
        let gone = delete_objects(&client, kind).await?;
        if gone > 0 {
            report(format!("{gone} {} deleted", kind.plural));
        }
    }
    if wait_for_agents(&client, timeout).await? {
        report("nodes and pods are restored".to_owned());
    } else {
        report(format!(
            "timeout after {} s while waiting for an agent: its changes stay until its node restarts",
            timeout.as_secs()
        ));
    }
    for kind in Object::kinds() {
        remove_finalizers(&client, kind).await?;
    }
    remove(Api::<Namespace>::all(client.clone()), "namespace", &mut report).await?;
    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        remove(placement(&client, kind), &kind.to_lowercase(), &mut report).await?;
    }
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    remove(bindings, "validatingadmissionpolicybinding", &mut report).await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    remove(policies, "validatingadmissionpolicy", &mut report).await?;
    remove(Api::<ClusterRoleBinding>::all(client.clone()), "clusterrolebinding", &mut report).await?;
    remove(Api::<ClusterRole>::all(client.clone()), "clusterrole", &mut report).await?;
    // Last, because a controller that still runs would add them again.
    unlabel_nodes(&client).await?;
    remove(Api::<CustomResourceDefinition>::all(client.clone()), "customresourcedefinition", &mut report)
        .await
}

/// All objects of a kind; none if the kind is not installed.
async fn objects(client: &Client, kind: &KindInfo) -> kube::Result<Vec<DynamicObject>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &api_resource(kind));
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(Vec::new()),
        listed => Ok(listed?.items),
    }
}

fn api(client: &Client, kind: &KindInfo, object: &DynamicObject) -> Api<DynamicObject> {
    match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &api_resource(kind)),
        None => Api::all_with(client.clone(), &api_resource(kind)),
    }
}

async fn delete_objects(client: &Client, kind: &KindInfo) -> kube::Result<usize> {
    let found = objects(client, kind).await?;
    for object in &found {
        let gone = api(client, kind, object).delete(&object.name_any(), &DeleteParams::default()).await;
        ignore_not_found(gone.map(|_| ()))?;
    }
    Ok(found.len())
}

/// Waits until no agent reports an object.
async fn wait_for_agents(client: &Client, timeout: Duration) -> kube::Result<bool> {
    let deadline = Instant::now() + timeout;
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
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// A kind that is not installed counts as empty.
fn count(found: kube::Result<usize>) -> kube::Result<usize> {
    match found {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(0),
        found => found,
    }
}

/// Removes Knit's finalizer from objects that still have it.
async fn remove_finalizers(client: &Client, kind: &KindInfo) -> kube::Result<()> {
    let Some(mine) = finalizer(&kind.kind) else { return Ok(()) };
    for object in objects(client, kind).await? {
        if !object.finalizers().iter().any(|one| one == mine) {
            continue;
        }
        let others: Vec<&String> = object.finalizers().iter().filter(|one| *one != mine).collect();
        let patch = json!({"metadata": {"finalizers": others}});
        let patched = api(client, kind, &object)
            .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        ignore_not_found(patched.map(|_| ()))?;
    }
    Ok(())
}

/// Deletes resources with Knit's label; none if the API server does not support the kind.
async fn remove<K>(api: Api<K>, kind: &str, report: &mut impl FnMut(String)) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let found = match api.list(&ListParams::default().labels(LABEL)).await {
        Err(kube::Error::Api(why)) if why.code == 404 => return Ok(()),
        found => found?,
    };
    for name in found.items.iter().map(ResourceExt::name_any) {
        ignore_not_found(api.delete(&name, &DeleteParams::default()).await.map(|_| ()))?;
        report(format!("{kind}/{name} deleted"));
    }
    Ok(())
}

/// Mutating admission policies for pod placement, which older API servers do not support.
fn placement(client: &Client, kind: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

/// Removes Knit's labels from all nodes.
async fn unlabel_nodes(client: &Client) -> kube::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for node in api.list_metadata(&ListParams::default()).await? {
        let labels: BTreeMap<String, ()> =
            labels::owned(node.labels()).into_keys().map(|key| (key, ())).collect();
        if !labels.is_empty() {
            let patch = json!({"metadata": {"labels": labels}});
            let params = PatchParams::default();
            ignore_not_found(
                api.patch_metadata(&node.name_any(), &params, &Patch::Merge(&patch)).await.map(|_| ()),
            )?;
        }
    }
    Ok(())
}

/// Ignores not found.
fn ignore_not_found(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(why)) if why.code == 404 => Ok(()),
        other => other,
    }
}
