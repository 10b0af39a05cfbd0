//! The cluster controller: connects the decisions of [`knit_controller_engine`] to an API server and the clock.
//!
//! [`run`] feeds watch updates to [`knit_controller_engine::step`] and executes the effects while it holds the Lease
//! ([`lease`]); [`health`] serves the probes of the kubelet; [`uninstall`] removes Knit from a cluster. Nothing is
//! decided here about objects, nodes or blocks.

mod effects;
pub mod health;
pub mod lease;
pub mod run;
mod service_info;
pub mod uninstall;
