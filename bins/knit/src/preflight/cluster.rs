//! The facts about a cluster, read from its API server. Nothing is changed.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use knit_crds::Object;
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::api_server::ApiServer;

/// The namespace of the installation.
pub const NAMESPACE: &str = "pod-network-operator";
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The groups and resources of policies that Knit enforces.
const ENFORCED: [(&str, &str); 2] =
    [("policy.networking.k8s.io", "clusternetworkpolicies"), ("k8s.cni.cncf.io", "multi-networkpolicies")];

/// The resources that an installation creates: group, resource, and whether it is in [`NAMESPACE`].
const INSTALLED_RESOURCES: [(&str, &str, bool); 8] = [
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("", "namespaces", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("", "serviceaccounts", true),
    ("apps", "daemonsets", true),
    ("apps", "deployments", true),
];

/// The response to one request.
#[derive(Clone, Debug)]
pub enum ApiAnswer {
    /// The object or list.
    Found(Value),
    /// The object or its kind does not exist.
    NotFound,
    /// The API server rejected the request with this message.
    Denied(String),
}

/// A permission of the caller.
#[derive(Clone, Debug)]
pub struct Permission {
    /// The resource and its group.
    pub resource: String,
    /// Whether the caller may create it.
    pub allowed: bool,
}

/// Everything that the checks need.
#[derive(Debug)]
pub struct ClusterFacts {
    pub server: String,
    pub version: Value,
    pub nodes: ApiAnswer,
    pub definitions: ApiAnswer,
    pub namespace: ApiAnswer,
    pub daemonsets: ApiAnswer,
    pub service_cidrs: ApiAnswer,
    pub api_service: ApiAnswer,
    /// The ConfigMap of kubeadm, if it created the cluster.
    pub kubeadm: ApiAnswer,
    /// The pods of the controller manager; their arguments have the cluster's ranges.
    pub controller_manager_pods: ApiAnswer,
    /// The pods of kube-proxy that no DaemonSet creates.
    pub kube_proxy_pods: ApiAnswer,
    /// The objects of each kind of policy that a CustomResourceDefinition defines, by the definition's name.
    pub custom_policies: Vec<(String, ApiAnswer)>,
    /// The IP pools of Calico.
    pub calico_pools: ApiAnswer,
    /// The ClusterRanges object of the admission policies.
    pub cluster_ranges: ApiAnswer,
    pub policies: ApiAnswer,
    /// The objects of each kind of Knit, by its plural.
    pub objects: Vec<(String, ApiAnswer)>,
    pub permissions: Vec<Permission>,
}

impl ApiAnswer {
    /// The object or list, if found.
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotFound | Self::Denied(_) => None,
        }
    }

    /// The items of a list.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        self.value().and_then(|value| value["items"].as_array()).into_iter().flatten()
    }
}

/// Reads all facts. Fails if the API server cannot be reached.
pub async fn collect(server: &ApiServer) -> Result<ClusterFacts> {
    let mut config = server.config().await?;
    (config.connect_timeout, config.read_timeout) = (Some(TIMEOUT), Some(TIMEOUT));
    let server = config.cluster_url.to_string();
    let api = Api(knit_kube::client(config)?);
    let version = match api.get("/version").await.with_context(|| format!("cannot reach {server}"))? {
        ApiAnswer::Found(version) => version,
        ApiAnswer::NotFound => anyhow::bail!("{server} has no /version: not an API server"),
        ApiAnswer::Denied(message) => anyhow::bail!("{server} rejected the request: {message}"),
    };
    let mut objects = Vec::new();
    for kind in Object::kinds() {
        let path = format!("/apis/{}/{}", kind.api_version(), kind.plural);
        objects.push((kind.plural.clone(), api.get(&path).await?));
    }
    let definitions = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await?;
    let mut custom_policies = Vec::new();
    for (name, path) in definitions.items().filter_map(policies_path) {
        custom_policies.push((name, api.get(&path).await?));
    }
    let mut permissions = Vec::new();
    for (group, resource, namespaced) in INSTALLED_RESOURCES {
        permissions.push(api.may_create(group, resource, namespaced).await?);
    }
    let group = "/apis/podnetwork.opdev.io/v1alpha1";
    let controller_manager_pods =
        "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Dkube-controller-manager";
    Ok(ClusterFacts {
        nodes: api.get("/api/v1/nodes").await?,
        definitions,
        namespace: api.get(&format!("/api/v1/namespaces/{NAMESPACE}")).await?,
        daemonsets: api.get("/apis/apps/v1/daemonsets").await?,
        service_cidrs: api.get("/apis/networking.k8s.io/v1/servicecidrs").await?,
        api_service: api.get("/api/v1/namespaces/default/services/kubernetes").await?,
        kubeadm: api.get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config").await?,
        controller_manager_pods: api.get(controller_manager_pods).await?,
        kube_proxy_pods: api.get("/api/v1/pods?labelSelector=component%3Dkube-proxy").await?,
        custom_policies,
        calico_pools: api.get("/apis/crd.projectcalico.org/v1/ippools").await?,
        cluster_ranges: api.get(&format!("{group}/clusterranges/cluster")).await?,
        policies: api.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies").await?,
        server,
        version,
        objects,
        permissions,
    })
}

/// The name and the path of the list of a kind of network policy that Knit does not enforce: older ones of admins, of other
/// network plugins.
fn policies_path(definition: &Value) -> Option<(String, String)> {
    let (name, spec) = (definition["metadata"]["name"].as_str()?, &definition["spec"]);
    let plural = spec["names"]["plural"].as_str().filter(|plural| plural.contains("networkpolic"))?;
    let group = spec["group"].as_str()?;
    if ENFORCED.contains(&(group, plural)) {
        return None;
    }
    let served = spec["versions"].as_array()?.iter().find(|version| version["served"] == true)?;
    Some((name.to_owned(), format!("/apis/{group}/{}/{plural}", served["name"].as_str()?)))
}

struct Api(Client);

impl Api {
    async fn get(&self, path: &str) -> Result<ApiAnswer> {
        let request = Request::get(path).body(Vec::new()).context("invalid request")?;
        self.send(request).await.with_context(|| format!("cannot get {path}"))
    }

    async fn may_create(&self, group: &str, resource: &str, namespaced: bool) -> Result<Permission> {
        let namespace = if namespaced { NAMESPACE } else { "" };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": "create", "group": group, "resource": resource, "namespace": namespace,
            }},
        });
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())
            .context("invalid request")?;
        let answer = self.send(request).await.context("cannot check your permissions")?;
        let allowed = answer.value().is_some_and(|review| review["status"]["allowed"] == true);
        let dot = if group.is_empty() { "" } else { "." };
        Ok(Permission { resource: format!("{resource}{dot}{group}"), allowed })
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Result<ApiAnswer> {
        match self.0.request::<Value>(request).await {
            Ok(value) => Ok(ApiAnswer::Found(value)),
            Err(Error::Api(status)) if status.code == 404 => Ok(ApiAnswer::NotFound),
            Err(Error::Api(status)) => Ok(ApiAnswer::Denied(status.message.clone())),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_other_kinds_are_found_by_their_definitions() {
        let definition = |plural: &str, group: &str| {
            json!({
                "metadata": {"name": format!("{plural}.{group}")},
                "spec": {
                    "group": group,
                    "names": {"plural": plural},
                    "versions": [{"name": "v1alpha1", "served": false}, {"name": "v1alpha2", "served": true}],
                },
            })
        };
        let found = policies_path(&definition("adminnetworkpolicies", "policy.networking.k8s.io"));
        let path = "/apis/policy.networking.k8s.io/v1alpha2/adminnetworkpolicies";
        let name = "adminnetworkpolicies.policy.networking.k8s.io";
        assert_eq!(found, Some((name.to_owned(), path.to_owned())));
        assert_eq!(policies_path(&definition("clusternetworkpolicies", "policy.networking.k8s.io")), None);
        assert_eq!(policies_path(&definition("multi-networkpolicies", "k8s.cni.cncf.io")), None);
        assert_eq!(policies_path(&definition("bridges", "podnetwork.opdev.io")), None);
    }
}
