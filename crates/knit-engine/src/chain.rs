//! Networks that others' CNI plugins make: a chain of plugins is run for an interface, under Knit's journal.
//!
//! Knit does not look into what plugins make. It remembers before an ADD that there may be something to DEL, keeps the
//! result, and runs the DEL until it worked: after a crash, a detach, a collection, or when the sandbox is gone.

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{Asked, Notes};

/// A chain of plugins, as the node's administrator configured it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The configuration list, as JSON.
    pub conflist: String,
    /// Where plugins are looked for.
    pub plugin_dirs: Vec<String>,
    /// How long one plugin may take.
    pub timeout_seconds: u64,
}

/// Which interface of which sandbox.
pub type ChainKey = (SandboxId, IfName);

/// One interface that a chain makes, or made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chained {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The interface.
    pub interface: IfName,
    /// The network's name.
    pub network: String,
    /// The chain as it was when the interface was asked for: what made it takes it away.
    pub chain: Chain,
    /// Where the sandbox's namespace is.
    pub netns: String,
    /// The pod's namespace, name and uid.
    pub pod: (String, String, String),
    /// What was asked for.
    pub asked: Asked,
    /// What is kept for whoever asks about it.
    #[serde(default)]
    pub notes: Notes,
    /// Who asked, in which call.
    pub why: Provenance,
    /// When.
    pub since: Time,
    /// The number of the call that asked.
    pub ticket: u64,
    /// What the chain answered, as JSON; nothing until it did.
    pub result: Option<String>,
    /// It is to go.
    pub leaving: bool,
    /// Nobody knew the sandbox before: with this interface it is forgotten.
    #[serde(default)]
    pub introduced: bool,
}

/// What plugins are run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// To make the interface.
    Add,
    /// To take it away.
    Del,
}

impl Chained {
    /// Its key.
    pub fn key(&self) -> ChainKey {
        (self.sandbox.clone(), self.interface.clone())
    }

    /// Whether the chain made it, and it is not to go.
    pub fn stands(&self) -> bool {
        self.result.is_some() && !self.leaving
    }

    /// What there is to say about it.
    pub(crate) fn report(&self) -> InterfaceReport {
        let result = self.result();
        let interfaces = result.as_ref().and_then(|result| result.get("interfaces")?.as_array());
        // Of the interfaces that plugins tell, those of the pod have a sandbox.
        let is_it = |one: &&Value| {
            let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default();
            text("name") == self.interface.as_str() && !text("sandbox").is_empty()
        };
        let told = interfaces.into_iter().flatten().find(is_it);
        let list: Option<Value> = serde_json::from_str(&self.chain.conflist).ok();
        let kind = list.as_ref().and_then(|list| list.get("plugins")?.get(0)?.get("type")?.as_str());
        InterfaceReport {
            field: self.why.field.clone(),
            name: self.interface.clone(),
            kind: kind.unwrap_or_default().to_owned(),
            addresses: self.addresses(),
            mac: told.and_then(|told| told.get("mac")?.as_str()?.parse().ok()),
            mtu: told.and_then(|told| u32::try_from(told.get("mtu")?.as_u64()?).ok()),
            peer: None,
            master: None,
            vlans: None,
            vrf: None,
            shown: Vec::new(),
            limited: false,
            ready: self.stands(),
        }
    }

    fn result(&self) -> Option<Value> {
        self.result.as_deref().and_then(|text| serde_json::from_str(text).ok())
    }

    /// The addresses that the chain answered with.
    pub fn addresses(&self) -> Vec<IpNet> {
        let result = self.result();
        let ips = result.as_ref().and_then(|result| result.get("ips")?.as_array());
        let texts = ips.into_iter().flatten().filter_map(|ip| ip.get("address")?.as_str());
        texts.filter_map(|text| text.parse().ok()).collect()
    }
}
