//! Opening a state directory: everything is read and checked before anything is changed.

use std::sync::Mutex;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::active::{Active, replace, temporary_name};
use crate::commit::Commit;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::{EntryKind, Format};
use crate::journal::{Journal, OpenedJournal, Options, Seq, Snapshots};
use crate::line::MAX_SEQUENCE;
use crate::lock::Lock;
use crate::recovery::{RecoveryFinding, SnapshotFallback};
use crate::replay::{Repair, Replay, replay};
use crate::segment::{ACTIVE, Header, JournalHeader, Segment, archived, archived_name};
use crate::snapshot::{self, NEWEST, PREVIOUS, SnapshotFile};

/// Upper bound of the length of a header.
const MAX_HEADER_BYTES: u64 = 4096;

pub(crate) fn open<R, S>(disk: Disk, lock: Lock, options: Options) -> Result<OpenedJournal<R, S>>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    let format = options.format;
    reject_newer_format(&disk, &format)?;
    finish_interrupted(&disk)?;
    let base = Base::<S>::read(&disk, &format)?;
    let segments = required_segments(&disk, base.seq())?;
    let covered =
        base.seq().or_else(|| covers_all_records(&segments)).unwrap_or_else(|| highest_sequence(&segments));
    let decode = |segment: &Segment, line: &crate::line::Line| {
        let version = segment.header.map_or(format.version, |header| header.format);
        match format.decode(version, EntryKind::Record, &segment.bytes[line.json.clone()]) {
            Ok(record) => Ok(Some(record)),
            Err(_) if segment.header.is_none() => Ok(None),
            Err(cause) => {
                let path = disk.path(&segment.name);
                Err(Error::Undecodable { path, seq: line.seq, format: version, cause })
            }
        }
    };
    let replay = replay(covered, &segments, format.version, decode)?;
    // Leaves room for all records that are written from here on.
    if replay.next > MAX_SEQUENCE / 2 {
        return Err(Error::SequenceExhausted { dir: disk.dir().to_owned(), next: replay.next });
    }

    let mut findings = Vec::new();
    base.repair(&disk, covers_all_records(&segments).is_some(), &segments, &mut findings)?;
    repair_segments(&disk, &segments, &replay, &mut findings)?;
    let active = open_active(&disk, &segments, &replay, &format, &base, &mut findings)?;

    let snapshots = Snapshots { newest: base.seq().unwrap_or(0), previous: previous_seq(&disk)? };
    let commit = Commit::default();
    Ok(OpenedJournal {
        snapshot: base.whole.map(|(seq, state)| (Seq(seq), state)),
        records: replay.records.into_iter().map(|(seq, record)| (Seq(seq), record)).collect(),
        findings,
        journal: Journal::assemble(disk, lock, options, Mutex::new(active), commit, Mutex::new(snapshots)),
    })
}

fn is_state(name: &str) -> bool {
    (name.starts_with(ACTIVE) || name.starts_with(NEWEST)) && !name.contains(".damaged-")
}

fn reject_newer_format(disk: &Disk, format: &Format) -> Result<()> {
    for name in disk.names()?.iter().filter(|name| is_state(name)) {
        let found = disk.read_prefix(name, MAX_HEADER_BYTES)?.and_then(|bytes| Header::read(&bytes));
        if let Some(found) = found.map(|header| header.format()).filter(|found| *found > format.version) {
            return Err(Error::NewerFormat { dir: disk.dir().to_owned(), found, known: format.version });
        }
    }
    Ok(())
}

/// Renames temporary files that a crash left behind, or removes them if the target exists.
fn finish_interrupted(disk: &Disk) -> Result<()> {
    let names = disk.names()?;
    for new in names.iter().filter(|name| is_state(name)) {
        let Some(name) = new.strip_suffix(&temporary_name("")) else { continue };
        let bytes = disk.read(new)?.unwrap_or_default();
        let whole = if name.starts_with(NEWEST) {
            snapshot::parse(&bytes).is_some()
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

/// The snapshot to start from.
struct Base<S> {
    whole: Option<(u64, S)>,
    /// Whether the newest one is corrupt.
    damaged: bool,
    /// Whether the previous one is used.
    previous: bool,
}

impl<S: DeserializeOwned> Base<S> {
    fn read(disk: &Disk, format: &Format) -> Result<Self> {
        let damaged = match snapshot::read(disk, NEWEST, format)? {
            SnapshotFile::Intact { seq, state } => {
                return Ok(Self { whole: Some((seq, state)), damaged: false, previous: false });
            }
            SnapshotFile::Damaged => true,
            SnapshotFile::Missing => false,
        };
        let whole = match snapshot::read(disk, PREVIOUS, format)? {
            SnapshotFile::Intact { seq, state } => Some((seq, state)),
            SnapshotFile::Damaged | SnapshotFile::Missing => None,
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
        findings: &mut Vec<RecoveryFinding>,
    ) -> Result<()> {
        let fallback = match (self.seq(), all_records) {
            (Some(seq), _) => SnapshotFallback::Previous(Seq(seq)),
            (None, true) => SnapshotFallback::FullReplay,
            (None, false) => SnapshotFallback::None,
        };
        let is_intact = self.whole.is_some() && !self.previous;
        let never_created = !self.damaged && self.whole.is_none() && (all_records || segments.is_empty());
        if is_intact || never_created {
            return Ok(());
        }
        let kept = self.damaged.then(|| disk.damaged_name(NEWEST));
        if let Some(kept) = &kept {
            disk.rename(NEWEST, kept)?;
        }
        if self.previous {
            disk.rename(PREVIOUS, NEWEST)?;
        }
        disk.sync()?;
        findings.push(RecoveryFinding::NoSnapshot { kept, fallback });
        Ok(())
    }
}

fn previous_seq(disk: &Disk) -> Result<u64> {
    let header = disk.read_prefix(PREVIOUS, MAX_HEADER_BYTES)?.and_then(|bytes| Header::read(&bytes));
    Ok(match header {
        Some(Header::Snapshot { seq, .. }) => seq,
        _ => 0,
    })
}

/// The segments that may contain records after the snapshot, oldest first. Older ones are not read.
fn required_segments(disk: &Disk, covered: Option<u64>) -> Result<Vec<Segment>> {
    let active = Segment::read(disk, ACTIVE)?;
    let mut next_first = active.as_ref().and_then(|active| active.header).map(|header| header.first);
    let mut segments: Vec<Segment> = active.into_iter().collect();
    for first in archived(&disk.names()?).into_iter().rev() {
        let enough = |covered: u64| next_first.is_some_and(|first| first <= covered + 1);
        if covered.is_some_and(enough) {
            break;
        }
        segments.extend(Segment::read(disk, &archived_name(first))?);
        next_first = Some(first);
    }
    // Read from newest to oldest.
    segments.reverse();
    Ok(segments)
}

/// Zero if the segments contain all records ever written.
fn covers_all_records(segments: &[Segment]) -> Option<u64> {
    let first = segments.first().and_then(Segment::first);
    first.is_none_or(|first| first <= 1).then_some(0)
}

/// The last known record; without a snapshot none of them can be used.
fn highest_sequence(segments: &[Segment]) -> u64 {
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
    findings: &mut Vec<RecoveryFinding>,
) -> Result<()> {
    let mut saved = Vec::new();
    for (segment, repair) in segments.iter().zip(&replay.repairs) {
        let file = segment.name.clone();
        match repair {
            Repair::Nothing => {}
            Repair::Truncate { length, bytes, after } => {
                disk.truncate(&file, *length as u64)?;
                findings.push(RecoveryFinding::Torn { file, bytes: *bytes, after: Seq(*after) });
            }
            Repair::Rewrite { header, keep, damage } => {
                let kept = disk.damaged_name(&file);
                let mut bytes = Header::from(*header).encode();
                keep.iter().for_each(|range| bytes.extend_from_slice(&segment.bytes[range.clone()]));
                replace(disk, &file, &bytes, Some(&kept))?;
                findings.extend(damage.iter().map(|damage| RecoveryFinding::Damaged {
                    file: file.clone(),
                    at: damage.at.start,
                    bytes: damage.at.len(),
                    after: Seq(damage.after),
                    loses: damage.loses,
                    kept: kept.clone(),
                }));
                saved.push(kept);
            }
        }
    }
    if let Some(gap) = &replay.gap {
        let (after, next, unused) = (Seq(gap.after), Seq(gap.next), gap.unused);
        findings.push(RecoveryFinding::Gap { after, next, unused, kept: saved });
    }
    Ok(())
}

fn open_active<R, S>(
    disk: &Disk,
    segments: &[Segment],
    replay: &Replay<R>,
    format: &Format,
    base: &Base<S>,
    findings: &mut Vec<RecoveryFinding>,
) -> Result<Active> {
    let fresh = JournalHeader { format: format.version, first: replay.next, after: replay.last };
    let found = segments.last().filter(|segment| segment.name == ACTIVE);
    if found.is_none() {
        if base.whole.is_some() || base.damaged || !segments.is_empty() {
            findings.push(RecoveryFinding::MissingJournal { after: Seq(replay.last) });
        }
        replace(disk, ACTIVE, &Header::from(fresh).encode(), None)?;
    }
    // Read again after the repair.
    let segment = Segment::parse(ACTIVE, disk.read(ACTIVE)?.unwrap_or_default());
    let Some(header) = segment.header.filter(|_| segment.damage.is_empty() && segment.torn.is_none()) else {
        let changed = std::io::Error::other("it was changed concurrently");
        return Err(Error::io("read", disk.path(ACTIVE), changed));
    };
    let mut active = Active::open(disk, &segment, header, replay.next)?;
    // Observed sequence numbers are not reused, and formats are not mixed in one segment.
    if (found.is_some() && replay.next != replay.last + 1) || header.format != format.version {
        active.rotate(disk, fresh)?;
    }
    Ok(active)
}
