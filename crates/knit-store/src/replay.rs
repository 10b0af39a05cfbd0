//! Which records follow a snapshot, and what must be done to the files so that the next opening finds them in order.
//!
//! Sequence numbers decide: a record counts if it follows the last one. So damage in what the snapshot covers costs
//! nothing, and what follows a gap is never used.

use std::ops::Range;

use crate::error::Result;
use crate::line::Line;
use crate::segment::{JournalHeader, Segment};

/// `1 00000000 0` and an end of line: damaged bytes held at most so many records.
const SHORTEST_LINE: usize = 13;

/// What the segments hold beyond a snapshot.
#[derive(Debug)]
pub(crate) struct Replay<R> {
    /// The records that follow, without a gap.
    pub(crate) records: Vec<(u64, R)>,
    /// The last of them, or what the snapshot covers.
    pub(crate) last: u64,
    /// The next sequence number: greater than any that was seen, used or not, or that damaged bytes may have held.
    pub(crate) next: u64,
    /// Where records are missing, and how many cannot be used because of it.
    pub(crate) gap: Option<Gap>,
    /// What to do to each segment.
    pub(crate) repairs: Vec<Repair>,
}

/// Missing records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) after: u64,
    pub(crate) next: u64,
    pub(crate) unused: usize,
}

/// What to do to a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// It is as it should be.
    Nothing,
    /// Its last line is not whole and goes.
    Cut { length: usize, bytes: usize, after: u64 },
    /// It is kept under another name, and these parts of it are written anew.
    Rewrite { header: JournalHeader, keep: Vec<Range<usize>>, damage: Vec<Damage> },
}

/// Bytes of a segment that are no lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) at: Range<usize>,
    pub(crate) after: u64,
    pub(crate) loses: bool,
}

/// Walks the segments, oldest first. `covered` is the snapshot's sequence number, `known` the format of this program.
///
/// `decode` fails for good on a record that is whole but not understood, unless the header that says its format is gone:
/// such a record (`None`) cannot be used.
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
        let behind = segments[index + 1..].iter().find_map(Segment::first);
        let fresh = JournalHeader { format: known, first: replay.last + 1, after: replay.last };
        let repair = repair(segment, &kept, covered, behind, fresh);
        if let Repair::Rewrite { damage, .. } = &repair {
            for damage in damage.iter().filter(|damage| damage.loses) {
                let records = (damage.at.len() / SHORTEST_LINE) as u64;
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

/// `behind` is the first record of the next segment, `fresh` a header for a segment that has neither header nor records.
fn repair(
    segment: &Segment,
    kept: &[&Line],
    covered: u64,
    behind: Option<u64>,
    fresh: JournalHeader,
) -> Repair {
    // A segment that follows records which are gone shall not report them missing again at the next opening.
    let header =
        segment.header.map(|header| JournalHeader { after: header.after.min(fresh.after), ..header });
    let as_it_was = kept.len() == segment.lines.len() && header == segment.header;
    let before = |at: usize| {
        let lines = segment.lines.iter().take_while(|line| line.whole.start < at);
        lines.last().map_or_else(|| segment.first().unwrap_or(1).saturating_sub(1), |line| line.seq)
    };
    match (header, segment.damage.is_empty(), &segment.torn) {
        (Some(_), true, None) if as_it_was => Repair::Nothing,
        (Some(_), true, Some(torn)) if as_it_was => {
            Repair::Cut { length: torn.start, bytes: torn.len(), after: before(torn.start) }
        }
        (header, _, torn) => {
            // An empty file has no bytes that could be wrong, and is wrong all the same.
            let empty = segment.bytes.is_empty().then_some(0..0);
            let damage = segment.damage.iter().chain(torn).chain(&empty).map(|at| {
                let after = before(at.start);
                let next = segment.lines.iter().find(|line| line.whole.start > at.start);
                let next = next.map(|line| line.seq).or(behind);
                let harmless = |next: u64| next <= covered + 1 || next == after + 1;
                Damage { at: at.clone(), after, loses: !next.is_some_and(harmless) }
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
