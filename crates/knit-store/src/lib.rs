//! The journal on disk: append-only, sequence-numbered, crash-safe.
//!
//! What is recorded is the caller's: `Journal<R, S>` holds records `R` and snapshots `S`. A record's own time, if it has
//! one, is part of it. What always holds:
//!
//! - opening gives a snapshot and the records that follow it without a gap, and says in words what it could not use;
//! - nothing is lost in silence, and nothing damaged is deleted: it is kept beside, under a new name;
//! - an appended record survives the death of the process, a durable one also the machine's;
//! - one process at a time works in a state folder.
//!
//! | file | holds |
//! |---|---|
//! | `state.lock` | the lock, and the pid of who holds it |
//! | `snapshot`, `snapshot.1` | the newest snapshot, and the one before |
//! | `journal` | the segment that is written |
//! | `journal.<first>` | older segments, by their first sequence number |
//! | `*.new` | a file that is not in place yet; the next opening finishes or removes it |
//! | `*.damaged-<n>` | what could not be read, for a person to look at |
//!
//! Every file is lines of `<sequence> <crc32> <json>`. The first line has sequence 0 and is the header, with the format's
//! version.

mod active;
mod commit;
mod crc;
mod disk;
pub mod error;
pub mod finding;
pub mod format;
pub mod history;
pub mod journal;
mod line;
mod lock;
mod open;
mod replay;
mod segment;
mod snapshot;

pub use error::{Error, Result};
pub use finding::Finding;
pub use format::{Format, Part};
pub use history::History;
pub use journal::{Journal, Opened, Options, Seq, Size};
