//! What the engine hears, what it asks for, and what it remembers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use knit_ipam::Time;
use knit_model::link::OwnerId;
use knit_model::problem::{Problem, Reason};
use knit_model::quota::Counts;
use knit_model::{IfName, KeyRef, NetState, Plan, PublicKey, Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

use crate::blocks::{self, Block};
use crate::call::{Answer, Attach, Attachment, CallId, Collect, Detach, Domain, DomainDone, Found};
use crate::chain::{Chain, ChainKey, Chained, Verb};
use crate::extension::{Invocation, Outcome, Receipt, Registered, Told};
use crate::extensions::{ReceiptsEnded, Registration, Removal};
use crate::forward::Forwarding;
use crate::namespaces::Namespaces;
use crate::sockets::{Listener, Offered};
use crate::spans::Underlay;
use crate::state::{BridgeKey, HeldKey, LeaseTaken, Made, ObjectKey, StoredObject};

/// What is changed as one transaction: it holds, or it is taken back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A bridge of the node. Comes before the sandboxes in this order, because they need it.
    Bridge(BridgeKey),
    /// Everything of one sandbox.
    Sandbox(SandboxId),
    /// The ways to the pods of other nodes. They need the bridge of the cluster's network; no sandbox needs them.
    NodeRoutes,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// An object was written.
    ObjectApplied(StoredObject),
    /// An object was removed.
    ObjectDeleted(ObjectKey),
    /// A sandbox appeared, or its labels changed.
    SandboxSeen(Sandbox),
    /// A sandbox is gone.
    SandboxGone(SandboxId),
    /// The first container of a sandbox is about to be started: what stands now was there before it.
    Starting(SandboxId),
    /// The kernel was looked at, as asked for a unit.
    Observed {
        /// The unit.
        unit: Unit,
        /// What was seen.
        seen: NetState,
        /// The keys that were asked for, those that are there.
        keys: Keys,
    },
    /// A plan was carried out, or was taken back.
    Applied(Applied),
    /// This node may use so much of a quota that holds for all nodes together.
    Allowed {
        /// The quota.
        quota: ObjectKey,
        /// What was claimed for this node.
        counts: Counts,
    },
    /// News of blocks of ranges that nodes share.
    Blocks(blocks::News),
    /// What admins say about namespaces: this, and nothing about any other.
    Namespaces(Namespaces),
    /// These nodes are well, and no others.
    Nodes(BTreeSet<String>),
    /// Pods of a namespace have these addresses on other nodes, and no others.
    Elsewhere {
        /// The namespace.
        namespace: String,
        /// The addresses.
        addresses: BTreeSet<IpAddr>,
    },
    /// What the tunnels of networks that are one on all nodes lie on.
    Underlay(Underlay),
    /// Everything is to be compared with the kernel again.
    Resync,
    /// Someone wants interfaces, and waits.
    AttachRequested(Box<Attach>),
    /// Someone wants interfaces to go, and waits.
    DetachRequested(Detach),
    /// Someone says which sandboxes are alive, and waits until the others are gone.
    CollectRequested(Collect),
    /// Someone wants a network namespace, and waits.
    DomainRequested {
        /// The call.
        call: CallId,
        /// Which.
        domain: Domain,
    },
    /// Someone wants a network namespace that Knit made to go, and waits.
    DomainUnwanted {
        /// The call.
        call: CallId,
        /// Where it is.
        path: String,
    },
    /// A namespace was looked at, as asked for a call.
    Inspected {
        /// The call.
        call: CallId,
        /// What was found, or why it is none.
        found: Result<Found, Problem>,
    },
    /// A namespace was made or removed, as asked for a call.
    DomainDone {
        /// The call.
        call: CallId,
        /// What became of it.
        result: Result<DomainDone, Problem>,
    },
    /// Whoever made a call does not wait any more.
    CallCancelled {
        /// The call.
        call: CallId,
        /// Its number, if it was an attach: whoever asked may have gone just before the answer came.
        ticket: u64,
    },
    /// Ports of the node were opened and closed as asked, or could not be.
    Forwarded(Result<(), Problem>),
    /// Ports of the node are to be opened and closed anew, whatever was asked before.
    Reforward,
    /// Sockets are offered as asked, or cannot be.
    Offered(Vec<Offered>),
    /// Someone wants an extension to be registered, or to be another, and waits.
    ExtensionWanted(Box<Registration>),
    /// Someone wants an extension to be removed, and waits.
    ExtensionUnwanted(Removal),
    /// An extension was called as asked, and this came of it.
    Invoked {
        /// The id of the call.
        id: String,
        /// What it answered, or why it did not.
        told: Told,
    },
    /// Time has passed, and something that extensions have to be told may be due.
    Woken,
    /// These units are to be compared with the kernel, and repaired where they differ.
    Compare(BTreeSet<Unit>),
    /// Networks that chains of plugins make, by name: these and no others.
    ChainsConfigured(BTreeMap<String, Chain>),
    /// Plugins were run, as asked: the result of an ADD, or why it failed.
    ChainDone {
        /// For this interface.
        key: ChainKey,
        /// What they were run for.
        verb: Verb,
        /// What came of it.
        result: Result<String, Problem>,
    },
    /// The program began anew: nobody who called before waits any more.
    Restarted,
}

/// How a plan ended.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The unit it was for.
    pub unit: Unit,
    /// Whether it holds.
    pub result: Result<(), Failure>,
}

/// Why a plan does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In words, with a stable reason.
    pub problem: Problem,
    /// Whether everything was taken back.
    pub taken_back: bool,
    /// The kind of link that the kernel does not have, where that is the reason.
    pub lacks: Option<Lack>,
}

/// A kind of link that the kernel does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The kernel's word for the kind.
    pub kind: String,
    /// The same for people, with the option that it was built without.
    pub words: String,
}

/// What the host is asked to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this down before going on.
    Journal(Record),
    /// Look at the kernel and answer with [`Event::Observed`].
    Observe {
        /// For this unit.
        unit: Unit,
        /// What to look at.
        look: Look,
    },
    /// Carry out the plan and answer with [`Event::Applied`].
    Apply {
        /// For this unit.
        unit: Unit,
        /// The plan.
        plan: Arc<Plan>,
    },
    /// What is known about these objects has changed.
    Changed(BTreeSet<ObjectKey>),
    /// Look at the namespace at this path and answer with [`Event::Inspected`].
    Inspect {
        /// For this call.
        call: CallId,
        /// Where.
        path: String,
    },
    /// Make this namespace unless it is there, and answer with [`Event::DomainDone`].
    MakeDomain {
        /// For this call.
        call: CallId,
        /// Where.
        path: String,
    },
    /// Remove this namespace and answer with [`Event::DomainDone`].
    RemoveDomain {
        /// For this call.
        call: CallId,
        /// Where.
        path: String,
    },
    /// Have these ports of the node lead to pods, and no others, and answer with [`Event::Forwarded`].
    Forward(Forwarding),
    /// Offer these sockets to pods, and no others, and answer with [`Event::Offered`].
    Offer(Vec<Listener>),
    /// Call this extension within its deadline and answer with [`Event::Invoked`].
    Invoke(Box<Invocation>),
    /// Run the plugins of a chain and answer with [`Event::ChainDone`].
    RunChain {
        /// What for.
        verb: Verb,
        /// The interface, with everything that plugins are told.
        chained: Box<Chained>,
    },
    /// Claim a block, or give it back.
    Block(blocks::Order),
    /// Tell whoever made the call.
    Answer {
        /// The call.
        call: CallId,
        /// The answer.
        answer: Answer,
    },
}

/// What to look at in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// This sandbox, wholly.
    pub sandbox: Option<SandboxId>,
    /// Nothing of the sandbox is known, and nothing wanted there needs more than links, addresses and routes: the rest of
    /// it matters only if a link or a route there has Knit's mark.
    pub is_new: bool,
    /// Only links, here and on the host: nothing else can change.
    pub links_only: bool,
    /// These links of the host, with their addresses and routes.
    pub host_links: BTreeSet<IfName>,
    /// These links of the host, only to see whether they are there and what their MTU is: something sits on them.
    pub host_parents: BTreeSet<IfName>,
    /// These links of the host, only for Knit's routes through them to other nodes.
    pub ways: BTreeSet<IfName>,
    /// Whether Knit's routes to other nodes that lead nowhere are of interest: no link has them.
    pub dead_ends: bool,
    /// The ports of this link of the host, to see whether others use it.
    pub ports_of: Option<IfName>,
    /// NICs with these marks, wherever on the host they came to lie.
    pub lent: BTreeSet<OwnerId>,
    /// Whether the VLANs of bridges and their ports are of interest.
    pub vlans: bool,
    /// Whether the host's rules are of interest.
    pub host_rules: bool,
    /// Whether the neighbours of the host's links are of interest.
    pub host_neighbours: bool,
    /// Sysctls of the sandbox by path.
    pub sysctls: BTreeSet<String>,
    /// Secret keys: which public key belongs to each. One that Knit makes on the node is made if it is missing.
    pub keys: BTreeSet<KeyRef>,
}

/// Secret keys by where they come from: what is known of each is the public key that belongs to it, or why it cannot be
/// used. One that is not there is not among them.
pub type Keys = BTreeMap<KeyRef, Result<PublicKey, NoKey>>;

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoKey {
    /// A stable word.
    pub reason: Reason,
    /// A sentence that names the key and never holds any of it.
    pub why: String,
}

/// A change of [`crate::State`]. The list of all of them is Knit's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// An object was written.
    ObjectApplied(Box<StoredObject>),
    /// An object was removed.
    ObjectDeleted(ObjectKey),
    /// A sandbox appeared or changed.
    SandboxSeen(Sandbox),
    /// A sandbox is gone; its leases are free, those of interfaces that are still there once these are cut off.
    SandboxGone {
        /// The sandbox.
        id: SandboxId,
        /// When.
        at: Time,
    },
    /// The first container of a sandbox is started, and this stood before it, by the object that asked and its field.
    Started(SandboxId, BTreeSet<(ObjectKey, String)>),
    /// The intent to change a unit: from here until [`Record::Ended`] the kernel may be in between.
    Began(Box<Began>),
    /// The unit's change holds, or was taken back.
    Ended(Box<Ended>),
    /// A person changed objects in one go; what they were before.
    Revision(Revision),
    /// The newest revision was taken back.
    Undone,
    /// A call asks for an interface.
    Attached(Box<Attachment>),
    /// No call asks for it any more.
    Detached {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
        /// The call that says so.
        call: CallId,
    },
    /// Which networks chains of plugins make.
    Chains(BTreeMap<String, Chain>),
    /// Plugins are about to be run for an interface: from here on there may be something to take away.
    Chained(Box<Chained>),
    /// They made it.
    ChainStands {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
        /// What they answered, as JSON.
        result: String,
    },
    /// They are to take it away.
    ChainLeaves {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
    },
    /// They took it away.
    ChainGone {
        /// The sandbox.
        sandbox: SandboxId,
        /// The interface.
        interface: IfName,
    },
    /// A call asks for a network namespace.
    Domain(Domain),
    /// It is gone.
    DomainGone {
        /// Where it was.
        path: String,
        /// Which life of a sandbox it was, so that what comes late for it is refused.
        instance: Option<knit_model::sandbox::Instance>,
    },
    /// An extension is registered, or is another than before.
    ExtensionRegistered(Box<Registered>),
    /// An extension is not registered any more.
    ExtensionRemoved {
        /// Its name.
        name: String,
        /// The call that says so.
        call: CallId,
    },
    /// An extension is about to be called for a pod: from here on it may have acted.
    ExtensionCalled {
        /// The pod, as it is told to the extension.
        sandbox: Box<Sandbox>,
        /// The receipt, which has no outcome yet.
        receipt: Box<Receipt>,
    },
    /// An extension answered, or failed.
    ExtensionAnswered {
        /// The pod.
        sandbox: SandboxId,
        /// The id of the call.
        id: String,
        /// What came of it.
        outcome: Outcome,
        /// When.
        at: Time,
    },
    /// Receipts ended, because what they are about is gone, or an attach that called extensions was answered.
    ReceiptsEnded(Box<ReceiptsEnded>),
    /// An extension has acknowledged what it was owed.
    ExtensionTold {
        /// The id of the call.
        id: String,
    },
    /// A block is this node's.
    BlockClaimed(Box<Block>),
    /// A block is not this node's any more, or is about to be given back.
    BlockGone {
        /// Its name.
        name: String,
        /// Its uid, if it is given back: it is not this node's again, whatever is heard of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        returned: Option<String>,
    },
    /// What admins say about namespaces.
    Namespaces(Namespaces),
    /// What the tunnels of networks that are one on all nodes lie on.
    Underlay(Underlay),
    /// The node that has the addresses of each gateway, by the gateway's name.
    Active(BTreeMap<String, String>),
    /// Pods of a namespace that may leave by this node came and went on others.
    Elsewhere {
        /// The namespace.
        namespace: String,
        /// Addresses that none of them has any more.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gone: Vec<IpAddr>,
        /// Addresses that are new.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        come: Vec<IpAddr>,
    },
}

/// One change of objects by a person, and how to take it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// What was done, in words.
    pub what: String,
    /// When.
    pub at: Time,
    /// Each object that changed, as it was before; `None` if it was not there.
    pub before: Vec<(ObjectKey, Option<Box<StoredObject>>)>,
}

/// The intent to change a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// The unit.
    pub unit: Unit,
    /// What will be done.
    pub plan: Arc<Plan>,
    /// Addresses taken for it.
    pub leases: Vec<LeaseTaken>,
    /// Old values of links that Knit does not own, to be given back one day.
    #[serde(with = "knit_model::pairs")]
    pub held: BTreeMap<HeldKey, serde_json::Value>,
}

/// How a unit's change ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The unit.
    pub unit: Unit,
    /// What the unit has now; `None` when the change was taken back and it has what it had before.
    pub made: Option<Made>,
    /// What stands in the way, by object.
    pub problems: Vec<(ObjectKey, Problem)>,
    /// Old values that were given back.
    pub given_back: Vec<HeldKey>,
    /// When.
    pub at: Time,
}

impl Unit {
    /// The sandbox that it is everything of.
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::Sandbox(id) => Some(id),
            Self::Bridge(_) | Self::NodeRoutes => None,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(bridge) => write!(out, "bridge {bridge}"),
            Self::Sandbox(id) => write!(out, "sandbox {id}"),
            Self::NodeRoutes => out.write_str("routes to other nodes"),
        }
    }
}
