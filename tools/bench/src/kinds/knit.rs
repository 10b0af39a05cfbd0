//! Knit as it runs on a node, with a pod whose label selects its link.

use std::path::Path;

use anyhow::{Context, Result};
use knit_agent::{Standalone, sandboxes, standalone};
use knit_engine::{Event, Unit};
use knit_kernel::Netns;
use knit_model::{Sandbox, SandboxId};

use super::netlink::{LINK, MTU, OTHER_MTU, path_of, pod};
use super::{Case, expect};

/// The label that selects the link.
const LABEL: &str = "link";

/// A node whose host is the calling thread's namespace, and one pod.
pub struct Knit {
    node: Standalone,
    sandbox: Sandbox,
    _pod: Netns,
}

impl Knit {
    /// Opens a node with two objects of each kind: the same link with two MTUs.
    pub fn open(folder: &Path, cases: &[&Case]) -> Result<Self> {
        let mut node = Standalone::open(&folder.join("state"))?;
        let manifest = folder.join("objects.yaml");
        let mut yaml = object("Bridge", "bench", "name: bench0");
        for case in cases {
            for mtu in [MTU, OTHER_MTU] {
                let (name, spec) = (label(case, mtu), case.spec);
                let spec = format!(
                    "selector: {{matchLabels: {{{LABEL}: {name}}}}}, interfaceName: {LINK}, mtu: {mtu}, \
                     addresses: ['10.9.0.2/24'], {spec}"
                );
                yaml += &object(case.object, &name, &spec);
            }
        }
        std::fs::write(&manifest, yaml).context("cannot write the objects")?;
        node.apply(standalone::read_objects(&manifest)?, "bench")?;
        let pod = pod()?;
        let instance = sandboxes::instance_of(&pod)?;
        let netns = path_of(&pod);
        let sandbox = Sandbox {
            id: SandboxId("bench/pod".to_owned()),
            uid: format!("{}-{}", instance.boot, instance.cookie),
            instance,
            isolation: Default::default(),
            netns,
            number: 1,
            pod: "pod".to_owned(),
            namespace: "bench".to_owned(),
            labels: [].into(),
            annotated_limits: None,
        };
        Ok(Self { node, sandbox, _pod: pod })
    }

    /// Selects the link by the label.
    pub fn create(&mut self, case: &Case) -> Result<()> {
        self.set_label(Some(label(case, MTU)))
    }

    /// Selects the same link with another MTU.
    pub fn change(&mut self, case: &Case) -> Result<()> {
        self.set_label(Some(label(case, OTHER_MTU)))
    }

    /// Removes the label; the link is disconnected when this returns.
    pub fn remove(&mut self) -> Result<()> {
        self.set_label(None)
    }

    fn set_label(&mut self, value: Option<String>) -> Result<()> {
        let labels = value.map(|value| (LABEL.to_owned(), value)).into_iter().collect();
        let sandbox = Sandbox { labels, ..self.sandbox.clone() };
        self.node.node().handle(Event::SandboxUpdated(sandbox))?;
        Ok(())
    }

    /// Fails unless the pod has the link with this MTU.
    pub fn check(&self, case: &Case, mtu: u32) -> Result<()> {
        let (state, unit) = (self.node.state(), Unit::Sandbox(self.sandbox.id.clone()));
        let problems = state.problems.get(&unit).into_iter().flatten();
        let problems: Vec<String> = problems.map(|(_, problem)| problem.to_string()).collect();
        let made = state.units.get(&unit).into_iter().flat_map(|made| &made.interfaces);
        let is_ready =
            made.clone().any(|(_, link)| link.ready && link.kind == case.name && link.mtu == Some(mtu));
        expect(is_ready && problems.is_empty(), || format!("no {} with MTU {mtu}: {problems:?}", case.name))
    }

    /// Deletes the links whose deletion was deferred, as a node does when it is idle.
    pub fn delete_deferred(&mut self) -> Result<()> {
        Ok(self.node.node().clean_up()?)
    }
}

fn label(case: &Case, mtu: u32) -> String {
    format!("{}-{mtu}", case.name)
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "---\n{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: {kind}, metadata: {{name: {name}, namespace: bench}}, \
         spec: {{{spec}}}}}\n"
    )
}
