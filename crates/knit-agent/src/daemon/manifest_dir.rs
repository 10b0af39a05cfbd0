//! A watched directory with objects: its objects are applied, and deleted when they are removed from it.
//!
//! Each object records its file, so that objects from `knit apply` are left alone. A file that contains such an object takes it over.
//! Changes of the directory cannot be undone with `knit undo`: the directory is the source of truth.

use std::path::PathBuf;
use std::time::SystemTime;

use knit_engine::{Event, State};

use crate::standalone::{ManifestInput, Prepared, prepare, read_files};

/// The directory, and its fingerprint when it was read last.
pub(super) struct ManifestDir {
    path: PathBuf,
    last_fingerprint: Option<Fingerprint>,
}

/// Names, sizes and modification times of all files.
type Fingerprint = Vec<(PathBuf, u64, Option<SystemTime>)>;

impl ManifestDir {
    pub(super) fn new(path: PathBuf) -> Self {
        // Messages name its files, to readers in other working directories.
        Self { path: std::path::absolute(&path).unwrap_or(path), last_fingerprint: None }
    }

    /// The events that follow from a change of the directory. An invalid directory changes nothing; the error is logged.
    pub(super) fn changes(&mut self, state: &State) -> Option<Vec<Event>> {
        let fingerprint = self.fingerprint();
        if self.last_fingerprint.as_ref() == Some(&fingerprint) {
            return None;
        }
        self.last_fingerprint = Some(fingerprint);
        let folder = self.path.display();
        let inputs = |(file, objects): (String, Vec<knit_crds::Object>)| {
            objects.into_iter().map(move |object| ManifestInput { object, file: Some(file.clone()) })
        };
        let read = read_files(&self.path);
        let prepared = read.and_then(|files| prepare(state, files.into_iter().flat_map(inputs).collect()));
        let Prepared { changes, mut events, .. } = match prepared {
            Ok(prepared) => prepared,
            Err(why) => {
                tracing::error!(%folder, error = %why, "cannot apply the objects of the directory; the previous ones stay");
                return None;
            }
        };
        let is_here = |key: &knit_engine::ObjectKey| changes.iter().any(|change| change.key == *key);
        let from_files = state.objects.iter().filter(|(_, object)| object.file.is_some());
        let gone = from_files.filter(|(key, _)| !is_here(key));
        events.extend(gone.map(|(key, _)| Event::ObjectDeleted(key.clone())));
        if events.is_empty() {
            return None;
        }
        for change in &changes {
            for warning in &change.warnings {
                tracing::warn!(object = %change.key, "{warning}");
            }
        }
        tracing::info!(%folder, changes = events.len(), "objects changed");
        Some(events)
    }

    fn fingerprint(&self) -> Fingerprint {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut fingerprint: Fingerprint = entries
            .filter_map(|entry| {
                // A mounted ConfigMap consists of symbolic links: their targets count.
                let found = std::fs::metadata(entry.path()).ok()?;
                Some((entry.path(), found.len(), found.modified().ok()))
            })
            .collect();
        fingerprint.sort();
        fingerprint
    }
}
