//! The data model of Knit: intents, desired and observed network state, and the plan from one to the other.
//!
//! No I/O, no clock, no async: every result is a function of its arguments. Input dialects translate their objects into
//! intents, `knit-engine` resolves intents into desired state, `knit-kernel` observes the kernel into the same types and
//! applies the plans that [`plan::diff`] computes.

pub mod connected_routes;
pub mod filter;
pub mod intent;
pub mod kernel_ids;
pub mod key;
pub mod link;
mod link_kinds;
pub mod mac;
pub mod name;
pub mod neighbour;
pub mod plan;
pub mod problem;
pub mod provenance;
pub mod quota;
pub mod report;
pub mod reserved_names;
pub mod route;
pub mod rule;
pub mod sandbox;
pub mod serde_pairs;
pub mod state;
pub mod sysctl;

pub use key::{KeyRef, PrivateKey, PublicKey, SecretKey};
pub use link::{Attrs, Kind, Link};
pub use mac::Mac;
pub use name::IfName;
pub use neighbour::Neighbour;
pub use plan::{Plan, Step};
pub use problem::{Problem, Problems};
pub use provenance::Provenance;
pub use route::Route;
pub use rule::Rule;
pub use sandbox::{Sandbox, SandboxId, Scope};
pub use state::{Address, NetState, ScopeState};
