//! Segments: the journal as files, each with a header that says what it follows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::crc::Crc;
use crate::disk::Disk;
use crate::error::Result;
use crate::line::{self, HEADER, LARGEST, Line};

/// The segment that is written.
pub(crate) const ACTIVE: &str = "journal";

/// The first line of every file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "knit", rename_all = "lowercase")]
pub(crate) enum Header {
    /// Records from `first` on. Nothing was ever recorded between `after` and `first`, or it is known to be lost.
    Journal { format: u32, first: u64, after: u64 },
    /// The state after the record of this sequence number.
    Snapshot { format: u32, seq: u64 },
}

/// A segment as it was found.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// `None` if it cannot be read.
    pub(crate) header: Option<JournalHeader>,
    pub(crate) lines: Vec<Line>,
    pub(crate) damage: Vec<Range<usize>>,
    pub(crate) torn: Option<Range<usize>>,
}

/// What a segment's header says.
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
        line::encode(&mut bytes, HEADER, &json, Crc::of(&json));
        bytes
    }

    /// The header at the beginning of a file, if it is whole.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
        let scan = line::scan(&bytes[..end]);
        let line = scan.lines.first().filter(|line| line.seq == HEADER)?;
        serde_json::from_slice(&bytes[line.json.clone()]).ok().filter(Self::is_possible)
    }

    fn is_possible(&self) -> bool {
        match self {
            Self::Journal { first, after, .. } => *first <= LARGEST && *after <= LARGEST,
            Self::Snapshot { seq, .. } => *seq <= LARGEST,
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
        // A header elsewhere than in front is no record.
        scan.lines.retain(|line| line.seq != HEADER);
        Self { name: name.to_owned(), bytes, header, lines: scan.lines, damage: scan.damage, torn: scan.torn }
    }

    pub(crate) fn read(disk: &Disk, name: &str) -> Result<Option<Self>> {
        Ok(disk.read(name)?.map(|bytes| Self::parse(name, bytes)))
    }

    /// The first sequence number that it holds or would hold.
    pub(crate) fn first(&self) -> Option<u64> {
        self.header.map(|header| header.first).or_else(|| self.lines.first().map(|line| line.seq))
    }
}

/// The name of an older segment.
pub(crate) fn archived_name(first: u64) -> String {
    format!("{ACTIVE}.{first}")
}

/// The first sequence numbers of the older segments, in order.
pub(crate) fn archived(names: &[String]) -> Vec<u64> {
    let number = |name: &String| name.strip_prefix("journal.")?.parse().ok();
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}
