//! The way to an API server: the client, watches that say when they are complete, and what all writers have in common.
//!
//! Nothing is decided here. Whoever watches hears a whole list first, and again whenever the watch could not go on (the
//! server was away, or had forgotten where the watch was), so that what went in between shows.

mod client;
mod kinds;
mod recorder;
mod watch;

pub use client::{Error, as_person, client, connect};
pub use kinds::{MANAGER, apply, object_of, resource};
pub use kube;
pub use recorder::{Recorder, Severity};
pub use watch::{Seen, follow};
