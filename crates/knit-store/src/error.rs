//! Errors of the state on disk.

use std::io;
use std::path::{Path, PathBuf};

/// The result of working with the state on disk.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the state on disk could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process holds the lock.
    #[error("state in {}: locked by another knit process{}", dir.display(), pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    Locked {
        /// The state directory.
        dir: PathBuf,
        /// PID of the holder, if it could be read.
        pid: Option<u32>,
    },
    /// The state has a newer format.
    #[error("the state in {} was written by a newer Knit (format {found}, supported: {known})", dir.display())]
    NewerFormat {
        /// The state directory.
        dir: PathBuf,
        /// The format on disk.
        found: u32,
        /// The newest supported format.
        known: u32,
    },
    /// No space is left on the device.
    #[error("cannot {action} {}: the disk is full", path.display())]
    DiskFull {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The file system is read-only.
    #[error("cannot {action} {}: the file system is read-only", path.display())]
    ReadOnly {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// Another I/O error.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// A record is intact but cannot be decoded.
    #[error("{}: record {seq} cannot be decoded (format {format}): {cause}", path.display())]
    Undecodable {
        /// The file.
        path: PathBuf,
        /// Sequence number of the record.
        seq: u64,
        /// Format of the file.
        format: u32,
        /// The decoding error.
        cause: String,
    },
    /// An implausible sequence number: a file does not belong to this journal, or was modified.
    #[error("state in {}: next sequence number {next} is implausible; remove files that do not belong to this journal", dir.display())]
    SequenceExhausted {
        /// The state directory.
        dir: PathBuf,
        /// The next sequence number.
        next: u64,
    },
    /// Part of a file is corrupt.
    #[error("{}: {bytes} bytes at offset {at} are corrupt", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset.
        at: usize,
        /// Length.
        bytes: usize,
    },
    /// A value cannot be serialized.
    #[error("state in {}: cannot serialize a value as JSON: {source}", dir.display())]
    Serialize {
        /// The state directory.
        dir: PathBuf,
        /// The serialization error.
        source: serde_json::Error,
    },
    /// A snapshot at a sequence number that the journal does not have.
    #[error("state in {}: cannot snapshot at sequence {at}: the journal has {first} to {last}", dir.display())]
    SnapshotOutOfRange {
        /// The state directory.
        dir: PathBuf,
        /// The requested sequence number.
        at: u64,
        /// Sequence number of the newest snapshot.
        first: u64,
        /// Sequence number of the last record.
        last: u64,
    },
    /// An earlier write failed, so the contents of the disk are unknown.
    #[error("state in {}: no writes after an earlier failure ({cause}); reopen the journal", dir.display())]
    WriteFailed {
        /// The state directory.
        dir: PathBuf,
        /// The earlier failure.
        cause: String,
    },
}

impl Error {
    /// Whether a retry may succeed without manual changes in the state directory.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Locked { .. } | Self::DiskFull { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory)
            }
            _ => false,
        }
    }

    /// Stable reason for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "StateLocked",
            Self::NewerFormat { .. } => "StateNewer",
            Self::DiskFull { .. } => "DiskFull",
            Self::ReadOnly { .. } => "DiskReadOnly",
            Self::Io { .. } => "StateInaccessible",
            Self::Undecodable { .. } => "StateUndecodable",
            Self::SequenceExhausted { .. } => "StateSequenceExhausted",
            Self::Corrupt { .. } => "StateCorrupt",
            Self::Serialize { .. } => "StateNotSerializable",
            Self::SnapshotOutOfRange { .. } => "SnapshotOutOfRange",
            Self::WriteFailed { .. } => "StateWriteFailed",
        }
    }

    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        let path = path.as_ref().to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { action, path, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }
}
