//! Networks of CNI plugins: Knit runs a plugin chain for an interface and journals it.
//!
//! Knit does not manage what plugins create. It records before an ADD that a DEL may be necessary, keeps the result,
//! and repeats the DEL until it succeeds: after a crash, a detach, garbage collection, or when the sandbox is gone.

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::provenance::Provenance;
use knit_model::report::InterfaceReport;
use knit_model::{IfName, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{AttachmentMetadata, InterfaceRequest};

/// A plugin chain, as configured by the node's administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginChain {
    /// The configuration list, as JSON.
    pub conflist: String,
    /// The directories of plugin binaries.
    pub plugin_dirs: Vec<String>,
    /// The timeout of one plugin.
    pub timeout_seconds: u64,
}

/// An interface of a sandbox.
pub type ChainKey = (SandboxId, IfName);

/// One interface of a plugin chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainedInterface {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The interface.
    pub interface: IfName,
    /// The network's name.
    pub network: String,
    /// The chain at the time of the request: the same chain runs ADD and DEL.
    pub chain: PluginChain,
    /// The path of the sandbox's network namespace.
    pub netns: String,
    /// The pod's namespace, name and uid.
    pub pod: (String, String, String),
    /// The request.
    pub request: InterfaceRequest,
    /// Metadata for queries.
    #[serde(default)]
    pub metadata: AttachmentMetadata,
    /// The call or object that requested it.
    pub origin: Provenance,
    /// When it was requested.
    pub since: Time,
    /// The ticket of the call.
    pub ticket: u64,
    /// The CNI result as JSON; `None` until ADD succeeded.
    pub result: Option<String>,
    /// Whether a DEL is to run.
    pub removing: bool,
    /// Whether this attach created the sandbox: it is forgotten together with the interface.
    #[serde(default)]
    pub created_sandbox: bool,
}

/// A CNI command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CniCommand {
    /// Create the interface.
    Add,
    /// Remove the interface.
    Del,
}

impl ChainedInterface {
    /// Its key.
    pub fn key(&self) -> ChainKey {
        (self.sandbox.clone(), self.interface.clone())
    }

    /// Whether ADD succeeded and no DEL is to run.
    pub fn is_ready(&self) -> bool {
        self.result.is_some() && !self.removing
    }

    /// Its report.
    pub(crate) fn report(&self) -> InterfaceReport {
        let result = self.result();
        let interfaces = result.as_ref().and_then(|result| result.get("interfaces")?.as_array());
        // In a CNI result, interfaces of the pod have a sandbox.
        let is_it = |one: &&Value| {
            let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default();
            text("name") == self.interface.as_str() && !text("sandbox").is_empty()
        };
        let reported = interfaces.into_iter().flatten().find(is_it);
        let list: Option<Value> = serde_json::from_str(&self.chain.conflist).ok();
        let kind = list.as_ref().and_then(|list| list.get("plugins")?.get(0)?.get("type")?.as_str());
        InterfaceReport {
            field: self.origin.field.clone(),
            kind: kind.unwrap_or_default().to_owned(),
            addresses: self.addresses(),
            mac: reported.and_then(|reported| reported.get("mac")?.as_str()?.parse().ok()),
            mtu: reported.and_then(|reported| u32::try_from(reported.get("mtu")?.as_u64()?).ok()),
            ready: self.is_ready(),
            ..InterfaceReport::named(self.interface.clone())
        }
    }

    fn result(&self) -> Option<Value> {
        self.result.as_deref().and_then(|text| serde_json::from_str(text).ok())
    }

    /// The addresses in the CNI result.
    pub fn addresses(&self) -> Vec<IpNet> {
        let result = self.result();
        let ips = result.as_ref().and_then(|result| result.get("ips")?.as_array());
        let texts = ips.into_iter().flatten().filter_map(|ip| ip.get("address")?.as_str());
        texts.filter_map(|text| text.parse().ok()).collect()
    }
}
