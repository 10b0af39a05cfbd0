//! Knit's words as plain data, and the two pure questions about them: what differs, and in which order to change it.
//!
//! No I/O, no clock, no async: everything here is a function of its arguments. Dialects translate their input into these
//! types, the kernel room observes into them and applies plans made of them.

pub mod intent;
pub mod key;
pub mod link;
pub mod mac;
pub mod marks;
pub mod name;
pub mod neighbour;
pub mod pairs;
pub mod plan;
pub mod problem;
pub mod provenance;
pub mod quota;
pub mod report;
pub mod route;
pub mod rule;
pub mod sandbox;
pub mod state;

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
