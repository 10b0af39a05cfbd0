//! Services, without I/O: what kube-proxy decides, for one node.
//!
//! [`ServiceIndex`] holds Services, their EndpointSlices and facts about the node. From it come the elements of the packet
//! filter ([`ServiceIndex::elements_of`]), the translation of one connection with its reason ([`ServiceIndex::evaluate`]), and
//! what conntrack may contain about UDP ([`ServiceIndex::udp_frontends`]). [`dispatch`] adds the rules, which do not grow
//! with Services.
//!
//! Services that other proxies serve are no input: the caller leaves out headless and ExternalName Services, and those with
//! the label `service.kubernetes.io/service-proxy-name`; and EndpointSlices with the label `service.kubernetes.io/headless`
//! or addresses that are host names.

mod affinity;
mod announced;
mod chain;
mod choice;
mod claims;
mod elements;
mod endpoints;
mod evaluate;
mod index;
mod limits;
mod names;
mod service;
mod state;
mod tables;
mod translation;
mod udp;

pub use announced::Announced;
pub use chain::{BackendChain, Scope, chain_elements};
pub use endpoints::{Endpoint, EndpointSlice, NodeFacts, SliceKey, SlicePort};
pub use evaluate::{Connection, Decision, DenyReason, FrontendKind, ServiceMatch, SourceClass};
pub use index::{HealthCheck, ServiceIndex};
pub use names::{NAME_PREFIX, announced_set, is_dynamic_set, is_service_name, pod_set};
pub use service::{Backend, Frontend, Protocol, Service, ServiceKey, ServicePort};
pub use tables::dispatch;
pub use udp::UdpFrontends;

/// An element of a set or map, with its data.
pub type Element = (knit_model::filter::ElementKey, knit_model::filter::ElementData);
