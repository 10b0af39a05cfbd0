//! The journal on disk: append-only, sequence-numbered, crash-safe.
//!
//! `Journal<R, S>` stores records `R` and snapshots `S` of the caller. Invariants:
//!
//! - opening returns a snapshot and the records that follow it without a gap, and reports everything that it could not use;
//! - no data is lost silently, and no damaged file is deleted: it is renamed and kept;
//! - an appended record survives a crash of the process, a durable one also a crash of the machine;
//! - only one process at a time has a state directory open.
//!
//! | file | holds |
//! |---|---|
//! | `state.lock` | the lock, and the PID of its holder |
//! | `snapshot`, `snapshot.1` | the newest snapshot, and the one before |
//! | `journal` | the active segment |
//! | `journal.<first>` | older segments, by their first sequence number |
//! | `*.new` | a temporary file; the next open renames or removes it |
//! | `*.damaged-<n>` | a damaged file, kept for analysis |
//!
//! Every file consists of lines `<sequence> <crc32> <json>`. The first line has sequence 0 and is the header with the format
//! version.

mod active;
mod commit;
mod disk;
pub mod error;
pub mod format;
pub mod history;
pub mod journal;
mod line;
mod lock;
mod open;
pub mod recovery;
mod replay;
mod segment;
mod snapshot;

pub use error::{Error, Result};
pub use format::{EntryKind, Format};
pub use history::History;
pub use journal::{Journal, OpenedJournal, Options, SegmentSize, Seq};
pub use recovery::RecoveryFinding;
