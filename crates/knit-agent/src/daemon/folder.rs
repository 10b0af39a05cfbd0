//! A folder with objects that is watched: what is in it is applied, what is no longer in it is deleted.
//!
//! Each object remembers its file, so that what a person applied by hand is left alone. A file that has such an object takes
//! it over. Nothing of this can be undone: the folder says what there is.

use std::path::PathBuf;
use std::time::SystemTime;

use knit_engine::{Event, State};

use crate::standalone::{Asked, Prepared, prepare, read_files};

/// The folder, and how it looked when it was read last.
pub(super) struct Folder {
    path: PathBuf,
    seen: Option<Look>,
}

/// Names, sizes and times of the files: enough to see that something changed.
type Look = Vec<(PathBuf, u64, Option<SystemTime>)>;

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        // Messages name its files, to people who stand elsewhere.
        Self { path: std::path::absolute(&path).unwrap_or(path), seen: None }
    }

    /// What has to change, if the folder has. A folder with a mistake in it changes nothing: the mistake is logged.
    pub(super) fn changes(&mut self, state: &State) -> Option<Vec<Event>> {
        let look = self.look();
        if self.seen.as_ref() == Some(&look) {
            return None;
        }
        self.seen = Some(look);
        let folder = self.path.display();
        let asked = |(file, objects): (String, Vec<knit_crds::Object>)| {
            objects.into_iter().map(move |object| Asked { object, file: Some(file.clone()) })
        };
        let read = read_files(&self.path);
        let prepared = read.and_then(|files| prepare(state, files.into_iter().flat_map(asked).collect()));
        let Prepared { changes, mut events, .. } = match prepared {
            Ok(prepared) => prepared,
            Err(why) => {
                tracing::error!(%folder, %why, "the objects are not applied; those from before stay");
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

    fn look(&self) -> Look {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut look: Look = entries
            .filter_map(|entry| {
                // A mounted ConfigMap is made of symbolic links: what they lead to counts.
                let found = std::fs::metadata(entry.path()).ok()?;
                Some((entry.path(), found.len(), found.modified().ok()))
            })
            .collect();
        look.sort();
        look
    }
}
