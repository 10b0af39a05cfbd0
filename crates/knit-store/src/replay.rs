//! Replay: which records follow a snapshot, and how the segments must be repaired.
//!
//! A record is used if its sequence number follows the last one. So damage in records that the snapshot covers is harmless,
//! and records after a gap are never used.

use std::ops::Range;

use crate::error::Result;
use crate::line::Line;
use crate::segment::{JournalHeader, Segment};

/// `1 00000000 0` and a newline; bounds the number of records in damaged bytes.
const MIN_LINE_BYTES: usize = 13;

/// Contents of the segments after a snapshot.
#[derive(Debug)]
pub(crate) struct Replay<R> {
    /// The following records, without a gap.
    pub(crate) records: Vec<(u64, R)>,
    /// The last of them, or the last one that the snapshot covers.
    pub(crate) last: u64,
    /// The next sequence number: greater than any that was observed or that damaged bytes may have contained.
    pub(crate) next: u64,
    /// Missing records.
    pub(crate) gap: Option<Gap>,
    /// Repair of each segment.
    pub(crate) repairs: Vec<Repair>,
}

/// Missing records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) after: u64,
    pub(crate) next: u64,
    pub(crate) unused: usize,
}

/// Repair of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// None: the segment is intact.
    Nothing,
    /// Truncate the partial last line.
    Truncate { length: usize, bytes: usize, after: u64 },
    /// Rename the segment and write these parts to a new one.
    Rewrite { header: JournalHeader, keep: Vec<Range<usize>>, damage: Vec<Damage> },
}

/// Corrupt bytes of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) at: Range<usize>,
    pub(crate) after: u64,
    pub(crate) loses: bool,
}

/// Replays the segments, oldest first. `covered` is the sequence number of the snapshot, `known` the current format.
///
/// `decode` fails on an intact record that cannot be decoded, unless the header with its format is lost: such a record
/// (`None`) cannot be used.
pub(crate) fn replay<R>(
    covered: u64,
    segments: &[Segment],
    known: u32,
    decode: impl Fn(&Segment, &Line) -> Result<Option<R>>,
) -> Result<Replay<R>> {
    let mut replay = Replay { records: Vec::new(), last: covered, next: 0, gap: None, repairs: Vec::new() };
    let mut highest = covered;
    for (index, segment) in segments.iter().enumerate() {
        if let Some(header) = segment.header {
            highest = highest.max(header.after).max(header.first.saturating_sub(1));
            if header.after > replay.last {
                replay.missing_before(header.after + 1);
            } else if replay.gap.is_none() && replay.last < header.first {
                replay.last = header.first.saturating_sub(1);
            }
        }
        let mut kept = Vec::new();
        for line in &segment.lines {
            highest = highest.max(line.seq);
            if line.seq <= covered || replay.take(segment, line, &decode)? {
                kept.push(line);
            }
        }
        let next_first = segments[index + 1..].iter().find_map(Segment::first);
        let fresh = JournalHeader { format: known, first: replay.last + 1, after: replay.last };
        let repair = repair(segment, &kept, covered, next_first, fresh);
        if let Repair::Rewrite { damage, .. } = &repair {
            for damage in damage.iter().filter(|damage| damage.loses) {
                let records = (damage.at.len() / MIN_LINE_BYTES) as u64;
                highest = highest.max(replay.last.max(damage.after) + records);
            }
        }
        replay.repairs.push(repair);
    }
    replay.next = highest.max(replay.last) + 1;
    Ok(replay)
}

impl<R> Replay<R> {
    fn missing_before(&mut self, next: u64) {
        let after = self.last;
        self.gap.get_or_insert(Gap { after, next, unused: 0 });
    }

    fn take(
        &mut self,
        segment: &Segment,
        line: &Line,
        decode: impl Fn(&Segment, &Line) -> Result<Option<R>>,
    ) -> Result<bool> {
        if self.gap.is_none() {
            if line.seq == self.last + 1
                && let Some(record) = decode(segment, line)?
            {
                self.records.push((line.seq, record));
                self.last = line.seq;
                return Ok(true);
            }
            self.missing_before(line.seq);
        }
        if let Some(gap) = &mut self.gap {
            gap.unused += 1;
        }
        Ok(false)
    }
}

/// `next_first` is the first record of the next segment, `fresh` a header for a segment without header and records.
fn repair(
    segment: &Segment,
    kept: &[&Line],
    covered: u64,
    next_first: Option<u64>,
    fresh: JournalHeader,
) -> Repair {
    // The next open must not report lost records again.
    let header =
        segment.header.map(|header| JournalHeader { after: header.after.min(fresh.after), ..header });
    let is_unchanged = kept.len() == segment.lines.len() && header == segment.header;
    let before = |at: usize| {
        let lines = segment.lines.iter().take_while(|line| line.whole.start < at);
        lines.last().map_or_else(|| segment.first().unwrap_or(1).saturating_sub(1), |line| line.seq)
    };
    match (header, segment.damage.is_empty(), &segment.torn) {
        (Some(_), true, None) if is_unchanged => Repair::Nothing,
        (Some(_), true, Some(torn)) if is_unchanged => {
            Repair::Truncate { length: torn.start, bytes: torn.len(), after: before(torn.start) }
        }
        (header, _, torn) => {
            // An empty file is damaged although it has no corrupt bytes.
            let empty = segment.bytes.is_empty().then_some(0..0);
            let damage = segment.damage.iter().chain(torn).chain(&empty).map(|at| {
                let after = before(at.start);
                let next = segment.lines.iter().find(|line| line.whole.start > at.start);
                let next = next.map(|line| line.seq).or(next_first);
                let is_harmless = |next: u64| next <= covered + 1 || next == after + 1;
                Damage { at: at.clone(), after, loses: !next.is_some_and(is_harmless) }
            });
            let from = |line: &&Line| JournalHeader { first: line.seq, after: line.seq - 1, ..fresh };
            Repair::Rewrite {
                header: header.or_else(|| kept.first().map(from)).unwrap_or(fresh),
                keep: kept.iter().map(|line| line.whole.clone()).collect(),
                damage: damage.collect(),
            }
        }
    }
}
