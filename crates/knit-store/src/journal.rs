//! The open journal: append, compact, history.

mod compact;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::active::Active;
use crate::commit::Commit;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::history::History;
use crate::line;
use crate::lock::Lock;
use crate::open;
use crate::recovery::RecoveryFinding;
use crate::segment::{ACTIVE, archived, archived_name};

/// Space for the JSON of most records: growing a smaller buffer copies it several times.
const RECORD_BYTES: usize = 4 << 10;

/// Sequence number of a record, starting at 1 and increasing. After damage some numbers are skipped, so that a number that
/// may have been observed is never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// Options of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Format of records and snapshots.
    pub format: Format,
    /// Number of archived segments that are retained for [`Journal::history`]. Segments that the previous snapshot needs are
    /// always retained.
    pub retained_segments: usize,
}

/// Result of opening a journal.
#[derive(Debug)]
pub struct OpenedJournal<R, S> {
    /// The journal, ready for appending.
    pub journal: Journal<R, S>,
    /// The newest usable snapshot and the last record that it covers.
    pub snapshot: Option<(Seq, S)>,
    /// The records that follow it, without a gap.
    pub records: Vec<(Seq, R)>,
    /// Damage that was found.
    pub findings: Vec<RecoveryFinding>,
}

/// An open journal. It can be shared between threads.
#[derive(Debug)]
pub struct Journal<R, S> {
    disk: Disk,
    options: Options,
    active: Mutex<Active>,
    commit: Commit,
    /// Locked during compaction.
    snapshots: Mutex<Snapshots>,
    types: PhantomData<fn(R, S)>,
    // Last field: the lock is released after everything else is closed.
    _lock: Lock,
}

/// Last records that the snapshots on disk cover.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) newest: u64,
    pub(crate) previous: u64,
}

/// Size of the active segment, by which the caller decides when to compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSize {
    /// Number of records.
    pub records: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl<R, S> Journal<R, S>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    /// Opens a state directory, creating it if missing, and locks it for the lifetime of the journal.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<OpenedJournal<R, S>> {
        let disk = Disk::open(dir.as_ref())?;
        let lock = Lock::take(&disk)?;
        open::open(disk, lock, options)
    }

    pub(crate) fn assemble(
        disk: Disk,
        lock: Lock,
        options: Options,
        active: Mutex<Active>,
        commit: Commit,
        snapshots: Mutex<Snapshots>,
    ) -> Self {
        Self { disk, options, active, commit, snapshots, types: PhantomData, _lock: lock }
    }

    /// Appends a record. It survives a crash of this process, but not of the machine.
    pub fn append(&self, record: &R) -> Result<Seq> {
        self.append_with_checksum(record).map(|(seq, _)| seq)
    }

    /// Appends a record. Also returns the CRC-32 of its JSON.
    pub fn append_with_checksum(&self, record: &R) -> Result<(Seq, u32)> {
        let json = self.json(record)?;
        let crc = line::checksum(&json);
        let checksum = crc.clone().finalize();
        self.active().append(&self.disk, &json, crc).map(|seq| (Seq(seq), checksum))
    }

    /// Appends a record and returns once it is durable. Concurrent callers share one sync.
    pub fn append_durable(&self, record: &R) -> Result<Seq> {
        let seq = self.append(record)?;
        self.sync_up_to(seq)?;
        Ok(seq)
    }

    /// Makes all records durable.
    pub fn sync(&self) -> Result<()> {
        self.sync_up_to(self.last())
    }

    fn sync_up_to(&self, seq: Seq) -> Result<()> {
        let sync = || {
            let (last, file) = {
                let active = self.active();
                (active.last(), Arc::clone(&active.file))
            };
            let synced = file.sync_data();
            synced.map_err(|source| Error::io("sync", self.disk.path(ACTIVE), source))?;
            Ok(last)
        };
        self.commit.wait(seq.0, sync, |cause| Error::WriteFailed { dir: self.disk.dir().to_owned(), cause })
    }

    /// Sequence number of the last record; 0 if there is none.
    pub fn last(&self) -> Seq {
        Seq(self.active().last())
    }

    /// Size of the active segment.
    pub fn size(&self) -> SegmentSize {
        let active = self.active();
        SegmentSize { records: active.records, bytes: active.length }
    }

    /// All retained records from this one on, including those before the snapshot.
    pub fn history(&self, from: Seq) -> Result<History<R>> {
        // No segment is renamed while the mutex is held.
        let active = self.active();
        let older = archived(&self.disk.names()?);
        let mut files = Vec::new();
        for (index, first) in older.iter().enumerate() {
            let next_first = older.get(index + 1).copied().unwrap_or(active.header.first);
            if next_first > from.0 {
                let name = archived_name(*first);
                files.push((self.disk.path(&name), self.disk.open_to_read(&name)?, u64::MAX));
            }
        }
        files.push((self.disk.path(ACTIVE), self.disk.open_to_read(ACTIVE)?, active.length));
        Ok(History::new(files, from, self.options.format))
    }

    fn json(&self, value: &impl Serialize) -> Result<Vec<u8>> {
        let error = |source| Error::Serialize { dir: self.disk.dir().to_owned(), source };
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        serde_json::to_writer(&mut bytes, value).map_err(error)?;
        Ok(bytes)
    }

    fn active(&self) -> MutexGuard<'_, Active> {
        // Fields change only after the write that they describe, so a panic leaves them consistent.
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { format: Format::initial(), retained_segments: 4 }
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
