//! What opening found wrong. Opening goes on; the caller shows these, and rebuilds what they say is lost.

use std::fmt;

use crate::journal::Seq;

/// Something that is not as the last writer meant it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The last record was not written to its end; it was cut.
    Torn {
        /// The file.
        file: String,
        /// How many bytes were cut.
        bytes: usize,
        /// The last whole record.
        after: Seq,
    },
    /// Part of a file cannot be read. The file was kept under a new name.
    Damaged {
        /// The file.
        file: String,
        /// Where the damage begins.
        at: usize,
        /// How long it is.
        bytes: usize,
        /// The last whole record before it.
        after: Seq,
        /// Whether records were lost that the snapshot does not cover.
        loses: bool,
        /// Where the file is kept.
        kept: String,
    },
    /// Records are missing, so that later ones cannot be used. The files that hold these are kept under new names.
    Gap {
        /// The last record that was used.
        after: Seq,
        /// The first that follows the gap.
        next: Seq,
        /// How many readable records follow it.
        unused: usize,
        /// Where their files are kept.
        kept: Vec<String>,
    },
    /// The journal is not there, though the rest of the state is.
    MissingJournal {
        /// The last record that is known.
        after: Seq,
    },
    /// The snapshot is not there, or cannot be read.
    NoSnapshot {
        /// Where the damaged one is kept, if there is one.
        kept: Option<String>,
        /// What was used in its place.
        instead: Instead,
    },
}

/// What stands in for a snapshot that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    /// The previous one, and the records that follow it: nothing is lost.
    Previous(Seq),
    /// All records from the first on: nothing is lost.
    AllRecords,
    /// Nothing: the state must be built anew. Compact as soon as it is: records count only after a snapshot.
    Nothing,
}

impl Finding {
    /// Whether part of the state may be lost, so that it must be compared with the kernel and the API.
    pub fn loses(&self) -> bool {
        match self {
            Self::Torn { .. } | Self::Gap { .. } | Self::MissingJournal { .. } => true,
            Self::Damaged { loses, .. } => *loses,
            Self::NoSnapshot { instead, .. } => *instead == Instead::Nothing,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { file, bytes, after } => write!(
                out,
                "{file}: the record after sequence {after} was not written to its end; its {bytes} bytes were cut"
            ),
            Self::Damaged { file, at, bytes, after, loses, kept } => {
                match bytes {
                    0 => write!(out, "{file}: the file is empty; ")?,
                    _ => {
                        write!(
                            out,
                            "{file}: {bytes} bytes at byte {at}, after sequence {after}, are damaged; "
                        )?;
                    }
                }
                let fate = if *loses { "records were lost" } else { "no record that counts was lost" };
                write!(out, "{fate}; the file is kept as {kept}")
            }
            Self::Gap { after, next, unused, kept } => {
                write!(out, "records between sequence {after} and {next} are missing; ")?;
                write!(out, "{unused} readable records after them were not used")?;
                match kept.as_slice() {
                    [] => Ok(()),
                    kept => write!(out, " and are kept in {}", kept.join(", ")),
                }
            }
            Self::MissingJournal { after } => {
                write!(out, "the journal is missing; what changed after sequence {after} is lost")
            }
            Self::NoSnapshot { kept, instead } => {
                match kept {
                    Some(kept) => write!(out, "the snapshot is damaged and is kept as {kept}; ")?,
                    None => write!(out, "the snapshot is missing; ")?,
                }
                match instead {
                    Instead::Previous(seq) => write!(out, "the one before, of sequence {seq}, was used"),
                    Instead::AllRecords => write!(out, "all records from the first on were used"),
                    Instead::Nothing => write!(out, "the state must be built anew"),
                }
            }
        }
    }
}
