//! Damage that was found and repaired while opening. The caller reports it and rebuilds what is lost.

use std::fmt;

use crate::journal::Seq;

/// Damage that was found while opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryFinding {
    /// The last record was only partially written and was truncated.
    Torn {
        /// The file.
        file: String,
        /// Truncated bytes.
        bytes: usize,
        /// The last intact record.
        after: Seq,
    },
    /// Part of a file is corrupt. The file was renamed.
    Damaged {
        /// The file.
        file: String,
        /// Offset of the damage.
        at: usize,
        /// Length of the damage.
        bytes: usize,
        /// The last intact record before it.
        after: Seq,
        /// Whether records were lost that the snapshot does not cover.
        loses: bool,
        /// New name of the file.
        kept: String,
    },
    /// Records are missing, so that later ones cannot be used. Their files were renamed.
    Gap {
        /// The last usable record.
        after: Seq,
        /// The first record after the gap.
        next: Seq,
        /// Number of intact records after the gap.
        unused: usize,
        /// New names of their files.
        kept: Vec<String>,
    },
    /// The active segment is missing, while other files exist.
    MissingJournal {
        /// The last known record.
        after: Seq,
    },
    /// The snapshot is missing or corrupt.
    NoSnapshot {
        /// New name of the corrupt one, if any.
        kept: Option<String>,
        /// What was used in its place.
        fallback: SnapshotFallback,
    },
}

/// Replacement of a snapshot that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotFallback {
    /// The previous snapshot and the records after it: nothing is lost.
    Previous(Seq),
    /// All records from the first one: nothing is lost.
    FullReplay,
    /// Nothing: the state must be rebuilt. Compact as soon as it is: records are usable only after a snapshot.
    None,
}

impl RecoveryFinding {
    /// Whether records may be lost, so that the state must be reconciled with the kernel and the API server.
    pub fn loses_records(&self) -> bool {
        match self {
            Self::Torn { .. } | Self::Gap { .. } | Self::MissingJournal { .. } => true,
            Self::Damaged { loses, .. } => *loses,
            Self::NoSnapshot { fallback, .. } => *fallback == SnapshotFallback::None,
        }
    }
}

impl fmt::Display for RecoveryFinding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { file, bytes, after } => write!(
                out,
                "{file}: the record after sequence {after} was partially written; {bytes} bytes were truncated"
            ),
            Self::Damaged { file, at, bytes, after, loses, kept } => {
                match bytes {
                    0 => write!(out, "{file}: the file is empty; ")?,
                    _ => {
                        write!(
                            out,
                            "{file}: {bytes} bytes at offset {at}, after sequence {after}, are corrupt; "
                        )?;
                    }
                }
                let effect = if *loses { "records were lost" } else { "no needed record was lost" };
                write!(out, "{effect}; the file was renamed to {kept}")
            }
            Self::Gap { after, next, unused, kept } => {
                write!(out, "records between sequence {after} and {next} are missing; ")?;
                write!(out, "{unused} intact records after the gap were not used")?;
                match kept.as_slice() {
                    [] => Ok(()),
                    kept => write!(out, " and are kept in {}", kept.join(", ")),
                }
            }
            Self::MissingJournal { after } => {
                write!(out, "the journal is missing; changes after sequence {after} are lost")
            }
            Self::NoSnapshot { kept, fallback } => {
                match kept {
                    Some(kept) => write!(out, "the snapshot is corrupt and was renamed to {kept}; ")?,
                    None => write!(out, "the snapshot is missing; ")?,
                }
                match fallback {
                    SnapshotFallback::Previous(seq) => {
                        write!(out, "the previous one, of sequence {seq}, was used")
                    }
                    SnapshotFallback::FullReplay => write!(out, "all records were replayed"),
                    SnapshotFallback::None => write!(out, "the state must be rebuilt"),
                }
            }
        }
    }
}
