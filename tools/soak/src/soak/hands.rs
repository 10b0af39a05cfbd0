//! Deeds, done.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use knit_kube::kube::api::{DeleteParams, Patch, PatchParams};
use knit_kube::kube::{self, Api};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::deed::{Deed, Victim};
use crate::harness::pods::{self, Wanted};
use crate::harness::{Beside, OPERATOR, programs, until};
use knit_testcluster::node_name;

/// What became of a deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The API server refused it, as it may; or there was nothing to do it to.
    Refused,
}

/// A namespace on a cluster, to do things in.
pub struct Hands<'a> {
    pub beside: &'a Beside,
    pub namespace: &'a str,
}

impl Hands<'_> {
    /// Does it.
    pub fn carry_out(&self, deed: &Deed) -> Result<Outcome> {
        match deed {
            Deed::Put { kind, name, spec } => self.put(kind, name, spec),
            Deed::Hurry { kind, name, specs } => {
                let outcomes =
                    specs.iter().map(|spec| self.put(kind, name, spec)).collect::<Result<Vec<_>>>()?;
                Ok(if outcomes.contains(&Outcome::Done) { Outcome::Done } else { Outcome::Refused })
            }
            Deed::Remove { kind, name } => {
                let api = self.beside.objects(kind, self.namespace)?;
                allowed(self.beside.wait(api.delete(name, &DeleteParams::default())).map(|_| ()))
            }
            Deed::Label { pod, label, value } => self.label(*pod, label, *value),
            Deed::Replace { pod } => self.replace(*pod),
            Deed::Kill(victim) => {
                let Some(program) = self.find(*victim)? else { return Ok(Outcome::Refused) };
                // It may have ended since it was looked for.
                let killed = kill(Pid::from_raw(program.pid), Signal::SIGKILL);
                Ok(if killed.is_ok() { Outcome::Done } else { Outcome::Refused })
            }
            Deed::Restart(victim) => {
                let Some(pod) = self.pod_of(*victim)? else { return Ok(Outcome::Refused) };
                let api: Api<Pod> = Api::namespaced(self.beside.client().clone(), OPERATOR);
                allowed(self.beside.wait(api.delete(&pod, &DeleteParams::default())).map(|_| ()))
            }
        }
    }

    fn put(&self, kind: &str, name: &str, spec: &Value) -> Result<Outcome> {
        let api = self.beside.objects(kind, self.namespace)?;
        let info = knit_crds::Object::find_kind(kind).context("a kind that there is")?;
        let manifest = json!({
            "apiVersion": info.api_version(),
            "kind": info.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        });
        let params = PatchParams::apply("soak").force();
        allowed(self.beside.wait(api.patch(name, &params, &Patch::Apply(&manifest))).map(|_| ()))
    }

    /// Gives a pod a label, or takes it away.
    pub fn label(&self, pod: usize, label: &str, value: Option<&str>) -> Result<Outcome> {
        let patch = json!({"metadata": {"labels": {label: value}}});
        let done = self.beside.wait(async {
            self.pods().patch(&pod_name(pod), &PatchParams::default(), &Patch::Merge(&patch)).await
        });
        allowed(done.map(|_| ()))
    }

    fn replace(&self, pod: usize) -> Result<Outcome> {
        let (api, name) = (self.pods(), pod_name(pod));
        self.beside.wait(pods::delete(&api, &name))?;
        until("the pod is gone", Duration::from_secs(60), || {
            let there = self.beside.wait(api.get_opt(&name))?;
            Ok(if there.is_none() { Ok(()) } else { Err(format!("pod {name} is still there")) })
        })?;
        self.beside.wait(pods::ask(&api, &wanted(pod)))?;
        Ok(Outcome::Done)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.beside.client().clone(), self.namespace)
    }

    fn find(&self, victim: Victim) -> Result<Option<programs::Program>> {
        let all = programs::find(self.beside.cluster())?;
        Ok(match victim {
            Victim::Agent(node) => {
                all.into_iter().find(|one| one.role == "agent" && one.place == node_name(node))
            }
            Victim::Controller(number) => {
                all.into_iter().filter(|one| one.role == "controller").nth(usize::from(number) - 1)
            }
        })
    }

    fn pod_of(&self, victim: Victim) -> Result<Option<String>> {
        let (app, node, place) = match victim {
            Victim::Agent(node) => ("app=knit-agent", Some(node_name(node)), 0),
            Victim::Controller(number) => ("app=knit-controller", None, usize::from(number) - 1),
        };
        let api: Api<Pod> = Api::namespaced(self.beside.client().clone(), OPERATOR);
        let listed = self.beside.wait(api.list(&kube::api::ListParams::default().labels(app)))?;
        let is_there = |pod: &Pod| {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            pod.metadata.deletion_timestamp.is_none() && (node.is_none() || on == node)
        };
        let mut names: Vec<String> =
            listed.items.into_iter().filter(is_there).filter_map(|pod| pod.metadata.name).collect();
        names.sort();
        Ok(names.into_iter().nth(place))
    }
}

/// The name of a pod by its number.
pub fn pod_name(pod: usize) -> String {
    format!("pod-{pod}")
}

/// A pod without labels; both nodes have some.
pub fn wanted(pod: usize) -> Wanted {
    let node = if pod.is_multiple_of(2) { 1 } else { 2 };
    Wanted { name: pod_name(pod), node, labels: [].into() }
}

/// A refusal is an answer; anything else is a failure.
fn allowed(result: kube::Result<()>) -> Result<Outcome> {
    match result {
        Ok(()) => Ok(Outcome::Done),
        Err(kube::Error::Api(why)) if (400..500).contains(&why.code) => Ok(Outcome::Refused),
        Err(why) => Err(why).context("the API server fails"),
    }
}
