//! What stands because a call asked for it.

use std::collections::{BTreeMap, VecDeque};

use knit_model::sandbox::Instance;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};

use crate::call::{Attachment, Domain};
use crate::chain::{Chain, ChainKey, Chained};
use crate::state::ObjectKey;

/// So many deleted sandboxes are remembered, to refuse what comes late for them.
const MOST_DELETED: usize = 256;

/// What stands because a call asked for it, and what was deleted a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    attachments: BTreeMap<SandboxId, BTreeMap<IfName, Attachment>>,
    domains: BTreeMap<String, Domain>,
    deleted: VecDeque<Instance>,
    /// Networks that chains of plugins make, by name.
    #[serde(default)]
    chains: BTreeMap<String, Chain>,
    /// Interfaces that chains make or made.
    #[serde(default)]
    chained: BTreeMap<SandboxId, BTreeMap<IfName, Chained>>,
}

impl Called {
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

    /// The namespaces that Knit made.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// The attachment that stands behind an asker.
    pub fn by_key(&self, key: &ObjectKey) -> Option<&Attachment> {
        let (sandbox, interface) = key.name.rsplit_once('/')?;
        self.get(&SandboxId(sandbox.to_owned()), &interface.parse().ok()?)
    }

    /// Whether this life of a sandbox was deleted by a call.
    pub(crate) fn is_deleted(&self, instance: &Instance) -> bool {
        self.deleted.contains(instance)
    }

    /// The networks that chains of plugins make.
    pub fn chains(&self) -> &BTreeMap<String, Chain> {
        &self.chains
    }

    /// Everything that chains make or made.
    pub fn all_chained(&self) -> impl Iterator<Item = &Chained> {
        self.chained.values().flat_map(BTreeMap::values)
    }

    /// One interface that a chain makes or made.
    pub fn chained(&self, (sandbox, interface): &ChainKey) -> Option<&Chained> {
        self.chained.get(sandbox)?.get(interface)
    }

    /// The number of the attach that brought an interface, whoever made it; nothing once it is to go.
    pub(crate) fn ticket(&self, sandbox: &SandboxId, interface: &IfName) -> Option<u64> {
        let own = self.get(sandbox, interface).map(|there| there.ticket);
        own.or_else(|| {
            let chained = self.chained.get(sandbox)?.get(interface)?;
            (!chained.leaving).then_some(chained.ticket)
        })
    }

    pub(crate) fn set_chains(&mut self, chains: BTreeMap<String, Chain>) {
        self.chains = chains;
    }

    pub(crate) fn begin_chain(&mut self, chained: Chained) {
        let of_sandbox = self.chained.entry(chained.sandbox.clone()).or_default();
        of_sandbox.insert(chained.interface.clone(), chained);
    }

    /// The chain answered this.
    pub(crate) fn chain_stands(&mut self, sandbox: &SandboxId, interface: &IfName, result: &str) {
        if let Some(there) = self.chained.get_mut(sandbox).and_then(|all| all.get_mut(interface)) {
            there.result = Some(result.to_owned());
        }
    }

    pub(crate) fn chain_leaves(&mut self, sandbox: &SandboxId, interface: &IfName) {
        if let Some(there) = self.chained.get_mut(sandbox).and_then(|all| all.get_mut(interface)) {
            there.leaving = true;
        }
    }

    pub(crate) fn end_chain(&mut self, sandbox: &SandboxId, interface: &IfName) {
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

    /// This attachment stands.
    pub(crate) fn stands(&mut self, sandbox: &SandboxId, interface: &IfName) {
        let there = self.attachments.get_mut(sandbox).and_then(|of_sandbox| of_sandbox.get_mut(interface));
        if let Some(there) = there {
            there.stood = true;
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
        // Plugins are still to be told.
        for there in self.chained.get_mut(sandbox).into_iter().flat_map(BTreeMap::values_mut) {
            there.leaving = true;
        }
    }

    pub(crate) fn add_domain(&mut self, domain: Domain) {
        self.domains.insert(domain.path.clone(), domain);
    }

    pub(crate) fn remove_domain(&mut self, path: &str, instance: Option<&Instance>) {
        self.domains.remove(path);
        if let Some(instance) = instance {
            self.deleted.push_back(instance.clone());
            let surplus = self.deleted.len().saturating_sub(MOST_DELETED);
            self.deleted.drain(..surplus);
        }
    }
}
