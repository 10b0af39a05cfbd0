//! Network policies, without I/O.
//!
//! [`network_policy`] and [`cluster_network_policy`] translate objects into [`Policy`], the form that everything else works
//! with. [`PolicyIndex`] holds policies, namespaces and pods. From it come the rules of the packet filter
//! ([`PolicyIndex::compile`]), and the verdict on one connection with its reason ([`PolicyIndex::evaluate`],
//! [`PolicyIndex::trace`]).

pub mod cluster_network_policy;
mod compile;
mod drop_logs;
mod evaluate;
mod index;
mod isolation;
mod labels;
mod members;
pub mod network_policy;
mod policy;
mod ranges;
mod report;
mod tables;

pub use compile::{LocalPod, NodePolicies};
pub use drop_logs::{DropLogTarget, LOG_DROPS_ANNOTATION, logs_drops};
pub use evaluate::{Decision, Flow, Verdict};
pub use index::{PodKey, PodUpdate, PolicyIndex, PolicyNamespace, PolicyPod};
pub use isolation::{APP_LABEL, ISOLATED_ANNOTATION, ISOLATED_LABEL, Segment, is_isolated};
pub use labels::{LabelSelector, Labels, Operator, Requirement};
pub use policy::{
    Action, Direction, NamedPort, Namespaces, Peer, PodSelector, Policy, PolicyId, PolicyKind, PortMatch,
    PortNumber, Protocol, Rule, Tier,
};
pub use report::{DropReason, DropRule, Outcome, TraceStep};
pub use tables::{
    CLOSED, Element, PodChains, PolicyTables, dispatch, is_peer_set, is_pod_element, is_policy_name,
};
