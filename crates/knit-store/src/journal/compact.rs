//! Compaction: a snapshot replaces the records before it.
//!
//! At any time either the old or the new snapshot is in place, with all records after it. The previous snapshot and the
//! segments since are kept, in case the newest becomes unreadable.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Journal, Seq, Snapshots};
use crate::active::{Active, temporary_name};
use crate::error::{Error, Result};
use crate::segment::{ACTIVE, JournalHeader, archived, archived_name};
use crate::snapshot::{self, NEWEST, PREVIOUS};

impl<R, S> Journal<R, S>
where
    R: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    /// Writes a snapshot of the state after the record `at`, from which the next open starts. Records that other threads
    /// append meanwhile are kept.
    pub fn compact(&self, state: &S, at: Seq) -> Result<()> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = self.last();
        if at.0 < snapshots.newest || at > last {
            let dir = self.disk.dir().to_owned();
            return Err(Error::SnapshotOutOfRange { dir, at: at.0, first: snapshots.newest, last: last.0 });
        }
        self.active().check(&self.disk)?;
        // Other threads can append during the two slow steps: syncing the snapshot and the journal.
        let bytes = snapshot::encode(self.options.format.version, at.0, &self.json(state)?);
        let new = temporary_name(NEWEST);
        if let Err(error) = self.disk.write_synced(&new, &bytes).and_then(|()| self.sync()) {
            // A partial file wastes space on a full disk. If the removal fails, the next open removes it.
            let _ = self.disk.remove(&new);
            return Err(error);
        }
        let mut active = self.active();
        let done = self.put_in_place(&mut active, &mut snapshots, at);
        if let Err(error) = &done {
            active.failed.get_or_insert_with(|| error.to_string());
        }
        done?;
        self.remove_old_segments(&active, &snapshots)
    }

    fn put_in_place(&self, active: &mut Active, snapshots: &mut Snapshots, at: Seq) -> Result<()> {
        if self.disk.path(NEWEST).exists() {
            self.disk.rename(NEWEST, PREVIOUS)?;
        }
        self.disk.rename(&temporary_name(NEWEST), NEWEST)?;
        self.disk.sync()?;
        *snapshots = Snapshots { previous: snapshots.newest, newest: at.0 };
        if active.records == 0 {
            return Ok(());
        }
        // An archived segment is never synced again.
        let synced = active.file.sync_data();
        synced.map_err(|source| Error::io("sync", self.disk.path(ACTIVE), source))?;
        self.commit.mark_durable(active.last());
        let (first, after) = (active.next, active.last());
        active.rotate(&self.disk, JournalHeader { format: self.options.format.version, first, after })
    }

    /// Removes the oldest segments beyond the retained ones, but none that the previous snapshot needs.
    fn remove_old_segments(&self, active: &Active, snapshots: &Snapshots) -> Result<()> {
        let older = archived(&self.disk.names()?);
        let surplus = older.len().saturating_sub(self.options.retained_segments);
        for (index, first) in older.iter().enumerate().take(surplus) {
            let next_first = older.get(index + 1).copied().unwrap_or(active.header.first);
            if next_first <= snapshots.previous + 1 {
                self.disk.remove(&archived_name(*first))?;
            }
        }
        Ok(())
    }
}
