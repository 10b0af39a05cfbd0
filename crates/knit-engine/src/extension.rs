//! Extensions: someone else's programs that take part in every attach.
//!
//! An extension is registered under a name. From then on every attach that its selector means calls it, in order, before
//! and after the kernel is changed, and tells it afterwards when interfaces have gone. What it did for a pod is a
//! [`Receipt`]; what it has still to be told is [`Owed`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::{IfName, Sandbox};
use serde::{Deserialize, Serialize};

use crate::call::CallId;

/// When an extension is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before anything is changed for an attach.
    BeforeAttach,
    /// When the interfaces stand, before the attach is answered.
    AfterAttach,
    /// When interfaces are gone, or an attach was taken back. Nobody waits for it.
    AfterDetach,
}

/// What the failure of an extension means for an attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailPolicy {
    /// The attach fails and is taken back.
    #[default]
    Fail,
    /// The attach goes on; the receipt says so.
    Ignore,
}

/// The service that an extension speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaks {
    /// `knit.v1.Extension`.
    #[default]
    Knit,
    /// `kni.KNIX`, which knows only what comes after an attach.
    Knix,
}

/// What an extension says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSpec {
    /// Its name. Who registers it again makes a new generation of it.
    pub name: String,
    /// The smallest is called first; equals by name.
    pub order: i32,
    /// The unix socket that it listens on.
    pub socket: String,
    /// When it is called.
    pub phases: BTreeSet<Phase>,
    /// Only pods of these namespaces; of all when empty.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    /// Only pods with all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What its failure means.
    #[serde(default)]
    pub fail: FailPolicy,
    /// How many milliseconds a call may take.
    pub deadline: u64,
    /// The service that it speaks.
    #[serde(default)]
    pub speaks: Speaks,
}

/// An extension that is registered. It stays so until it, or an admin, says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// What it said of itself.
    pub spec: ExtensionSpec,
    /// Which registration: every change gets a higher number, also after a removal.
    pub generation: u64,
    /// The digest of the token that a change or a removal has to show.
    pub digest: String,
    /// When.
    pub since: Time,
}

/// One call of an extension for one pod, from the moment before it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The id of the call.
    pub id: String,
    /// The extension.
    pub extension: String,
    /// Its generation.
    pub generation: u64,
    /// When it was called.
    pub phase: Phase,
    /// The interfaces that it was called for, each with the number of the attach that brought it.
    pub interfaces: Vec<(IfName, u64)>,
    /// The attach that called it.
    pub attach: CallId,
    /// The attach's number.
    pub ticket: u64,
    /// When it was called, and then when it answered.
    pub at: Time,
    /// What came of it; nothing while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// An earlier try may have done something.
    #[serde(default)]
    pub touched: bool,
}

/// What came of a call of an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It did its part, and says this to those after it.
    Done(BTreeMap<String, String>),
    /// It failed, and the attach went on without it.
    Ignored(NotDone),
    /// It failed, and so did the attach.
    Failed(NotDone),
}

/// Why an extension did not do its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotDone {
    /// In words.
    pub why: String,
    /// Whether the call may have reached it. If not, it has nothing to undo.
    pub reached: bool,
}

/// What an extension has still to be told: interfaces that it took part in are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// The id of the call, the same each time it is tried.
    pub id: String,
    /// The extension.
    pub extension: String,
    /// The pod, as it was.
    pub sandbox: Sandbox,
    /// What is gone.
    pub interfaces: Vec<Went>,
    /// The extension's own receipts for it.
    pub receipts: Vec<Receipt>,
    /// Since when.
    pub since: Time,
}

/// An interface that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Went {
    /// Its name.
    pub name: IfName,
    /// The addresses that it had, if it ever stood.
    pub addresses: Vec<IpNet>,
}

/// A call of an extension that the host is asked to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Its id.
    pub id: String,
    /// Whom to call.
    pub to: ExtensionSpec,
    /// Its generation.
    pub generation: u64,
    /// When.
    pub phase: Phase,
    /// The attach that it belongs to.
    pub attach: CallId,
    /// The pod.
    pub sandbox: Sandbox,
    /// The interfaces that it is about: those to come, those that stand, or those that are gone.
    pub interfaces: Vec<Went>,
    /// What extensions before it returned for the same attach; after a detach, what it returned itself.
    pub earlier: Vec<Receipt>,
}

/// What an extension answered, or why it did not.
pub type Told = Result<BTreeMap<String, String>, NotDone>;

impl ExtensionSpec {
    /// Whether it takes part in attaches of this pod.
    pub fn means(&self, sandbox: &Sandbox) -> bool {
        (self.namespaces.is_empty() || self.namespaces.contains(&sandbox.namespace))
            && self.labels.iter().all(|(key, value)| sandbox.labels.get(key) == Some(value))
    }
}

impl Receipt {
    /// Whether the extension did its part.
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Done(_)))
    }

    /// What the extension returned.
    pub fn data(&self) -> Option<&BTreeMap<String, String>> {
        if let Some(Outcome::Done(data)) = &self.outcome { Some(data) } else { None }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::BeforeAttach => "before-attach",
            Self::AfterAttach => "after-attach",
            Self::AfterDetach => "after-detach",
        })
    }
}
