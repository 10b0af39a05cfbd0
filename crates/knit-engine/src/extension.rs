//! Extensions: external programs that take part in every attach.
//!
//! Every attach that matches the selector of a registered extension invokes it, in order, before and after the kernel
//! is changed, and notifies it when interfaces are removed. A [`Receipt`] records each invocation for a pod; a
//! [`PendingNotification`] is a notification that was not acknowledged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use knit_ipam::Time;
use knit_model::report::InterfaceReport;
use knit_model::{IfName, Sandbox};
use serde::{Deserialize, Serialize};

use crate::call::CallId;

/// When an extension is invoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookPhase {
    /// Before anything is changed for an attach.
    BeforeAttach,
    /// When the interfaces are ready, before the attach is completed.
    AfterAttach,
    /// After interfaces were removed or an attach was rolled back. Asynchronous.
    AfterDetach,
}

/// What the failure of an extension means for an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailPolicy {
    /// The attach fails and is rolled back.
    #[default]
    Fail,
    /// The attach continues; the receipt records the failure.
    Ignore,
}

/// The gRPC service of an extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtensionProtocol {
    /// `knit.v1.Extension`.
    #[default]
    Knit,
    /// `kni.KNIX`, which is invoked only after an attach.
    Knix,
}

/// The registration of an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSpec {
    /// Its name. Registering it again creates a new generation.
    pub name: String,
    /// Extensions are invoked in ascending order, then by name.
    pub order: i32,
    /// The unix socket that it listens on.
    pub socket: String,
    /// The phases in which it is invoked.
    pub phases: BTreeSet<HookPhase>,
    /// Restricts it to pods of these namespaces; empty means all.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    /// Restricts it to pods with all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The failure policy.
    #[serde(default)]
    pub fail: FailPolicy,
    /// The timeout of an invocation in milliseconds.
    pub deadline: u64,
    /// The gRPC service.
    #[serde(default)]
    pub protocol: ExtensionProtocol,
}

/// A registered extension. It stays registered until it or an admin removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredExtension {
    /// The registration.
    pub spec: ExtensionSpec,
    /// The generation: every change gets a higher number, also after a removal.
    pub generation: u64,
    /// The digest of the token that authorises changes and the removal.
    pub digest: String,
    /// When.
    pub since: Time,
}

/// One invocation of an extension for one pod. Recorded before the invocation starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The id of the invocation.
    pub id: String,
    /// The extension.
    pub extension: String,
    /// Its generation.
    pub generation: u64,
    /// The phase.
    pub phase: HookPhase,
    /// The interfaces, each with the ticket of the attach that created it.
    pub interfaces: Vec<(IfName, u64)>,
    /// The attach.
    pub attach: CallId,
    /// The attach's ticket.
    pub ticket: u64,
    /// When it was invoked, then when it returned.
    pub at: Time,
    /// The outcome; `None` while it is in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<InvocationOutcome>,
    /// Whether an earlier attempt may have had an effect.
    #[serde(default)]
    pub touched: bool,
}

/// The outcome of an invocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InvocationOutcome {
    /// It succeeded and returned this data for later extensions.
    Done(BTreeMap<String, String>),
    /// It failed, and the failure was ignored.
    Ignored(InvocationError),
    /// It failed, and so did the attach.
    Failed(InvocationError),
}

/// Why an invocation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvocationError {
    /// The error message.
    pub message: String,
    /// Whether the request may have reached the extension. If not, there is nothing to undo.
    pub reached: bool,
}

/// A notification that interfaces were removed, not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingNotification {
    /// The id of the invocation, the same on every attempt.
    pub id: String,
    /// The extension.
    pub extension: String,
    /// The pod, as it was.
    pub sandbox: Sandbox,
    /// The last reports of the removed interfaces.
    pub interfaces: Vec<InterfaceReport>,
    /// The extension's receipts for them.
    pub receipts: Vec<Receipt>,
    /// When the interfaces were removed.
    pub since: Time,
}

/// An invocation for the host to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Its id.
    pub id: String,
    /// The extension to invoke.
    pub to: ExtensionSpec,
    /// Its generation.
    pub generation: u64,
    /// The phase.
    pub phase: HookPhase,
    /// The attach that it belongs to.
    pub attach: CallId,
    /// The pod.
    pub sandbox: Sandbox,
    /// The interfaces: to be attached, attached, or removed, depending on the phase.
    pub interfaces: Vec<InterfaceReport>,
    /// Receipts of earlier extensions for the same attach; after a detach, the extension's own receipts.
    pub earlier: Vec<Receipt>,
}

/// The data that an extension returned, or the error.
pub type InvocationResult = Result<BTreeMap<String, String>, InvocationError>;

impl ExtensionSpec {
    /// Whether it takes part in attaches of this pod.
    pub fn selects(&self, sandbox: &Sandbox) -> bool {
        (self.namespaces.is_empty() || self.namespaces.contains(&sandbox.namespace))
            && self.labels.iter().all(|(key, value)| sandbox.labels.get(key) == Some(value))
    }
}

impl Receipt {
    /// Whether the invocation succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Some(InvocationOutcome::Done(_)))
    }

    /// What the extension returned.
    pub fn data(&self) -> Option<&BTreeMap<String, String>> {
        if let Some(InvocationOutcome::Done(data)) = &self.outcome { Some(data) } else { None }
    }
}

impl fmt::Display for HookPhase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::BeforeAttach => "before-attach",
            Self::AfterAttach => "after-attach",
            Self::AfterDetach => "after-detach",
        })
    }
}
