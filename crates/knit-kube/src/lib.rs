//! Access to the Kubernetes API server: client configuration, watches, server-side apply and Events.
//!
//! A watch delivers a full list first, and again whenever it had to be restarted, so that deletions in between are
//! observed.

mod client;
mod kinds;
mod recorder;
mod watch;

pub use client::{Error, client, connect, connection, load_config};
pub use kinds::{FIELD_MANAGER, api_resource, apply, parse_object};
pub use knit_crds::{Severity, WatchUpdate};
pub use kube;
pub use recorder::EventRecorder;
pub use watch::{watch, watch_with_errors};
