//! Network policies, without I/O.
//!
//! [`network_policy`] translates NetworkPolicies into [`Policy`], the form that everything else works with. [`PolicyIndex`]
//! holds policies, namespaces and pods. From it come the rules of the packet filter ([`PolicyIndex::compile`]), and the
//! verdict on one connection with its reason ([`PolicyIndex::evaluate`]).

mod compile;
mod evaluate;
mod index;
mod labels;
mod members;
pub mod network_policy;
mod policy;
mod ranges;

pub use compile::{
    CLOSED, LocalPod, NodePolicies, PodChains, PolicyTables, dispatch, is_peer_set, is_pod_element,
    is_policy_name,
};
pub use evaluate::{Decision, Flow, Verdict};
pub use index::{PodKey, PodUpdate, PolicyIndex, PolicyPod};
pub use labels::{LabelSelector, Labels, Operator, Requirement};
pub use policy::{
    Direction, NamedPort, Namespaces, Peer, PodSelector, Policy, PolicyId, PortMatch, PortNumber, Protocol,
    Rule,
};
