//! Interfaces and network namespaces that calls requested.

use std::collections::{BTreeMap, VecDeque};

use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::{Attachment, ManagedNetns};
use crate::plugin_chain::{ChainKey, ChainedInterface, PluginChain};
use crate::state::ObjectKey;

/// How many deleted sandboxes are remembered to reject late calls for them.
const MAX_DELETED: usize = 256;

/// What calls requested, and which sandboxes they deleted recently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    attachments: BTreeMap<SandboxId, BTreeMap<IfName, Attachment>>,
    managed_netns: BTreeMap<String, ManagedNetns>,
    deleted: VecDeque<SandboxInstance>,
    /// Networks that CNI plugin chains provide, by name.
    #[serde(default)]
    chains: BTreeMap<String, PluginChain>,
    /// Interfaces of CNI plugin chains.
    #[serde(default)]
    chained: BTreeMap<SandboxId, BTreeMap<IfName, ChainedInterface>>,
}

impl Attachments {
    /// The attachments of a sandbox.
    pub fn of(&self, sandbox: &SandboxId) -> impl Iterator<Item = &Attachment> {
        self.attachments.get(sandbox).into_iter().flat_map(BTreeMap::values)
    }

    /// One attachment.
    pub fn get(&self, sandbox: &SandboxId, interface: &IfName) -> Option<&Attachment> {
        self.attachments.get(sandbox)?.get(interface)
    }

    /// All attachments.
    pub fn all(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values().flat_map(BTreeMap::values)
    }

    /// Sandboxes that have attachments.
    pub fn sandboxes(&self) -> impl Iterator<Item = &SandboxId> {
        self.attachments.keys()
    }

    /// The network namespaces that Knit created.
    pub fn managed_netns(&self) -> impl Iterator<Item = &ManagedNetns> {
        self.managed_netns.values()
    }

    /// The attachment with this requester key.
    pub fn by_key(&self, key: &ObjectKey) -> Option<&Attachment> {
        let (sandbox, interface) = key.name.rsplit_once('/')?;
        self.get(&SandboxId(sandbox.to_owned()), &interface.parse().ok()?)
    }

    /// Whether a call deleted this sandbox instance.
    pub(crate) fn is_deleted(&self, instance: &SandboxInstance) -> bool {
        self.deleted.contains(instance)
    }

    /// The networks that CNI plugin chains provide.
    pub fn chains(&self) -> &BTreeMap<String, PluginChain> {
        &self.chains
    }

    /// All interfaces of CNI plugin chains.
    pub fn all_chained(&self) -> impl Iterator<Item = &ChainedInterface> {
        self.chained.values().flat_map(BTreeMap::values)
    }

    /// One interface of a CNI plugin chain.
    pub fn chained(&self, (sandbox, interface): &ChainKey) -> Option<&ChainedInterface> {
        self.chained.get(sandbox)?.get(interface)
    }

    /// The ticket of the attach that created an interface; `None` once it is being removed.
    pub(crate) fn ticket(&self, sandbox: &SandboxId, interface: &IfName) -> Option<u64> {
        let own = self.get(sandbox, interface).map(|entry| entry.ticket);
        own.or_else(|| {
            let chained = self.chained.get(sandbox)?.get(interface)?;
            (!chained.removing).then_some(chained.ticket)
        })
    }

    pub(crate) fn set_chains(&mut self, chains: BTreeMap<String, PluginChain>) {
        self.chains = chains;
    }

    pub(crate) fn add_chain(&mut self, chained: ChainedInterface) {
        let of_sandbox = self.chained.entry(chained.sandbox.clone()).or_default();
        of_sandbox.insert(chained.interface.clone(), chained);
    }

    /// Stores the result of the ADD.
    pub(crate) fn chain_added(&mut self, sandbox: &SandboxId, interface: &IfName, result: &str) {
        if let Some(entry) = self.chained.get_mut(sandbox).and_then(|all| all.get_mut(interface)) {
            entry.result = Some(result.to_owned());
        }
    }

    pub(crate) fn start_chain_removal(&mut self, sandbox: &SandboxId, interface: &IfName) {
        if let Some(entry) = self.chained.get_mut(sandbox).and_then(|all| all.get_mut(interface)) {
            entry.removing = true;
        }
    }

    pub(crate) fn remove_chain(&mut self, sandbox: &SandboxId, interface: &IfName) {
        if let Some(all) = self.chained.get_mut(sandbox) {
            all.remove(interface);
            if all.is_empty() {
                self.chained.remove(sandbox);
            }
        }
    }

    pub(crate) fn attach(&mut self, attachment: Attachment) {
        let of_sandbox = self.attachments.entry(attachment.sandbox.clone()).or_default();
        of_sandbox.insert(attachment.interface.clone(), attachment);
    }

    /// Marks an attachment as ready.
    pub(crate) fn set_ready(&mut self, sandbox: &SandboxId, interface: &IfName) {
        let entry = self.attachments.get_mut(sandbox).and_then(|of_sandbox| of_sandbox.get_mut(interface));
        if let Some(entry) = entry {
            entry.was_ready = true;
        }
    }

    pub(crate) fn detach(&mut self, sandbox: &SandboxId, interface: &IfName) {
        if let Some(of_sandbox) = self.attachments.get_mut(sandbox) {
            of_sandbox.remove(interface);
            if of_sandbox.is_empty() {
                self.attachments.remove(sandbox);
            }
        }
    }

    pub(crate) fn forget(&mut self, sandbox: &SandboxId) {
        self.attachments.remove(sandbox);
        // The plugins still have to run DEL.
        for entry in self.chained.get_mut(sandbox).into_iter().flat_map(BTreeMap::values_mut) {
            entry.removing = true;
        }
    }

    pub(crate) fn add_netns(&mut self, netns: ManagedNetns) {
        self.managed_netns.insert(netns.path.clone(), netns);
    }

    pub(crate) fn remove_netns(&mut self, path: &str, instance: Option<&SandboxInstance>) {
        self.managed_netns.remove(path);
        if let Some(instance) = instance {
            self.deleted.push_back(instance.clone());
            let surplus = self.deleted.len().saturating_sub(MAX_DELETED);
            self.deleted.drain(..surplus);
        }
    }
}
