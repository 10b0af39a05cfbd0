//! Knit as it runs on a node, and pods for it.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use knit_agent::{Standalone, sandboxes, standalone};
use knit_engine::{Event, Unit};
use knit_kernel::netlink::Protocol;
use knit_kernel::netns::bring_up_loopback;
use knit_kernel::{Netns, Socket};
use knit_model::sandbox::SandboxInstance;
use knit_model::{Sandbox, SandboxId};

/// Objects with the same result as the bare messages: an address, a default route, a port on a bridge.
const OBJECTS: &str = r#"
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: { name: bench, namespace: bench }
spec: { name: bench0, cidr: 10.88.0.0/16 }
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Veth
metadata: { name: bench, namespace: bench }
spec:
  interfaceName: net1
  master: bench0
  cidr: 10.88.0.0/16
  gateways: [10.88.0.1]
"#;

/// A node whose host is the calling thread's namespace.
pub struct Knit {
    node: Standalone,
    /// The number of sandboxes so far.
    count: u32,
}

/// A network namespace, and the sandbox instance that it represents.
pub struct Pod {
    netns: Netns,
    instance: SandboxInstance,
}

impl Pod {
    /// A new namespace with `lo` up.
    pub fn new() -> Result<Self> {
        let netns = Netns::unnamed()?;
        bring_up_loopback(&mut Socket::open_in(&netns, Protocol::Route)?)?;
        let instance = sandboxes::instance_of(&netns)?;
        Ok(Self { netns, instance })
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub fn into_netns(self) -> Netns {
        self.netns
    }
}

impl Knit {
    pub fn open(folder: &Path) -> Result<Self> {
        let mut node = Standalone::open(&folder.join("state"))?;
        let manifest = folder.join("objects.yaml");
        std::fs::write(&manifest, OBJECTS).context("cannot write the objects")?;
        node.apply(standalone::read_objects(&manifest)?, "bench")?;
        Ok(Self { node, count: 0 })
    }

    /// Adds objects of other namespaces, which select no pod of this node.
    pub fn add_foreign_objects(&mut self, folder: &Path, count: usize) -> Result<()> {
        let manifest = folder.join("foreign.yaml");
        let numbers: Vec<usize> = (0..count).collect();
        // A file has at most 1,024 objects.
        for part in numbers.chunks(1_000) {
            let objects = part.iter().map(|number| {
                let (namespace, second, third) = (number / 10, 100 + number / 250, number % 250);
                format!(
                    "---\napiVersion: podnetwork.opdev.io/v1alpha1\nkind: Veth\n\
                     metadata: {{ name: net{number}, namespace: tenant{namespace} }}\n\
                     spec: {{ interfaceName: net1, master: br{number}, cidr: 10.{second}.{third}.0/24 }}\n"
                )
            });
            std::fs::write(&manifest, objects.collect::<String>()).context("cannot write the objects")?;
            self.node.apply(standalone::read_objects(&manifest)?, "bench")?;
        }
        Ok(())
    }

    /// Adds a pod with an object that can never be satisfied: its uplink does not exist.
    pub fn add_unsatisfiable(&mut self, folder: &Path, pod: &Pod) -> Result<()> {
        self.edit_unsatisfiable(folder, 0)?;
        let mut sandbox = self.sandbox(pod)?;
        sandbox.labels = [("podnetwork.opdev.io/macvlan".to_owned(), "unsatisfiable".to_owned())].into();
        let unit = Unit::Sandbox(sandbox.id.clone());
        self.attach(sandbox)?;
        if !self.node.state().problems.contains_key(&unit) {
            bail!("{unit} has no problem");
        }
        Ok(())
    }

    /// Edits that object. It stays unsatisfiable.
    pub fn edit_unsatisfiable(&mut self, folder: &Path, round: usize) -> Result<()> {
        let manifest = folder.join("unsatisfiable.yaml");
        let mtu = 1_280 + round % 200;
        let object = format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Macvlan\n\
             metadata: {{ name: unsatisfiable, namespace: bench }}\n\
             spec: {{ interfaceName: net2, parent: missing, cidr: 10.89.0.0/24, mtu: {mtu} }}\n"
        );
        std::fs::write(&manifest, object).context("cannot write the object")?;
        self.node.apply(standalone::read_objects(&manifest)?, "bench")?;
        Ok(())
    }

    /// A new sandbox in a pod's namespace.
    pub fn sandbox(&mut self, pod: &Pod) -> Result<Sandbox> {
        self.count += 1;
        let name = format!("pod-{}", self.count);
        // The descriptor's path in /proc, which needs no mount.
        let netns = format!("/proc/{}/fd/{}", std::process::id(), pod.netns.as_fd().as_raw_fd());
        Ok(Sandbox {
            id: SandboxId(format!("bench/{name}")),
            instance: pod.instance.clone(),
            isolation: Default::default(),
            netns,
            number: self.count,
            uid: format!("{}-{}", pod.instance.boot, self.count),
            pod: name,
            namespace: "bench".to_owned(),
            labels: [("podnetwork.opdev.io/veth".to_owned(), "bench".to_owned())].into(),
            annotated_limits: None,
        })
    }

    /// Reports a sandbox to the node; its interface is verified when this returns.
    pub fn attach(&mut self, sandbox: Sandbox) -> Result<()> {
        self.node.node().handle(Event::SandboxUpdated(sandbox))?;
        Ok(())
    }

    /// Fails unless the sandbox has its interface.
    pub fn check(&self, id: &SandboxId) -> Result<()> {
        let (state, unit) = (self.node.state(), Unit::Sandbox(id.clone()));
        if let Some((_, problem)) = state.problems.get(&unit).and_then(|problems| problems.first()) {
            bail!("{unit}: {problem}");
        }
        let made = state.units.get(&unit).with_context(|| format!("{unit} has no interface"))?;
        if made.interfaces.iter().any(|(_, interface)| interface.ready && interface.addresses.len() == 1) {
            return Ok(());
        }
        bail!("{unit} has no interface with an address")
    }

    /// Reports that a sandbox is gone; its interface is disconnected and its address free when this returns.
    pub fn detach(&mut self, id: SandboxId) -> Result<()> {
        self.node.node().handle(Event::SandboxRemoved(id))?;
        Ok(())
    }

    /// Deletes the links whose deletion was deferred, as a node does when it is idle.
    pub fn delete_deferred(&mut self) -> Result<()> {
        Ok(self.node.node().clean_up()?)
    }
}
