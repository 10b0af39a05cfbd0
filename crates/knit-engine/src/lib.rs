//! What Knit decides, with no I/O in it: events in, effects out.
//!
//! A host (the standalone command, the agent, a simulation) feeds [`Event`]s to [`step`] and carries out the
//! [`Effect`]s. The engine never sees a clock, a socket or a file. All of its memory is [`State`], and `State` changes
//! only by [`Record`]s, which the host journals: replaying them gives the same state again.
//!
//! What a cluster tells (pods, sandboxes, objects) becomes events in [`pods`] and [`objects`]; what admins say about
//! namespaces is read in [`namespaces`].

pub mod annotated;
pub mod blocks;
pub mod call;
pub mod called;
mod calls;
pub mod chain;
pub mod cluster;
pub mod egress;
pub mod event;
pub mod extension;
pub mod extensions;
pub mod forward;
pub mod made;
pub mod namespaces;
pub mod objects;
pub mod pods;
pub mod pools;
pub mod quota;
pub mod reports;
mod resolve;
pub mod room;
pub mod sockets;
pub mod spans;
pub mod starting;
pub mod state;
mod states;
mod step;

pub use call::{Answer, Attach, Attachment, CallId, Detach};
pub use called::Called;
pub use event::{Applied, Effect, Event, Failure, Keys, Lack, Look, NoKey, Record, Revision, Unit};
pub use state::{ObjectKey, Settings, State, StoredObject};
pub use step::step;
