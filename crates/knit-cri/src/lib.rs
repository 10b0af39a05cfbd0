//! Running pods as the container runtime knows them, by CRI v1 (containerd, CRI-O).
//!
//! Knit asks three things: which sandboxes run, which process holds a sandbox's namespaces, and to be told when that may
//! have changed. It never asks the runtime to do anything.

#[allow(missing_docs, clippy::all, clippy::unwrap_used, reason = "generated")]
mod proto {
    tonic::include_proto!("runtime.v1");
}

mod client;
mod info;

pub use client::{Error, Events, Listed, Process, Runtime, SOCKETS};
