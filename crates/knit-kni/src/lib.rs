//! The agent's gRPC interface: what is said on its socket, and a client for it.
//!
//! The `.proto` files in `api/` are the source. [`kni`] is wire-compatible with the public proof of concept, [`v1`] is
//! Knit's own. Errors are the same on both sides: a [`Refusal`] becomes a gRPC status in the agent, and an [`Error`] in
//! the client knows the refusal's reason again.

pub mod call;
mod client;
mod detail;
mod error;
pub mod frame;
pub mod json;
mod reason;

pub use client::{Client, DEFAULT_SOCKET, Stream};
pub use detail::Refusal;
pub use error::Error;
pub use reason::Reason;

/// Package `kni`: as the public proof of concept speaks it.
#[allow(clippy::all, clippy::unwrap_used, missing_docs)]
pub mod kni {
    tonic::include_proto!("kni");
}

/// Package `knit.v1`: Knit's own interface.
#[allow(clippy::all, clippy::unwrap_used, missing_docs)]
pub mod v1 {
    tonic::include_proto!("knit.v1");
}

/// Every message and service as an encoded `FileDescriptorSet`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/api.bin"));

/// The largest message that the agent takes or a client accepts, in bytes. A thousand pods fit.
pub const MAX_MESSAGE: usize = 16 << 20;
