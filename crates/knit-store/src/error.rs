//! What can go wrong with the state on disk, in words.

use std::io;
use std::path::{Path, PathBuf};

/// The result of working with the state on disk.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the state on disk could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Someone else holds the lock.
    #[error("state in {}: another knit is working here{}", dir.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Locked {
        /// The state folder.
        dir: PathBuf,
        /// Who, if it could be read.
        pid: Option<u32>,
    },
    /// The state is of a format that this program does not know.
    #[error("the state in {} was written by a newer Knit (format {found}, this one knows {known})", dir.display())]
    Newer {
        /// The state folder.
        dir: PathBuf,
        /// The format on disk.
        found: u32,
        /// The newest that this program reads.
        known: u32,
    },
    /// No space is left.
    #[error("cannot {action} {}: the disk is full", path.display())]
    Full {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The file system takes no writes.
    #[error("cannot {action} {}: the file system is read-only", path.display())]
    ReadOnly {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// The system refused for another reason.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A record is whole on disk, and yet not one that this program understands.
    #[error("{}: the record with sequence {seq} is whole but not understood (format {format}): {why}", path.display())]
    NotUnderstood {
        /// The file.
        path: PathBuf,
        /// The record.
        seq: u64,
        /// The format of the file.
        format: u32,
        /// What does not fit.
        why: String,
    },
    /// Numbers that no journal reaches by counting: the files are not this journal's, or someone wrote into them.
    #[error("state in {}: sequence number {next} would come next, which no journal reaches by counting; look for a file that does not belong there", dir.display())]
    NumbersUsedUp {
        /// The state folder.
        dir: PathBuf,
        /// What would come next.
        next: u64,
    },
    /// Part of a file's history cannot be read.
    #[error("{}: {bytes} bytes at byte {at} are damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: usize,
        /// How much.
        bytes: usize,
    },
    /// A value that JSON cannot hold.
    #[error("state in {}: a value cannot be written as JSON: {source}", dir.display())]
    NotJson {
        /// The state folder.
        dir: PathBuf,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// A snapshot of a moment that the journal does not have.
    #[error("state in {}: a snapshot at sequence {at} was asked for, the journal has {first} to {last}", dir.display())]
    NoSuchMoment {
        /// The state folder.
        dir: PathBuf,
        /// What was asked for.
        at: u64,
        /// The newest snapshot's moment.
        first: u64,
        /// The last record.
        last: u64,
    },
    /// An earlier failure left the open journal unsure of what is on disk.
    #[error("state in {}: nothing more is written after an earlier failure ({why}); open it again", dir.display())]
    Stopped {
        /// The state folder.
        dir: PathBuf,
        /// The earlier failure.
        why: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without anyone changing the state folder.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Locked { .. } | Self::Full { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory)
            }
            _ => false,
        }
    }

    /// The stable word for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "StateLocked",
            Self::Newer { .. } => "StateNewer",
            Self::Full { .. } => "DiskFull",
            Self::ReadOnly { .. } => "DiskReadOnly",
            Self::Io { .. } => "StateInaccessible",
            Self::NotUnderstood { .. } => "StateNotUnderstood",
            Self::NumbersUsedUp { .. } => "StateNumbersUsedUp",
            Self::Damaged { .. } => "StateDamaged",
            Self::NotJson { .. } => "StateNotWritable",
            Self::NoSuchMoment { .. } => "StateNoSuchMoment",
            Self::Stopped { .. } => "StateStopped",
        }
    }

    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        let path = path.as_ref().to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { action, path, source },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }
}
