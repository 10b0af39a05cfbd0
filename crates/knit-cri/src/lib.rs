//! CRI v1 client (containerd, CRI-O): running pod sandboxes and the processes that hold their network namespaces.
//!
//! It only reads: it lists running sandboxes, resolves the process of a sandbox, and streams container events.

#[allow(missing_docs, clippy::all, clippy::unwrap_used, reason = "generated")]
mod proto {
    include!("generated/runtime.v1.rs");
}

mod client;
mod info;

pub use client::{ContainerEvents, DEFAULT_SOCKETS, Error, RunningSandbox, RuntimeClient, SandboxProcess};
