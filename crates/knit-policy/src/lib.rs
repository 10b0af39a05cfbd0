//! Network policies, without I/O.
//!
//! [`network_policy`], [`cluster_network_policy`] and [`multi_network_policy`] translate objects into [`Policy`], the form
//! that everything else works with. [`PolicyIndex`] holds policies, namespaces and pods. From it come the rules of the packet filter
//! ([`PolicyIndex::compile`], [`PolicyIndex::compile_interfaces`]), and the verdict on one connection with its reason
//! ([`PolicyIndex::evaluate`], [`PolicyIndex::trace`]).

pub mod cluster_network_policy;
mod compile;
mod drop_logs;
mod evaluate;
mod index;
mod interfaces;
mod isolation;
mod labels;
mod members;
pub mod multi_network_policy;
pub mod network_policy;
mod node;
mod pods;
mod policy;
mod ranges;
mod report;
mod selectors;
mod tables;

pub use compile::{LocalPod, NodePolicies};
pub use drop_logs::{DropLogTarget, LOG_DROPS_ANNOTATION, logs_drops};
pub use evaluate::{Decision, Flow, Verdict};
pub use index::{PodKey, PodNetworks, PodUpdate, PolicyIndex, PolicyNamespace, PolicyPod};
pub use interfaces::{InterfacePolicies, PodInterface};
pub use isolation::{APP_LABEL, ISOLATED_ANNOTATION, ISOLATED_LABEL, Segment, is_isolated};
pub use labels::{LabelSelector, Labels, Operator, Requirement};
pub use node::PolicyChanges;
pub use pods::PodView;
pub use policy::{
    Action, Direction, NamedPort, Namespaces, Peer, PodSelector, Policy, PolicyId, PolicyKind, PortMatch,
    PortNumber, Protocol, Rule, Tier,
};
pub use report::{DropReason, DropRule, Outcome, TraceStep};
pub use tables::{
    CLOSED, Element, PodChains, PolicyTables, dispatch, is_peer_set, is_pod_element, is_policy_name,
    is_rule_name,
};
