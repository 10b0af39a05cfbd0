//! Where Services lead connections: examples, and comparison of the compiled rules with the decision.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

mod affinity;
mod announced;
mod changes;
mod endpoints;
mod frontends;
mod limits;
mod naive;
mod node_ports;
mod packets;
mod random;
mod sources;
mod structure;
mod support;
