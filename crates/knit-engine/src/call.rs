//! Calls: what someone asks for and waits for, and what is answered.
//!
//! A call is a dialect like any other: an attach puts attachments into desired, and differs from a written object only
//! in who waits for the report. What a call left in the state outlives it; the call itself does not.

mod device;
pub(crate) mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use knit_ipam::Time;
use knit_model::intent::{InterfaceIntent, Limits, RouteIntent};
use knit_model::link::{Attrs, Tap};
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::report::InterfaceReport;
use knit_model::sandbox::Instance;
use knit_model::{IfName, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

pub use device::Device;
pub use ranges::RangeWish;

use crate::state::ObjectKey;

/// The kind under which attachments appear among the askers of things.
pub const ATTACHMENT: &str = "Attachment";

/// What [`Asked::sticky`] is where pods of one name have one address after the other.
pub const STICKY_BY_POD: &str = "true";

/// The name of a call: it stands in logs, errors, the journal and provenance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

/// One interface of one sandbox, asked for by a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its name there.
    pub interface: IfName,
    /// The namespace of its network.
    pub tenant: String,
    /// Its network; empty when the caller describes a link of its own that is on none.
    pub network: String,
    /// The attachment as an asker.
    pub object: ObjectKey,
    /// Who asked, in which call.
    pub why: Provenance,
    /// What was asked for.
    pub asked: Asked,
    /// What is kept for whoever asks about it.
    #[serde(default)]
    pub notes: Notes,
    /// When it was asked for.
    pub since: Time,
    /// The number of the call that asked.
    #[serde(default)]
    pub ticket: u64,
    /// Whether it ever stood: only then was whoever asked told so. What never did is not made up for after a restart.
    #[serde(default)]
    pub stood: bool,
}

/// What an attach says about one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Fields of the link that are stated: MTU, MAC, queue.
    #[serde(default)]
    pub attrs: Attrs,
    /// Addresses that are asked for by value, each in a range of the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The name under which its addresses are kept: the next attachment of the namespace with this name gets them on this node,
    /// if they are free. [`STICKY_BY_POD`] is the pod's own name, empty is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sticky: String,
    /// Where in the network's ranges its addresses are looked for: one of each set, the ranges of a set in their order. A
    /// range of the network that no set speaks of gives one as it does otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<Vec<RangeWish>>,
    /// Routes through it beside the default; on a network, one without a router goes through the network's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteIntent>,
    /// Its sysctls by their last words, such as `ipv4/rp_filter`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// A link that the caller describes, in place of one on a network; it has addresses, routes and sysctls of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Box<InterfaceIntent>>,
    /// The device that `link`, a host-device, is to be the NIC of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Whether the default routes go through this interface.
    #[serde(default)]
    pub default_route: bool,
    /// Ports of the node that lead to ports of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
    /// How fast packets may come and go. A later attach may change it.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

/// What a call says that the interface itself does not show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// The pod's name servers, search domains and resolver options.
    #[serde(default, skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// A name under which a collection finds what the call made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Annotations of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What a pod's resolver is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// A port of the node that leads to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The pod's port.
    pub container_port: u16,
    /// The node's port.
    pub host_port: u16,
    /// Only on this address of the node; all when left out.
    pub host_ip: Option<IpAddr>,
}

/// A call that attaches interfaces to one sandbox: all of them, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The call.
    pub call: CallId,
    /// The language it came in.
    pub dialect: Dialect,
    /// Which sandbox.
    pub sandbox: Wished,
    /// Which interfaces, on which networks; an empty network is the cluster's.
    pub interfaces: Vec<(IfName, String, Asked)>,
    /// What to keep with each.
    pub notes: Notes,
    /// An interface that is attached already is an error, not the answer.
    pub fail_if_present: bool,
    /// A number that no other call of this node has: callers may use an id twice.
    pub ticket: u64,
    /// When the caller began, on the machine's clock since boot; 0 when it does not say.
    pub began: u64,
}

/// A sandbox as a call describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wished {
    /// Its id.
    pub id: String,
    /// Where its namespace is; empty when the sandbox is known already, and for a virtual machine.
    pub netns: String,
    /// It is a virtual machine, whose taps are made so.
    pub machine: Option<Tap>,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
}

/// A call that detaches interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detach {
    /// The call.
    pub call: CallId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Where the caller thinks its namespace is; empty when it does not say.
    pub netns: String,
    /// What of it.
    pub which: Which,
    /// Forget the sandbox with its last interface that a call attached.
    pub forget: bool,
    /// When the caller began, on the machine's clock since boot; 0 when it does not say.
    pub began: u64,
}

/// What of a sandbox is detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// These interfaces.
    These(BTreeSet<IfName>),
    /// All that calls attached; what objects ask for stays.
    Called,
    /// Everything: the sandbox is forgotten.
    All,
    /// Everything, and the namespace goes too if Knit made it.
    Sandbox,
}

/// A call that takes back everything of sandboxes that are not alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collect {
    /// The call.
    pub call: CallId,
    /// What is alive: an interface of a sandbox, or all of it.
    pub living: BTreeSet<(SandboxId, Option<IfName>)>,
    /// Only what calls of this group attached; empty is every group.
    pub group: String,
}

/// What was collected of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The pod's namespace and name.
    pub pod: (String, String),
    /// Its interfaces that went.
    pub interfaces: Vec<IfName>,
    /// The addresses that they had.
    pub addresses: Vec<IpAddr>,
}

/// A network namespace that Knit made for whoever has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Where it is.
    pub path: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
}

/// What became of a network namespace that Knit makes and removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainDone {
    /// It is there.
    Made,
    /// It is gone; which life of a sandbox it was, if it was there.
    Removed(Option<Instance>),
}

/// What was found where a call says that a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which life of a sandbox it is.
    pub instance: Instance,
    /// The process that holds it, or a number that stands for it.
    pub number: u32,
}

/// What a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Everything that was asked for is attached.
    Attached {
        /// The sandbox.
        sandbox: Box<Sandbox>,
        /// Its interfaces that the call named, each with what became of it.
        interfaces: Vec<(Attachment, InterfaceReport)>,
    },
    /// It is detached, or never was attached.
    Detached,
    /// This was not alive, and is gone.
    Collected(Vec<Collected>),
    /// Plugins made the interface.
    Chained,
    /// The namespace is there.
    Domain(Domain),
    /// The extension is registered.
    Registered {
        /// Its name.
        name: String,
        /// Its generation.
        generation: u64,
        /// The new token counts; otherwise the one from before.
        new_token: bool,
        /// Whether this call changed anything.
        changed: bool,
    },
    /// The extension is not registered any more.
    Removed {
        /// Whether it was.
        was_there: bool,
    },
    /// Nothing of what was asked for is there.
    Failed(Problem),
}

impl Attachment {
    /// The name under which an attachment appears among the askers of things.
    pub fn key(namespace: &str, sandbox: &SandboxId, interface: &IfName) -> ObjectKey {
        let name = format!("{sandbox}/{interface}");
        ObjectKey { kind: ATTACHMENT.to_owned(), namespace: namespace.to_owned(), name }
    }

    /// How fast it may be. Of a pod's first interface its annotations have the last word, since they may change while it
    /// runs.
    pub fn limits(&self, sandbox: &Sandbox) -> Limits {
        sandbox.annotated.filter(|_| self.asked.default_route).unwrap_or(self.asked.limits)
    }
}

impl Dns {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
