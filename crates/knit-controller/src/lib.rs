//! The cluster controller. Agents apply objects on their nodes; the controller does what needs the whole cluster:
//!
//! - the status of objects, aggregated from the reports of all agents ([`rollup`]);
//! - finalizers, which are removed when no node uses an object any more;
//! - `PodConfig.sampleDeployment`;
//! - garbage collection of the states and address blocks of deleted nodes;
//! - node labels with the features of each node ([`labels`]);
//! - uninstallation ([`uninstall`]).
//!
//! [`step`] decides: events in, effects out, without I/O. [`run`] connects it to the API server and the clock;
//! [`health`] serves the probes of the kubelet.

mod blocks;
mod effects;
pub mod health;
pub mod labels;
pub mod lease;
pub mod rollup;
pub mod run;
pub mod sample;
mod state;
pub mod step;
pub mod uninstall;

pub use state::{HeldBlock, State, TrackedObject};
pub use step::{Effect, Event, step};
