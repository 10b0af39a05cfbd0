//! The decisions of the cluster controller as a pure state machine: events in, effects out, no I/O.
//!
//! Agents apply objects on their nodes; the controller decides what needs the whole cluster:
//!
//! - the status of objects, aggregated from the reports of all agents ([`rollup`]);
//! - finalizers, which are removed when no node uses an object any more;
//! - `PodConfig.sampleDeployment` ([`sample`]);
//! - garbage collection of the states and address blocks of deleted nodes;
//! - node labels with the features of each node ([`labels`]);
//! - VirtualNetworks that show the segments of the cluster network;
//! - load balancer addresses of Services.
//!
//! A host passes [`Event`]s and the time to [`step`] and executes the [`Effect`]s: `knit-controller` with an API server,
//! `knit-sim` with a simulated one. This crate is separate from `knit-engine` because the status of an object depends
//! on its kind, and from `knit-controller` so that the simulator links no API client and no TLS.

mod blocks;
pub mod labels;
pub mod rollup;
pub mod sample;
mod segments;
mod service_addresses;
mod state;
mod step;

pub use segments::{NamespaceInfo, SegmentOptions};
pub use service_addresses::{AddressCondition, CLASS, CONDITION, NodeAddresses, ServiceInfo};
pub use state::{HeldBlock, Name, State, TrackedObject};
pub use step::{Effect, Event, finalizer, step};
