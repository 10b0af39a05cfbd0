//! Segments: the files of the journal, each with a header.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::disk::Disk;
use crate::error::Result;
use crate::line::{self, HEADER, Line, MAX_SEQUENCE};

/// The active segment.
pub(crate) const ACTIVE: &str = "journal";

/// The first line of every file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "knit", rename_all = "lowercase")]
pub(crate) enum Header {
    /// Records from `first` on. Records between `after` and `first` were never written or are known to be lost.
    Journal { format: u32, first: u64, after: u64 },
    /// The state after the record with this sequence number.
    Snapshot { format: u32, seq: u64 },
}

/// A segment as read from disk.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// `None` if it is corrupt.
    pub(crate) header: Option<JournalHeader>,
    pub(crate) lines: Vec<Line>,
    pub(crate) damage: Vec<Range<usize>>,
    pub(crate) torn: Option<Range<usize>>,
}

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalHeader {
    pub(crate) format: u32,
    pub(crate) first: u64,
    pub(crate) after: u64,
}

impl Header {
    pub(crate) fn format(&self) -> u32 {
        match self {
            Self::Journal { format, .. } | Self::Snapshot { format, .. } => *format,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("a header is plain JSON");
        let mut bytes = Vec::new();
        line::encode(&mut bytes, HEADER, &json, line::checksum(&json));
        bytes
    }

    /// The header of a file, if it is intact.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
        let scan = line::scan(&bytes[..end]);
        let line = scan.lines.first().filter(|line| line.seq == HEADER)?;
        serde_json::from_slice(&bytes[line.json.clone()]).ok().filter(Self::is_possible)
    }

    fn is_possible(&self) -> bool {
        match self {
            Self::Journal { first, after, .. } => *first <= MAX_SEQUENCE && *after <= MAX_SEQUENCE,
            Self::Snapshot { seq, .. } => *seq <= MAX_SEQUENCE,
        }
    }
}

impl From<JournalHeader> for Header {
    fn from(JournalHeader { format, first, after }: JournalHeader) -> Self {
        Self::Journal { format, first, after }
    }
}

impl Segment {
    pub(crate) fn parse(name: &str, bytes: Vec<u8>) -> Self {
        let mut scan = line::scan(&bytes);
        let header = match Header::read(&bytes) {
            Some(Header::Journal { format, first, after }) => Some(JournalHeader { format, first, after }),
            _ => None,
        };
        // A header that is not the first line is not a record.
        scan.lines.retain(|line| line.seq != HEADER);
        Self { name: name.to_owned(), bytes, header, lines: scan.lines, damage: scan.damage, torn: scan.torn }
    }

    pub(crate) fn read(disk: &Disk, name: &str) -> Result<Option<Self>> {
        Ok(disk.read(name)?.map(|bytes| Self::parse(name, bytes)))
    }

    /// The first sequence number that it contains or would contain.
    pub(crate) fn first(&self) -> Option<u64> {
        self.header.map(|header| header.first).or_else(|| self.lines.first().map(|line| line.seq))
    }
}

/// Name of an archived segment.
pub(crate) fn archived_name(first: u64) -> String {
    format!("{ACTIVE}.{first}")
}

/// First sequence numbers of the archived segments, in order.
pub(crate) fn archived(names: &[String]) -> Vec<u64> {
    let number = |name: &String| name.strip_prefix("journal.")?.parse().ok();
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}
