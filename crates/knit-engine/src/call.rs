//! Calls: requests of callers that wait for a result.
//!
//! An attach adds attachments to the desired state, exactly as a written object adds intents; the only difference is
//! that a caller waits for the report. Attachments outlive the call that created them.

mod device;
pub(crate) mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use knit_ipam::Time;
use knit_model::intent::{BandwidthLimits, InterfaceIntent, RouteIntent};
use knit_model::link::{Attrs, Tap};
use knit_model::problem::Problem;
use knit_model::provenance::{Dialect, Provenance};
use knit_model::report::InterfaceReport;
use knit_model::sandbox::SandboxInstance;
use knit_model::{IfName, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

pub use device::RequestedDevice;
pub use ranges::RangeRequest;

use crate::pod_start::StartProgress;
use crate::state::ObjectKey;

/// The object kind under which attachments are listed as requesters.
pub const ATTACHMENT_KIND: &str = "Attachment";

/// The value of [`InterfaceRequest::sticky`] that keeps addresses by pod name.
pub const STICKY_BY_POD: &str = "true";

/// The id of a call, as it appears in logs, errors, the journal and provenance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

/// One interface of one sandbox that a call attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The interface's name.
    pub interface: IfName,
    /// The namespace of its network.
    pub tenant: String,
    /// Its network; empty for a link that the caller describes itself and that is on no network.
    pub network: String,
    /// The attachment as a requester.
    pub object: ObjectKey,
    /// The call that requested it.
    pub origin: Provenance,
    /// The request.
    pub request: InterfaceRequest,
    /// Metadata for queries.
    #[serde(default)]
    pub metadata: AttachmentMetadata,
    /// When it was requested.
    pub since: Time,
    /// The ticket of the call.
    #[serde(default)]
    pub ticket: u64,
    /// Whether it was ever ready, so that the caller was told. An attachment that never was is removed after a
    /// restart.
    #[serde(default)]
    pub was_ready: bool,
}

/// What an attach requests for one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceRequest {
    /// Explicit link attributes: MTU, MAC, queue length.
    #[serde(default)]
    pub attrs: Attrs,
    /// Fixed addresses, each within a range of the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The name under which its addresses are kept: the next attachment in the namespace with the same name gets them
    /// on this node if they are free. [`STICKY_BY_POD`] means the pod's name, empty means none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sticky: String,
    /// Address sets that narrow the network's ranges: one address from each set, its ranges tried in order. Ranges of
    /// the network that no set covers give an address as usual.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<Vec<RangeRequest>>,
    /// Additional routes through the interface; on a network, a route without a gateway uses the network's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteIntent>,
    /// Its sysctls by their relative names, such as `ipv4/rp_filter`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// A link that the caller describes itself instead of naming a network, with its addresses, routes and sysctls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Box<InterfaceIntent>>,
    /// The device whose NIC `link`, a host-device, is to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<RequestedDevice>,
    /// Whether the default routes use this interface.
    #[serde(default)]
    pub default_route: bool,
    /// Host ports that are mapped to ports of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
    /// Bandwidth limits. A later attach may change them.
    #[serde(default, skip_serializing_if = "BandwidthLimits::is_empty")]
    pub limits: BandwidthLimits,
}

/// Data of a call that is not part of the interface itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentMetadata {
    /// The pod's DNS configuration.
    #[serde(default, skip_serializing_if = "DnsConfig::is_empty")]
    pub dns: DnsConfig,
    /// A group name by which garbage collection selects attachments.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Annotations of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A pod's DNS resolver configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// A host port that is mapped to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The pod's port.
    pub container_port: u16,
    /// The node's port.
    pub host_port: u16,
    /// Restricts the mapping to this address of the node; all addresses if absent.
    pub host_ip: Option<IpAddr>,
}

/// A request to attach interfaces to one sandbox: all of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The call.
    pub call: CallId,
    /// The API through which it came in.
    pub dialect: Dialect,
    /// The sandbox.
    pub sandbox: SandboxRequest,
    /// The interfaces with their networks; an empty network is the cluster network.
    pub interfaces: Vec<(IfName, String, InterfaceRequest)>,
    /// Metadata of each attachment.
    pub metadata: AttachmentMetadata,
    /// Fail if an interface is attached already, instead of returning it.
    pub fail_if_present: bool,
    /// A number that is unique on this node: callers may reuse call ids.
    pub ticket: u64,
    /// When the caller started, in time since boot; 0 if unknown.
    pub started_at: u64,
}

/// The sandbox of an attach, as the caller describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRequest {
    /// Its id.
    pub id: String,
    /// The path of its network namespace; empty for a known sandbox and for a virtual machine.
    pub netns: String,
    /// The tap parameters, if it is a virtual machine.
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

/// A request to detach interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachRequest {
    /// The call.
    pub call: CallId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The path at which the caller expects its network namespace; empty if unknown.
    pub netns: String,
    /// What to detach.
    pub scope: DetachScope,
    /// Forget the sandbox together with its last attachment.
    pub forget_sandbox: bool,
    /// When the caller started, in time since boot; 0 if unknown.
    pub started_at: u64,
}

/// What a detach removes from a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DetachScope {
    /// These interfaces.
    Interfaces(BTreeSet<IfName>),
    /// All attachments; interfaces requested by objects stay.
    Attached,
    /// Everything, and forget the sandbox.
    All,
    /// Everything, including the network namespace if Knit created it.
    Sandbox,
}

/// A request to garbage-collect everything of sandboxes that are not alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcRequest {
    /// The call.
    pub call: CallId,
    /// What is alive: an interface of a sandbox, or the whole sandbox.
    pub alive: BTreeSet<(SandboxId, Option<IfName>)>,
    /// Restricts the collection to attachments of this group; empty means all groups.
    pub group: String,
}

/// What was garbage-collected of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcResult {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The pod's namespace and name.
    pub pod: (String, String),
    /// The removed interfaces.
    pub interfaces: Vec<IfName>,
    /// Their addresses.
    pub addresses: Vec<IpAddr>,
}

/// A network namespace that Knit created for a pod that had none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedNetns {
    /// Its path.
    pub path: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
}

/// The outcome of creating or removing a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetnsOutcome {
    /// It exists.
    Created,
    /// It is gone; the sandbox instance that it was, if it existed.
    Removed(Option<SandboxInstance>),
}

/// What is known of the network namespace of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsInfo {
    /// The sandbox instance.
    pub instance: SandboxInstance,
    /// The process that holds it, or a number derived from the path.
    pub number: u32,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// All requested interfaces are attached.
    Attached {
        /// The sandbox.
        sandbox: Box<Sandbox>,
        /// The interfaces of the call with their reports.
        interfaces: Vec<(Attachment, InterfaceReport)>,
    },
    /// The interfaces are detached, or never were attached.
    Detached,
    /// What was garbage-collected.
    Collected(Vec<GcResult>),
    /// CNI plugins attached the interface.
    ChainAttached,
    /// The pod's networks are ready, or waiting longer does not help.
    PodStarted(StartProgress),
    /// The network namespace exists.
    Netns(ManagedNetns),
    /// The extension is registered.
    Registered {
        /// Its name.
        name: String,
        /// Its generation.
        generation: u64,
        /// Whether the new token applies, rather than the previous one.
        new_token: bool,
        /// Whether this call changed anything.
        changed: bool,
    },
    /// The extension was removed.
    Removed {
        /// Whether it was registered.
        was_there: bool,
    },
    /// The call failed and was rolled back.
    Failed(Problem),
}

impl Attachment {
    /// The key under which an attachment is listed as a requester.
    pub fn key(namespace: &str, sandbox: &SandboxId, interface: &IfName) -> ObjectKey {
        let name = format!("{sandbox}/{interface}");
        ObjectKey { kind: ATTACHMENT_KIND.to_owned(), namespace: namespace.to_owned(), name }
    }

    /// The effective bandwidth limits. On a pod's primary interface the pod's annotations take precedence, since they
    /// may change while it runs.
    pub fn limits(&self, sandbox: &Sandbox) -> BandwidthLimits {
        sandbox.annotated_limits.filter(|_| self.request.default_route).unwrap_or(self.request.limits)
    }
}

impl DnsConfig {
    /// Whether nothing is configured.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
