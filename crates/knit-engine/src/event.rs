//! The engine's inputs ([`Event`]), outputs ([`Effect`]) and journal records ([`Record`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knit_ipam::Time;
use knit_model::filter::{ElementKey, TableKey};
use knit_model::intent::PeerNode;
use knit_model::link::OwnerId;
use knit_model::problem::{Problem, Reason};
use knit_model::{IfName, KeyRef, NetState, Plan, PublicKey, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::blocks::{self, Block};
use crate::call::{
    AttachRequest, Attachment, CallId, CallResult, DetachRequest, GcRequest, ManagedNetns, NetnsInfo,
    NetnsOutcome,
};
use crate::extension::{Invocation, InvocationOutcome, InvocationResult, Receipt, RegisteredExtension};
use crate::extensions::{ExtensionRegistration, ExtensionRemoval, ReceiptsEnded};
use crate::namespaces::{NamespaceEvent, Namespaces};
use crate::nodes::NodeEvent;
use crate::objects::ObjectEvent;
use crate::overlay::{TunnelConfig, Underlay};
use crate::packet_filter::{FastPathChange, Rerouted};
use crate::plugin_chain::{ChainKey, ChainedInterface, CniCommand, PluginChain};
use crate::pod_annotations::{DefinitionEvent, NetworksRequest, TranslatedNetworks};
use crate::pod_start::PodStart;
use crate::pods::PodEvent;
use crate::policies::PolicyEvent;
use crate::quota::{ClaimRequest, QuotaEvent};
use crate::services::{ServiceEvent, StaleConnections};
use crate::sockets::{ListenerResult, SocketListener};
use crate::state::{BridgeKey, NewLease, ObjectKey, OriginalValueKey, Settings, StoredObject, UnitState};

/// The scope of one transaction: a change of a unit is applied completely or rolled back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A bridge on the node. Sorts before sandboxes because they depend on it.
    Bridge(BridgeKey),
    /// Everything that belongs to one sandbox.
    Sandbox(SandboxId),
    /// Routes, tunnels and rules to the pods of other nodes. They depend on the bridge of the cluster network; no
    /// sandbox depends on them.
    NodeRoutes,
    /// The tables of the packet filter on the host, and elements that no single pod owns.
    PacketFilter,
    /// The elements of Services in the packet filter. Only its problems are recorded: the API server has the Services, and after a
    /// start everything is compared.
    Services,
    /// Chains, sets and elements of policies in the packet filter that no single pod owns. Only its problems are recorded, for the
    /// same reasons.
    Policies,
}

impl Unit {
    /// Whether its changes are recorded. Those of the others are one transaction of the kernel each, and after a start everything
    /// is compared.
    pub(crate) fn is_recorded(&self) -> bool {
        !matches!(self, Self::Services | Self::Policies)
    }
}

/// An input of the engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// An object was created or updated.
    ObjectApplied(StoredObject),
    /// An object was deleted.
    ObjectDeleted(ObjectKey),
    /// A list or watch result of an API server.
    Objects(Box<ObjectEvent>),
    /// The result of [`Effect::TranslateObjects`].
    ObjectsTranslated {
        /// The namespace.
        namespace: String,
        /// Its objects. Those that cannot be translated are left out.
        objects: Vec<StoredObject>,
    },
    /// A Secret with keys of interfaces changed.
    SecretChanged {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The runtime started a sandbox. A known one keeps its labels, which may have been changed since.
    SandboxStarted(Sandbox),
    /// A sandbox appeared, or its labels changed.
    SandboxUpdated(Sandbox),
    /// A sandbox is gone.
    SandboxRemoved(SandboxId),
    /// Pods of this node changed, at the API server or in the container runtime.
    Pods(PodEvent),
    /// The runtime starts a pod and waits until its networks are ready.
    PodStarting(Box<PodStart>),
    /// The first container of a sandbox is about to start: everything ready by now was attached before it.
    ContainersStarting(SandboxId),
    /// NetworkAttachmentDefinitions changed.
    Definitions(DefinitionEvent),
    /// The result of [`Effect::TranslateNetworks`].
    NetworksTranslated(Box<TranslatedNetworks>),
    /// The kernel state requested for a unit.
    Observed {
        /// The unit.
        unit: Unit,
        /// The observed state.
        observed: NetState,
        /// The requested keys that exist.
        #[serde(with = "knit_model::serde_pairs")]
        keys: PublicKeys,
    },
    /// A plan was applied or rolled back.
    PlanApplied(PlanResult),
    /// A change of cluster-wide quotas and their claims.
    Quotas(QuotaEvent),
    /// A change of the blocks of shared ranges.
    Blocks(blocks::BlockEvent),
    /// A change of the options that admins set on namespaces.
    Namespaces(NamespaceEvent),
    /// A change of the cluster's nodes, or of how they are reached.
    Nodes(NodeEvent),
    /// A change of network policies, or of what they refer to.
    Policies(PolicyEvent),
    /// A change of Services, or of what they refer to.
    Services(ServiceEvent),
    /// The complete set of addresses that pods of a namespace have on other nodes.
    RemotePods {
        /// The namespace.
        namespace: String,
        /// The addresses.
        addresses: BTreeSet<IpAddr>,
    },
    /// The complete set of ranges that Services get addresses from.
    ServiceRanges(Vec<IpNet>),
    /// The complete set of ranges that the cluster opens to tenants; `None`: those of the settings are open.
    TenantRanges(Option<Vec<IpNet>>),
    /// Addresses or routes of the host, or the configured ranges of tenants, changed.
    SettingsChanged(Settings),
    /// The endpoints of overlay tunnels on this node.
    TunnelEndpoints(TunnelConfig),
    /// Compare everything with the kernel.
    Resync,
    /// Compare everything with the kernel except the routes to other nodes.
    ResyncWithoutNodeRoutes,
    /// A caller requests interfaces and waits for the result.
    AttachRequested(Box<AttachRequest>),
    /// A caller requests the removal of interfaces and waits for the result.
    DetachRequested(DetachRequest),
    /// A caller lists the sandboxes that are alive and waits until the others are removed.
    GcRequested(GcRequest),
    /// A caller requests a network namespace and waits for the result.
    NetnsRequested {
        /// The call.
        call: CallId,
        /// The requested namespace.
        netns: ManagedNetns,
    },
    /// A caller requests the removal of a network namespace that Knit created and waits for the result.
    NetnsRemovalRequested {
        /// The call.
        call: CallId,
        /// Its path.
        path: String,
    },
    /// The result of [`Effect::InspectNetns`].
    NetnsInspected {
        /// The call.
        call: CallId,
        /// What is at the path, or why it is not a network namespace.
        result: Result<NetnsInfo, Problem>,
    },
    /// The result of [`Effect::CreateNetns`] or [`Effect::RemoveNetns`].
    NetnsDone {
        /// The call.
        call: CallId,
        /// The outcome.
        result: Result<NetnsOutcome, Problem>,
    },
    /// The caller no longer waits for a call.
    CallCancelled {
        /// The call.
        call: CallId,
        /// The ticket of the attach, if it was one: the caller may have disconnected just before the result was sent.
        ticket: u64,
    },
    /// Another program changed Knit's tables of the packet filter.
    PacketFilterChanged,
    /// The result of [`Effect::OfferSockets`].
    SocketsOffered(Vec<ListenerResult>),
    /// A caller registers or updates an extension and waits for the result.
    ExtensionRegistrationRequested(Box<ExtensionRegistration>),
    /// A caller removes an extension and waits for the result.
    ExtensionRemovalRequested(ExtensionRemoval),
    /// The result of [`Effect::InvokeExtension`].
    ExtensionInvoked {
        /// The id of the invocation.
        id: String,
        /// What the extension returned, or why it failed.
        result: InvocationResult,
    },
    /// A timer fired: notifications of extensions may be due.
    NotificationTimer,
    /// Compare these units with the kernel and repair drift.
    ResyncUnits(BTreeSet<Unit>),
    /// The complete set of networks that CNI plugin chains provide, by name.
    PluginChainsConfigured(BTreeMap<String, PluginChain>),
    /// The result of [`Effect::RunPluginChain`]: the output of an ADD, or why it failed.
    PluginChainDone {
        /// The interface.
        key: ChainKey,
        /// The CNI command that was run.
        command: CniCommand,
        /// The outcome.
        result: Result<String, Problem>,
    },
    /// The program restarted: no earlier caller waits any more.
    Restarted,
}

/// The outcome of applying a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanResult {
    /// The unit of the plan.
    pub unit: Unit,
    /// Whether the plan was applied.
    pub result: Result<(), ApplyFailure>,
}

/// Why a plan was not applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyFailure {
    /// The error, with a stable reason.
    pub problem: Problem,
    /// Whether the rollback was complete.
    pub rolled_back: bool,
    /// Whether the tables of the packet filter are missing.
    pub missing_tables: bool,
    /// The link kind that the kernel does not support, if that is the cause.
    pub unsupported: Option<UnsupportedKind>,
}

/// A link kind that the kernel does not support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsupportedKind {
    /// The kernel's name of the kind.
    pub kind: String,
    /// An explanation that names the missing kernel option.
    pub message: String,
}

/// Work for the host, to be executed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the record to the journal before executing the next effect.
    Journal(Record),
    /// Observe the kernel and reply with [`Event::Observed`].
    Observe {
        /// For this unit.
        unit: Unit,
        /// What to observe.
        request: ObserveRequest,
    },
    /// Apply the plan and reply with [`Event::PlanApplied`].
    Apply {
        /// For this unit.
        unit: Unit,
        /// The plan.
        plan: Arc<Plan>,
    },
    /// The reports of these objects have changed.
    ObjectsChanged(BTreeSet<ObjectKey>),
    /// Inspect the network namespace at this path and reply with [`Event::NetnsInspected`].
    InspectNetns {
        /// For this call.
        call: CallId,
        /// The path.
        path: String,
    },
    /// Create this network namespace unless it exists and reply with [`Event::NetnsDone`].
    CreateNetns {
        /// For this call.
        call: CallId,
        /// The path.
        path: String,
    },
    /// Remove this network namespace and reply with [`Event::NetnsDone`].
    RemoveNetns {
        /// For this call.
        call: CallId,
        /// The path.
        path: String,
    },
    /// Update the eBPF fast path. Nothing waits for it.
    UpdateFastPath(FastPathChange),
    /// Drop conntrack entries, so that the next packet of each connection takes the new path.
    RerouteConnections(Rerouted),
    /// Drop the conntrack entries of connections through Services to backends that are gone.
    EndConnections(StaleConnections),
    /// Replace the sockets offered to pods with these and reply with [`Event::SocketsOffered`].
    OfferSockets(Vec<SocketListener>),
    /// Invoke this extension within its deadline and reply with [`Event::ExtensionInvoked`].
    InvokeExtension(Box<Invocation>),
    /// Run the plugins of a chain and reply with [`Event::PluginChainDone`].
    RunPluginChain {
        /// The CNI command.
        command: CniCommand,
        /// The interface, with all parameters of the plugins.
        interface: Box<ChainedInterface>,
    },
    /// Translate the manifests of a namespace's objects and reply with [`Event::ObjectsTranslated`], before any other event.
    TranslateObjects {
        /// The namespace.
        namespace: String,
        /// The manifests, as JSON.
        manifests: Vec<String>,
    },
    /// Translate the networks in a pod's annotation and reply with [`Event::NetworksTranslated`], before any other event.
    TranslateNetworks(NetworksRequest),
    /// Claim or return a block.
    Block(blocks::BlockRequest),
    /// Write this node's claim of a cluster-wide quota and reply with [`QuotaEvent::ClaimWritten`].
    ClaimQuota(ClaimRequest),
    /// Send the result of a call to its caller.
    Respond {
        /// The call.
        call: CallId,
        /// The result.
        result: CallResult,
    },
}

/// Which parts of the kernel state to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObserveRequest {
    /// This sandbox, completely.
    pub sandbox: Option<SandboxId>,
    /// The sandbox is new and needs only links, addresses and routes: the rest is observed only if a link or route
    /// there carries Knit's mark.
    pub is_new: bool,
    /// Only links, in the sandbox and on the host: nothing else can change.
    pub links_only: bool,
    /// These host links, with their addresses and routes.
    pub host_links: BTreeSet<IfName>,
    /// These host links, only for their existence and MTU: they are lower devices of other links.
    pub lower_links: BTreeSet<IfName>,
    /// These host links, only for Knit's routes to other nodes.
    pub route_links: BTreeSet<IfName>,
    /// Whether to observe Knit's unreachable routes to other nodes, which have no link.
    pub unreachable_routes: bool,
    /// The ports of this host link, to detect foreign ports.
    pub ports_of: Option<IfName>,
    /// NICs with these owner marks, under whatever name they have on the host.
    pub moved_devices: BTreeSet<OwnerId>,
    /// Whether to observe VLANs of bridges and their ports.
    pub vlans: bool,
    /// Whether to observe the host's routing rules.
    pub host_rules: bool,
    /// Whether to observe the neighbours of host links.
    pub host_neighbours: bool,
    /// Sysctls of the sandbox, by path.
    pub sysctls: BTreeSet<String>,
    /// The structure of these tables of the packet filter on the host.
    pub filter_tables: BTreeSet<TableKey>,
    /// All elements of these tables, too.
    pub filter_with_elements: bool,
    /// Tables of the sandbox, with all elements.
    pub sandbox_tables: BTreeSet<TableKey>,
    /// All elements of these sets.
    pub filter_sets: BTreeSet<(TableKey, String)>,
    /// These elements.
    pub filter_elements: BTreeSet<ElementKey>,
    /// The sandbox is new and its elements have no data: they are observed only if a host link carries Knit's mark.
    /// Those that a crash left behind without a link are added once more, which has no effect.
    pub elements_if_owned: bool,
    /// Secret keys whose public key is needed. A key that Knit generates on the node is generated if missing.
    pub keys: BTreeSet<KeyRef>,
}

/// The public key of each secret key, or why it cannot be used. A key that does not exist is absent.
pub type PublicKeys = BTreeMap<KeyRef, Result<PublicKey, KeyError>>;

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyError {
    /// A stable reason.
    pub reason: Reason,
    /// An explanation that names the key and never contains key material.
    pub message: String,
}

/// A change of [`crate::State`]. The journal is the list of all records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// An object was created or updated.
    ObjectApplied(Box<StoredObject>),
    /// An object was deleted.
    ObjectDeleted(ObjectKey),
    /// A sandbox appeared or changed.
    SandboxUpdated(Sandbox),
    /// A sandbox is gone. Its leases are released; those of interfaces that still exist follow when these are removed.
    SandboxRemoved {
        /// The sandbox.
        id: SandboxId,
        /// When.
        at: Time,
    },
    /// The first container of a sandbox starts; the (object, field) pairs that were ready before it.
    ContainersStarted(SandboxId, BTreeSet<(ObjectKey, String)>),
    /// A change of a unit starts: until [`Record::ChangeEnded`] the kernel may be in an intermediate state.
    ChangeStarted(Box<ChangeStarted>),
    /// The change of a unit was applied or rolled back.
    ChangeEnded(Box<ChangeEnded>),
    /// A user changed objects in one operation; their previous versions.
    Revision(Revision),
    /// The latest revision was undone.
    RevisionUndone,
    /// A call attaches an interface.
    Attached(Box<Attachment>),
    /// A call detaches an interface.
    Detached {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
        /// The call.
        call: CallId,
    },
    /// The networks that CNI plugin chains provide.
    PluginChains(BTreeMap<String, PluginChain>),
    /// Plugins are about to run ADD for an interface: from here on a DEL may be necessary.
    ChainAddStarted(Box<ChainedInterface>),
    /// The ADD succeeded.
    ChainAddDone {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
        /// The CNI result, as JSON.
        result: String,
    },
    /// Plugins are to run DEL.
    ChainDelStarted {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
    },
    /// The DEL succeeded.
    ChainDelDone {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
    },
    /// A call requests a network namespace. Written before it is created.
    NetnsRequested(ManagedNetns),
    /// The network namespace is gone.
    NetnsRemoved {
        /// Its path.
        path: String,
        /// The sandbox instance that it was, to reject late calls.
        instance: Option<knit_model::sandbox::SandboxInstance>,
    },
    /// An extension was registered or updated.
    ExtensionRegistered(Box<RegisteredExtension>),
    /// An extension was removed.
    ExtensionRemoved {
        /// Its name.
        name: String,
        /// The call.
        call: CallId,
    },
    /// An extension is about to be invoked for a pod: from here on it may have acted.
    ExtensionCalled {
        /// The pod, as passed to the extension.
        sandbox: Box<Sandbox>,
        /// The receipt, which has no outcome yet.
        receipt: Box<Receipt>,
    },
    /// An extension returned or failed.
    ExtensionAnswered {
        /// The pod.
        sandbox: SandboxId,
        /// The id of the invocation.
        id: String,
        /// The outcome.
        outcome: InvocationOutcome,
        /// When.
        at: Time,
    },
    /// Receipts ended because their interfaces are gone, or an attach that invoked extensions was completed.
    ReceiptsEnded(Box<ReceiptsEnded>),
    /// An extension acknowledged a notification.
    ExtensionNotified {
        /// The id of the invocation.
        id: String,
    },
    /// This node holds a block.
    BlockClaimed(Box<Block>),
    /// This node no longer holds a block, or is about to return it.
    BlockReleased {
        /// Its name.
        name: String,
        /// Its uid, if it is being returned: later watch events with this uid are ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        returned: Option<String>,
    },
    /// Options that admins set on namespaces.
    Namespaces(Namespaces),
    /// Other nodes changed.
    Peers {
        /// New or changed nodes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        applied: Vec<PeerNode>,
        /// Nodes that are gone.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        removed: Vec<String>,
    },
    /// The ranges of Services.
    ServiceRanges(Vec<IpNet>),
    /// The ranges that the cluster opens to tenants, if it has a list of them.
    TenantRanges(Option<Vec<IpNet>>),
    /// The addresses that overlay tunnels run over.
    Underlay(Underlay),
    /// The active node of each egress gateway, by the gateway's name.
    ActiveGateways(BTreeMap<String, String>),
    /// The load balancer addresses that this node announces changed.
    Announcements {
        /// New addresses, each with its pool.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        added: Vec<(IpAddr, String)>,
        /// Addresses that it does not announce any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        removed: Vec<IpAddr>,
    },
    /// Addresses on other nodes changed of pods whose egress may go through this node.
    RemotePods {
        /// The namespace.
        namespace: String,
        /// Addresses that no pod has any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        removed: Vec<IpAddr>,
        /// New addresses.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        added: Vec<IpAddr>,
    },
}

/// One change of objects by a user, and how to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// A description of the change.
    pub what: String,
    /// When.
    pub at: Time,
    /// The previous version of each changed object; `None` if it is new.
    pub before: Vec<(ObjectKey, Option<Box<StoredObject>>)>,
}

/// The start of a change of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeStarted {
    /// The unit.
    pub unit: Unit,
    /// The plan.
    #[serde(with = "crate::recorded_plan")]
    pub plan: Arc<Plan>,
    /// Addresses leased for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<NewLease>,
    /// Original values of fields that Knit does not own, to be restored later.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "knit_model::serde_pairs")]
    pub original_values: BTreeMap<OriginalValueKey, serde_json::Value>,
}

/// The end of a change of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeEnded {
    /// The unit.
    pub unit: Unit,
    /// The resulting state; `None` when the change was rolled back to the previous state.
    pub unit_state: Option<Arc<UnitState>>,
    /// Problems by object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<(ObjectKey, Problem)>,
    /// Original values that were restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<OriginalValueKey>,
    /// When.
    pub at: Time,
}

impl Unit {
    /// The sandbox of this unit.
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Sandbox(id) => Some(id),
            Self::Bridge(_) | Self::NodeRoutes | Self::PacketFilter | Self::Services | Self::Policies => None,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(bridge) => write!(out, "bridge {bridge}"),
            Self::Sandbox(id) => write!(out, "sandbox {id}"),
            Self::NodeRoutes => out.write_str("routes to other nodes"),
            Self::PacketFilter => out.write_str("packet filter"),
            Self::Services => out.write_str("Services"),
            Self::Policies => out.write_str("policies"),
        }
    }
}
