//! Opening a state folder: read all, judge, and only then change anything.

use std::sync::Mutex;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::active::{Active, replace, unfinished};
use crate::commit::Commit;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::finding::{Finding, Instead};
use crate::format::{Format, Part};
use crate::journal::{Journal, Opened, Options, Seq, Snapshots};
use crate::line::LARGEST;
use crate::lock::Lock;
use crate::replay::{Repair, Replay, replay};
use crate::segment::{ACTIVE, Header, JournalHeader, Segment, archived, archived_name};
use crate::snapshot::{self, Found, NEWEST, PREVIOUS};

/// A header is shorter than this.
const HEAD: u64 = 4096;

pub(crate) fn open<R, S>(disk: Disk, lock: Lock, options: Options) -> Result<Opened<R, S>>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    let format = options.format;
    refuse_newer(&disk, &format)?;
    finish_interrupted(&disk)?;
    let base = Base::<S>::read(&disk, &format)?;
    let segments = needed(&disk, base.seq())?;
    let covered = base.seq().or_else(|| from_the_first(&segments)).unwrap_or_else(|| highest(&segments));
    let decode = |segment: &Segment, line: &crate::line::Line| {
        let version = segment.header.map_or(format.version, |header| header.format);
        match format.decode(version, Part::Record, &segment.bytes[line.json.clone()]) {
            Ok(record) => Ok(Some(record)),
            Err(_) if segment.header.is_none() => Ok(None),
            Err(why) => {
                let path = disk.path(&segment.name);
                Err(Error::NotUnderstood { path, seq: line.seq, format: version, why })
            }
        }
    };
    let replay = replay(covered, &segments, format.version, decode)?;
    // Far from the end, so that what is written from here on can be read.
    if replay.next > LARGEST / 2 {
        return Err(Error::NumbersUsedUp { dir: disk.dir().to_owned(), next: replay.next });
    }

    let mut findings = Vec::new();
    base.repair(&disk, from_the_first(&segments).is_some(), &segments, &mut findings)?;
    repair_segments(&disk, &segments, &replay, &mut findings)?;
    let active = open_active(&disk, &segments, &replay, &format, &base, &mut findings)?;

    let snapshots = Snapshots { newest: base.seq().unwrap_or(0), previous: previous_seq(&disk)? };
    let commit = Commit::default();
    Ok(Opened {
        snapshot: base.whole.map(|(seq, state)| (Seq(seq), state)),
        records: replay.records.into_iter().map(|(seq, record)| (Seq(seq), record)).collect(),
        findings,
        journal: Journal::assemble(disk, lock, options, Mutex::new(active), commit, Mutex::new(snapshots)),
    })
}

fn is_state(name: &str) -> bool {
    (name.starts_with(ACTIVE) || name.starts_with(NEWEST)) && !name.contains(".damaged-")
}

fn refuse_newer(disk: &Disk, format: &Format) -> Result<()> {
    for name in disk.names()?.iter().filter(|name| is_state(name)) {
        let found = disk.read_some(name, HEAD)?.and_then(|bytes| Header::read(&bytes));
        if let Some(found) = found.map(|header| header.format()).filter(|found| *found > format.version) {
            return Err(Error::Newer { dir: disk.dir().to_owned(), found, known: format.version });
        }
    }
    Ok(())
}

/// Puts files in place that a crash left beside their place, or removes them if their place is taken.
fn finish_interrupted(disk: &Disk) -> Result<()> {
    let names = disk.names()?;
    for new in names.iter().filter(|name| is_state(name)) {
        let Some(name) = new.strip_suffix(&unfinished("")) else { continue };
        let bytes = disk.read(new)?.unwrap_or_default();
        let whole = if name.starts_with(NEWEST) {
            snapshot::whole(&bytes).is_some()
        } else {
            let segment = Segment::parse(name, bytes);
            segment.header.is_some() && segment.damage.is_empty() && segment.torn.is_none()
        };
        if whole && !names.iter().any(|other| other == name) {
            disk.rename(new, name)?;
        } else {
            disk.remove(new)?;
        }
        disk.sync()?;
    }
    Ok(())
}

/// The snapshot to begin from.
struct Base<S> {
    whole: Option<(u64, S)>,
    /// Whether the newest is there and cannot be read.
    damaged: bool,
    /// Whether the one before stands in.
    previous: bool,
}

impl<S: DeserializeOwned> Base<S> {
    fn read(disk: &Disk, format: &Format) -> Result<Self> {
        let damaged = match snapshot::read(disk, NEWEST, format)? {
            Found::Whole { seq, state } => {
                return Ok(Self { whole: Some((seq, state)), damaged: false, previous: false });
            }
            Found::Damaged => true,
            Found::Missing => false,
        };
        let whole = match snapshot::read(disk, PREVIOUS, format)? {
            Found::Whole { seq, state } => Some((seq, state)),
            Found::Damaged | Found::Missing => None,
        };
        Ok(Self { previous: whole.is_some(), whole, damaged })
    }

    fn seq(&self) -> Option<u64> {
        self.whole.as_ref().map(|(seq, _)| *seq)
    }

    fn repair(
        &self,
        disk: &Disk,
        all_records: bool,
        segments: &[Segment],
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let instead = match (self.seq(), all_records) {
            (Some(seq), _) => Instead::Previous(Seq(seq)),
            (None, true) => Instead::AllRecords,
            (None, false) => Instead::Nothing,
        };
        let usual = self.whole.is_some() && !self.previous;
        let never_made = !self.damaged && self.whole.is_none() && (all_records || segments.is_empty());
        if usual || never_made {
            return Ok(());
        }
        let kept = self.damaged.then(|| disk.name_aside(NEWEST));
        if let Some(kept) = &kept {
            disk.rename(NEWEST, kept)?;
        }
        if self.previous {
            disk.rename(PREVIOUS, NEWEST)?;
        }
        disk.sync()?;
        findings.push(Finding::NoSnapshot { kept, instead });
        Ok(())
    }
}

fn previous_seq(disk: &Disk) -> Result<u64> {
    let header = disk.read_some(PREVIOUS, HEAD)?.and_then(|bytes| Header::read(&bytes));
    Ok(match header {
        Some(Header::Snapshot { seq, .. }) => seq,
        _ => 0,
    })
}

/// The segments that may hold records after the snapshot, oldest first. The others are history and cost nothing here.
fn needed(disk: &Disk, covered: Option<u64>) -> Result<Vec<Segment>> {
    let active = Segment::read(disk, ACTIVE)?;
    let mut behind = active.as_ref().and_then(|active| active.header).map(|header| header.first);
    let mut segments: Vec<Segment> = active.into_iter().collect();
    for first in archived(&disk.names()?).into_iter().rev() {
        let enough = |covered: u64| behind.is_some_and(|behind| behind <= covered + 1);
        if covered.is_some_and(enough) {
            break;
        }
        segments.extend(Segment::read(disk, &archived_name(first))?);
        behind = Some(first);
    }
    // The active one was read first and is the newest; the others followed from newer to older.
    segments.reverse();
    Ok(segments)
}

/// Zero if the segments hold all that was ever recorded.
fn from_the_first(segments: &[Segment]) -> Option<u64> {
    let first = segments.first().and_then(Segment::first);
    first.is_none_or(|first| first <= 1).then_some(0)
}

/// The last record that is known of; without a snapshot to begin from, none of them can be used.
fn highest(segments: &[Segment]) -> u64 {
    let last = |segment: &Segment| {
        let header = segment.header.map_or(0, |header| header.first.saturating_sub(1));
        segment.lines.iter().map(|line| line.seq).max().unwrap_or(0).max(header)
    };
    segments.iter().map(last).max().unwrap_or(0)
}

fn repair_segments<R>(
    disk: &Disk,
    segments: &[Segment],
    replay: &Replay<R>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let mut asides = Vec::new();
    for (segment, repair) in segments.iter().zip(&replay.repairs) {
        let file = segment.name.clone();
        match repair {
            Repair::Nothing => {}
            Repair::Cut { length, bytes, after } => {
                disk.cut(&file, *length as u64)?;
                findings.push(Finding::Torn { file, bytes: *bytes, after: Seq(*after) });
            }
            Repair::Rewrite { header, keep, damage } => {
                let kept = disk.name_aside(&file);
                let mut bytes = Header::from(*header).encode();
                keep.iter().for_each(|range| bytes.extend_from_slice(&segment.bytes[range.clone()]));
                replace(disk, &file, &bytes, Some(&kept))?;
                findings.extend(damage.iter().map(|damage| Finding::Damaged {
                    file: file.clone(),
                    at: damage.at.start,
                    bytes: damage.at.len(),
                    after: Seq(damage.after),
                    loses: damage.loses,
                    kept: kept.clone(),
                }));
                asides.push(kept);
            }
        }
    }
    if let Some(gap) = &replay.gap {
        let (after, next, unused) = (Seq(gap.after), Seq(gap.next), gap.unused);
        findings.push(Finding::Gap { after, next, unused, kept: asides });
    }
    Ok(())
}

fn open_active<R, S>(
    disk: &Disk,
    segments: &[Segment],
    replay: &Replay<R>,
    format: &Format,
    base: &Base<S>,
    findings: &mut Vec<Finding>,
) -> Result<Active> {
    let fresh = JournalHeader { format: format.version, first: replay.next, after: replay.last };
    let found = segments.last().filter(|segment| segment.name == ACTIVE);
    if found.is_none() {
        if base.whole.is_some() || base.damaged || !segments.is_empty() {
            findings.push(Finding::MissingJournal { after: Seq(replay.last) });
        }
        replace(disk, ACTIVE, &Header::from(fresh).encode(), None)?;
    }
    // Read again: what counts is what is on disk now.
    let segment = Segment::parse(ACTIVE, disk.read(ACTIVE)?.unwrap_or_default());
    let Some(header) = segment.header.filter(|_| segment.damage.is_empty() && segment.torn.is_none()) else {
        let changed = std::io::Error::other("it changed while it was being opened");
        return Err(Error::io("read", disk.path(ACTIVE), changed));
    };
    let mut active = Active::open(disk, &segment, header, replay.next)?;
    // Sequence numbers that were seen are not used again, and lines of two formats are not mixed in one segment.
    if (found.is_some() && replay.next != replay.last + 1) || header.format != format.version {
        active.rotate(disk, fresh)?;
    }
    Ok(active)
}
