//! The agent's gRPC API, and a client for it.
//!
//! The `.proto` files in `api/` are the source, from which `cargo xtask generate` writes `src/generated/`. [`kni`] is
//! wire-compatible with the public proof of concept, [`v1`] is Knit's own API. Errors are typed on both sides: an
//! [`RpcError`] becomes a gRPC status in the agent, from which the client restores the reason ([`Error`]).

pub mod call;
mod client;
mod detail;
mod error;
pub mod frame;
pub mod json;
mod reason;
mod standalone_calls;

pub use client::{Client, DEFAULT_SOCKET, Stream};
pub use detail::RpcError;
pub use error::Error;
pub use reason::Reason;

/// Package `kni`: compatible with the public proof of concept.
#[allow(clippy::all, clippy::unwrap_used, missing_docs)]
pub mod kni {
    include!("generated/kni.rs");
}

/// Package `knit.v1`: Knit's own API.
#[allow(clippy::all, clippy::unwrap_used, missing_docs)]
pub mod v1 {
    include!("generated/knit.v1.rs");
}

/// All messages and services as an encoded `FileDescriptorSet`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/api.bin");

/// The maximum message size of the agent and its clients in bytes: more than a thousand pods.
pub const MAX_MESSAGE: usize = 16 << 20;
