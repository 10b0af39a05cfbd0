//! Executes actions on a cluster.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use knit_kube::kube::api::{DeleteParams, Patch, PatchParams};
use knit_kube::kube::{self, Api};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::action::{Action, Component};
use crate::harness::pods::{self, PodSpec};
use crate::harness::{KnitCluster, OPERATOR_NAMESPACE, programs, wait_until};
use knit_testcluster::node_name;

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was executed.
    Done,
    /// The API server rejected it with a client error, or its target does not exist.
    Rejected,
}

/// Executes actions in a namespace of a cluster.
pub struct Executor<'a> {
    pub knit: &'a KnitCluster,
    pub namespace: &'a str,
}

impl Executor<'_> {
    /// Executes an action.
    pub fn execute(&self, action: &Action) -> Result<Outcome> {
        match action {
            Action::Apply { kind, name, spec } => self.apply(kind, name, spec),
            Action::ApplyBurst { kind, name, specs } => {
                let outcomes =
                    specs.iter().map(|spec| self.apply(kind, name, spec)).collect::<Result<Vec<_>>>()?;
                Ok(if outcomes.contains(&Outcome::Done) { Outcome::Done } else { Outcome::Rejected })
            }
            Action::Delete { kind, name } => {
                let api = self.knit.objects(kind, self.namespace)?;
                outcome(self.knit.block_on(api.delete(name, &DeleteParams::default())).map(|_| ()))
            }
            Action::Label { pod, label, value } => self.label(*pod, label, *value),
            Action::ReplacePod { pod } => self.replace(*pod),
            Action::Kill(component) => {
                let Some(program) = self.find(*component)? else { return Ok(Outcome::Rejected) };
                // It may have ended meanwhile.
                let killed = kill(Pid::from_raw(program.pid), Signal::SIGKILL);
                Ok(if killed.is_ok() { Outcome::Done } else { Outcome::Rejected })
            }
            Action::RestartPod(component) => {
                let Some(pod) = self.pod_of(*component)? else { return Ok(Outcome::Rejected) };
                let api: Api<Pod> = Api::namespaced(self.knit.client().clone(), OPERATOR_NAMESPACE);
                outcome(self.knit.block_on(api.delete(&pod, &DeleteParams::default())).map(|_| ()))
            }
        }
    }

    fn apply(&self, kind: &str, name: &str, spec: &Value) -> Result<Outcome> {
        let api = self.knit.objects(kind, self.namespace)?;
        let info = knit_crds::Object::find_kind(kind).context("unknown kind")?;
        let manifest = json!({
            "apiVersion": info.api_version(),
            "kind": info.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        });
        let params = PatchParams::apply("soak").force();
        outcome(self.knit.block_on(api.patch(name, &params, &Patch::Apply(&manifest))).map(|_| ()))
    }

    /// Sets a label of a pod, or removes it.
    pub fn label(&self, pod: usize, label: &str, value: Option<&str>) -> Result<Outcome> {
        let patch = json!({"metadata": {"labels": {label: value}}});
        let done = self.knit.block_on(async {
            self.pods().patch(&pod_name(pod), &PatchParams::default(), &Patch::Merge(&patch)).await
        });
        outcome(done.map(|_| ()))
    }

    fn replace(&self, pod: usize) -> Result<Outcome> {
        let (api, name) = (self.pods(), pod_name(pod));
        self.knit.block_on(pods::delete(&api, &name))?;
        wait_until("the pod is gone", Duration::from_secs(60), || {
            let existing = self.knit.block_on(api.get_opt(&name))?;
            Ok(if existing.is_none() { Ok(()) } else { Err(format!("pod {name} is not deleted")) })
        })?;
        self.knit.block_on(pods::create(&api, &pod_spec(pod)))?;
        Ok(Outcome::Done)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.knit.client().clone(), self.namespace)
    }

    fn find(&self, component: Component) -> Result<Option<programs::Program>> {
        let all = programs::find(self.knit.cluster())?;
        Ok(match component {
            Component::Agent(node) => {
                all.into_iter().find(|one| one.role == "agent" && one.instance == node_name(node))
            }
            Component::Controller(number) => {
                all.into_iter().filter(|one| one.role == "controller").nth(usize::from(number) - 1)
            }
        })
    }

    fn pod_of(&self, component: Component) -> Result<Option<String>> {
        let (app, node, position) = match component {
            Component::Agent(node) => ("app=knit-agent", Some(node_name(node)), 0),
            Component::Controller(number) => ("app=knit-controller", None, usize::from(number) - 1),
        };
        let api: Api<Pod> = Api::namespaced(self.knit.client().clone(), OPERATOR_NAMESPACE);
        let listed = self.knit.block_on(api.list(&kube::api::ListParams::default().labels(app)))?;
        let is_candidate = |pod: &Pod| {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            pod.metadata.deletion_timestamp.is_none() && (node.is_none() || on == node)
        };
        let mut names: Vec<String> =
            listed.items.into_iter().filter(is_candidate).filter_map(|pod| pod.metadata.name).collect();
        names.sort();
        Ok(names.into_iter().nth(position))
    }
}

/// The name of a pod by its number.
pub fn pod_name(pod: usize) -> String {
    format!("pod-{pod}")
}

/// A pod without labels, on alternating nodes.
pub fn pod_spec(pod: usize) -> PodSpec {
    let node = if pod.is_multiple_of(2) { 1 } else { 2 };
    PodSpec { name: pod_name(pod), node, labels: [].into() }
}

/// A client error is an expected outcome; any other error is a failure.
fn outcome(result: kube::Result<()>) -> Result<Outcome> {
    match result {
        Ok(()) => Ok(Outcome::Done),
        Err(kube::Error::Api(error)) if (400..500).contains(&error.code) => Ok(Outcome::Rejected),
        Err(error) => Err(error).context("API server request failed"),
    }
}
