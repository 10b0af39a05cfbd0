//! What policies allow: examples, and comparison of the compiled rules with the decision.
#![allow(clippy::unwrap_used, reason = "a test stops at the first unexpected value")]

mod drop_logs;
mod naive;
mod objects;
mod packets;
mod random;
mod report;
mod support;
