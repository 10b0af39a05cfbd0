//! Compacting: a snapshot takes the place of the records before it.
//!
//! At every moment either the old snapshot or the new one is in place, with all records that follow it. The previous
//! snapshot and the segments since are kept, in case the newest cannot be read one day.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Journal, Seq, Snapshots};
use crate::active::{Active, unfinished};
use crate::error::{Error, Result};
use crate::segment::{ACTIVE, JournalHeader, archived, archived_name};
use crate::snapshot::{self, NEWEST, PREVIOUS};

impl<R, S> Journal<R, S>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    /// Writes the state as it is after the record `at`; from here on, opening begins with it. Records that other threads
    /// append meanwhile come after it and stay.
    pub fn compact(&self, state: &S, at: Seq) -> Result<()> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = self.last();
        if at.0 < snapshots.newest || at > last {
            let dir = self.disk.dir().to_owned();
            return Err(Error::NoSuchMoment { dir, at: at.0, first: snapshots.newest, last: last.0 });
        }
        self.active().check(&self.disk)?;
        // Other threads append while the two slow steps run: the snapshot's sync, and the journal's.
        let bytes = snapshot::encode(self.options.format.version, at.0, &self.json(state)?);
        let new = unfinished(NEWEST);
        if let Err(error) = self.disk.write_synced(&new, &bytes).and_then(|()| self.sync()) {
            // A half-written file takes space that a full disk needs; if it stays, the next opening removes it.
            let _ = self.disk.remove(&new);
            return Err(error);
        }
        let mut active = self.active();
        let done = self.put_in_place(&mut active, &mut snapshots, at);
        if let Err(error) = &done {
            active.stopped.get_or_insert_with(|| error.to_string());
        }
        done?;
        self.remove_old_segments(&active, &snapshots)
    }

    fn put_in_place(&self, active: &mut Active, snapshots: &mut Snapshots, at: Seq) -> Result<()> {
        if self.disk.path(NEWEST).exists() {
            self.disk.rename(NEWEST, PREVIOUS)?;
        }
        self.disk.rename(&unfinished(NEWEST), NEWEST)?;
        self.disk.sync()?;
        *snapshots = Snapshots { previous: snapshots.newest, newest: at.0 };
        if active.records == 0 {
            return Ok(());
        }
        // What is put aside is never synced again.
        let synced = active.file.sync_data();
        synced.map_err(|source| Error::io("sync", self.disk.path(ACTIVE), source))?;
        self.commit.note(active.last());
        let (first, after) = (active.next, active.last());
        active.rotate(&self.disk, JournalHeader { format: self.options.format.version, first, after })
    }

    /// Removes the oldest segments beyond what is kept, but none that the previous snapshot needs.
    fn remove_old_segments(&self, active: &Active, snapshots: &Snapshots) -> Result<()> {
        let older = archived(&self.disk.names()?);
        let surplus = older.len().saturating_sub(self.options.segments);
        for (index, first) in older.iter().enumerate().take(surplus) {
            let behind = older.get(index + 1).copied().unwrap_or(active.header.first);
            if behind <= snapshots.previous + 1 {
                self.disk.remove(&archived_name(*first))?;
            }
        }
        Ok(())
    }
}
