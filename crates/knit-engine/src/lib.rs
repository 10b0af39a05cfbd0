//! Knit's decisions as a pure state machine: events in, effects out, no I/O.
//!
//! A host (the standalone command, the agent, a simulation) passes [`Event`]s to [`step`] and executes the
//! [`Effect`]s. The engine has no access to clocks, sockets or files. [`State`] holds everything it remembers and
//! changes only through [`Record`]s, which the host journals: replaying the records reproduces the state.
//!
//! [`pods`], [`nodes`] and [`objects`] handle watch results (pods, sandboxes, nodes, objects); [`namespaces`] reads the
//! labels that admins set on namespaces.

pub mod address_capacity;
pub mod attachments;
pub mod blocks;
pub mod call;
pub mod cluster;
pub mod egress;
pub mod event;
pub mod extension;
pub mod extensions;
pub mod namespaces;
pub mod nodes;
pub mod object_index;
pub mod objects;
pub mod overlay;
pub mod packet_filter;
pub mod peers;
mod pending_calls;
pub mod plugin_chain;
pub mod pod_annotations;
pub mod pod_start;
pub mod pods;
pub mod policies;
pub mod pools;
pub mod quota;
mod recorded_plan;
pub mod recording;
pub mod reports;
mod resolve;
mod segments;
pub mod service_announcements;
pub mod services;
pub mod sockets;
pub mod state;
mod status;
mod step;
pub mod tenant_ranges;
pub mod unit_state;
pub mod unused_objects;

pub use attachments::Attachments;
pub use call::{AttachRequest, Attachment, CallId, CallResult, DetachRequest};
pub use event::{
    ApplyFailure, Effect, Event, KeyError, ObserveRequest, PlanResult, PublicKeys, Record, Revision, Unit,
    UnsupportedKind,
};
pub use state::{ObjectKey, Settings, State, StoredObject};
pub use step::step;
