//! The open journal: append, compact, look back.

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
use crate::crc::Crc;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::format::Format;
use crate::history::History;
use crate::lock::Lock;
use crate::open;
use crate::segment::{ACTIVE, archived, archived_name};

/// A record's place among all records of a state folder, from 1 on. Numbers grow; after damage some are left out, so that
/// none that someone may have seen means another record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// How a state folder is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The version of records and snapshots.
    pub format: Format,
    /// How many older segments are kept for [`Journal::history`]. Those that the previous snapshot needs stay anyway.
    pub segments: usize,
}

/// What opening found.
#[derive(Debug)]
pub struct Opened<R, S> {
    /// The journal, ready for more.
    pub journal: Journal<R, S>,
    /// The newest snapshot that could be used, and the last record that it covers.
    pub snapshot: Option<(Seq, S)>,
    /// The records that follow it, without a gap.
    pub records: Vec<(Seq, R)>,
    /// What was wrong.
    pub findings: Vec<Finding>,
}

/// The open journal. It can be shared between threads.
#[derive(Debug)]
pub struct Journal<R, S> {
    disk: Disk,
    options: Options,
    active: Mutex<Active>,
    commit: Commit,
    /// Held by the one who compacts.
    snapshots: Mutex<Snapshots>,
    types: PhantomData<fn(R, S)>,
    // Last: the lock is given up when all else is closed.
    _lock: Lock,
}

/// Which records the snapshots on disk cover.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) newest: u64,
    pub(crate) previous: u64,
}

/// How long the segment is that is being written. The host compacts when it finds this too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Records in it.
    pub records: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl<R, S> Journal<R, S>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    /// Opens a state folder, which is made if it is missing, and locks it for as long as the journal lives.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Opened<R, S>> {
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

    /// Records something. It survives the death of this process from here on, though not the machine's.
    pub fn append(&self, record: &R) -> Result<Seq> {
        let json = self.json(record)?;
        let crc = Crc::of(&json);
        self.active().append(&self.disk, &json, crc).map(Seq)
    }

    /// Records something that must outlive the machine: returns once it is on disk. Several threads that call this at the
    /// same time share one sync.
    pub fn append_durable(&self, record: &R) -> Result<Seq> {
        let seq = self.append(record)?;
        self.sync_up_to(seq)?;
        Ok(seq)
    }

    /// Everything recorded so far is on disk.
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
        self.commit.wait(seq.0, sync, |why| Error::Stopped { dir: self.disk.dir().to_owned(), why })
    }

    /// The last record's sequence number; 0 if there never was one.
    pub fn last(&self) -> Seq {
        Seq(self.active().last())
    }

    /// How long the segment is that is being written.
    pub fn size(&self) -> Size {
        let active = self.active();
        Size { records: active.records, bytes: active.length }
    }

    /// All records from this one on that are still kept, snapshots or not, as they stand now.
    pub fn history(&self, from: Seq) -> Result<History<R>> {
        // While the lock is held no segment changes its name.
        let active = self.active();
        let older = archived(&self.disk.names()?);
        let mut files = Vec::new();
        for (index, first) in older.iter().enumerate() {
            let behind = older.get(index + 1).copied().unwrap_or(active.header.first);
            if behind > from.0 {
                let name = archived_name(*first);
                files.push((self.disk.path(&name), self.disk.open_to_read(&name)?, u64::MAX));
            }
        }
        files.push((self.disk.path(ACTIVE), self.disk.open_to_read(ACTIVE)?, active.length));
        Ok(History::new(files, from, self.options.format))
    }

    fn json(&self, value: &impl Serialize) -> Result<Vec<u8>> {
        let words = |source| Error::NotJson { dir: self.disk.dir().to_owned(), source };
        serde_json::to_vec(value).map_err(words)
    }

    fn active(&self) -> MutexGuard<'_, Active> {
        // Its fields change only after the write that they describe, so a panic elsewhere leaves them true.
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { format: Format::first(), segments: 4 }
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
