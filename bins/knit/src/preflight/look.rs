//! Questions to an API server. They change nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use knit_crds::Object;
use kube::{Client, Error};
use serde_json::{Value, json};

use crate::api_server::ApiServer;

/// Where Knit is installed.
pub const NAMESPACE: &str = "pod-network-operator";
/// How long the API server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What installing Knit has to be allowed: group, resource, and whether it is in [`NAMESPACE`].
const RIGHTS: [(&str, &str, bool); 8] = [
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("", "namespaces", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("", "serviceaccounts", true),
    ("apps", "daemonsets", true),
    ("apps", "deployments", true),
];

/// The answer to one question.
#[derive(Clone, Debug)]
pub enum Said {
    /// It is there.
    Here(Value),
    /// There is none, or no such kind.
    Absent,
    /// The API server does not answer that, in its words.
    Refused(String),
}

/// A right, and whether the caller has it.
#[derive(Clone, Debug)]
pub struct Right {
    /// The resource with its group.
    pub resource: String,
    /// Whether the caller may create it.
    pub allowed: bool,
}

/// Everything that was asked for.
#[derive(Debug)]
pub struct Seen {
    pub server: String,
    pub version: Value,
    pub nodes: Said,
    pub definitions: Said,
    pub namespace: Said,
    pub daemonsets: Said,
    pub service_cidrs: Said,
    pub api_service: Said,
    /// What kubeadm wrote down, if it made the cluster.
    pub kubeadm: Said,
    /// Pods of the controller manager, whose arguments tell the cluster's ranges.
    pub controllers: Said,
    /// Calico's own ranges.
    pub calico_pools: Said,
    /// What the admission policies compare with.
    pub ranges: Said,
    pub policies: Said,
    /// Objects of each kind, by its plural.
    pub objects: Vec<(String, Said)>,
    pub rights: Vec<Right>,
}

impl Said {
    /// The answer, if there is one.
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Here(value) => Some(value),
            Self::Absent | Self::Refused(_) => None,
        }
    }

    /// The entries of a list.
    pub fn items(&self) -> impl Iterator<Item = &Value> {
        self.value().and_then(|value| value["items"].as_array()).into_iter().flatten()
    }
}

/// Asks everything. It fails if the API server cannot be asked at all.
pub async fn look(server: &ApiServer) -> Result<Seen> {
    let mut config = server.config().await?;
    (config.connect_timeout, config.read_timeout) = (Some(PATIENCE), Some(PATIENCE));
    let server = config.cluster_url.to_string();
    let api = Api(knit_kube::client(config)?);
    let version = match api.get("/version").await.with_context(|| format!("cannot ask {server}"))? {
        Said::Here(version) => version,
        Said::Absent => anyhow::bail!("{server} has no /version: is it an API server?"),
        Said::Refused(why) => anyhow::bail!("{server} does not answer: {why}"),
    };
    let mut objects = Vec::new();
    for kind in Object::kinds() {
        let path = format!("/apis/{}/{}", kind.api_version(), kind.plural);
        objects.push((kind.plural.clone(), api.get(&path).await?));
    }
    let mut rights = Vec::new();
    for (group, resource, inside) in RIGHTS {
        rights.push(api.may_create(group, resource, inside).await?);
    }
    let group = "/apis/podnetwork.opdev.io/v1alpha1";
    let controllers = "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Dkube-controller-manager";
    Ok(Seen {
        nodes: api.get("/api/v1/nodes").await?,
        definitions: api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await?,
        namespace: api.get(&format!("/api/v1/namespaces/{NAMESPACE}")).await?,
        daemonsets: api.get("/apis/apps/v1/daemonsets").await?,
        service_cidrs: api.get("/apis/networking.k8s.io/v1/servicecidrs").await?,
        api_service: api.get("/api/v1/namespaces/default/services/kubernetes").await?,
        kubeadm: api.get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config").await?,
        controllers: api.get(controllers).await?,
        calico_pools: api.get("/apis/crd.projectcalico.org/v1/podaddresspools").await?,
        ranges: api.get(&format!("{group}/clusterranges/cluster")).await?,
        policies: api.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies").await?,
        server,
        version,
        objects,
        rights,
    })
}

struct Api(Client);

impl Api {
    async fn get(&self, path: &str) -> Result<Said> {
        let request = Request::get(path).body(Vec::new()).context("a request")?;
        self.ask(request).await.with_context(|| format!("cannot ask for {path}"))
    }

    async fn may_create(&self, group: &str, resource: &str, inside: bool) -> Result<Right> {
        let namespace = if inside { NAMESPACE } else { "" };
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
            .context("a request")?;
        let said = self.ask(request).await.context("cannot ask what you may do")?;
        let allowed = said.value().is_some_and(|review| review["status"]["allowed"] == true);
        let dot = if group.is_empty() { "" } else { "." };
        Ok(Right { resource: format!("{resource}{dot}{group}"), allowed })
    }

    async fn ask(&self, request: Request<Vec<u8>>) -> Result<Said> {
        match self.0.request::<Value>(request).await {
            Ok(value) => Ok(Said::Here(value)),
            Err(Error::Api(status)) if status.code == 404 => Ok(Said::Absent),
            Err(Error::Api(status)) => Ok(Said::Refused(status.message.clone())),
            Err(error) => Err(error.into()),
        }
    }
}
