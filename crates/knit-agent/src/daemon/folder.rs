//! A folder with objects that is watched: what is in it is applied, what is no longer in it is deleted.

use std::path::PathBuf;
use std::time::SystemTime;

use knit_engine::{Event, Record, Revision, State};
use knit_model::provenance::Dialect;

use crate::node::now;
use crate::standalone::{Prepared, prepare, read_objects};

/// The folder, and how it looked when it was read last.
pub(super) struct Folder {
    path: PathBuf,
    seen: Option<Look>,
}

/// Names, sizes and times of the files: enough to see that something changed.
type Look = Vec<(PathBuf, u64, Option<SystemTime>)>;

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// What has to change, if the folder has. A folder with a mistake in it changes nothing: the mistake is logged.
    pub(super) fn changes(&mut self, state: &State) -> Option<(Record, Vec<Event>)> {
        let look = self.look();
        if self.seen.as_ref() == Some(&look) {
            return None;
        }
        self.seen = Some(look);
        let folder = self.path.display();
        let prepared = read_objects(&self.path).and_then(|objects| prepare(state, objects));
        let Prepared { changes, mut events, mut before } = match prepared {
            Ok(prepared) => prepared,
            Err(why) => {
                tracing::error!(%folder, %why, "the objects are not applied; those from before stay");
                return None;
            }
        };
        let here = |object: &knit_engine::StoredObject| {
            object.intents.iter().any(|intent| intent.origin.dialect == Dialect::File)
        };
        let gone = state
            .objects
            .iter()
            .filter(|(key, object)| here(object) && !changes.iter().any(|change| change.key == **key));
        for (key, object) in gone {
            before.push((key.clone(), Some(Box::new(object.clone()))));
            events.push(Event::ObjectDeleted(key.clone()));
        }
        if events.is_empty() {
            return None;
        }
        for change in &changes {
            for warning in &change.warnings {
                tracing::warn!(object = %change.key, "{warning}");
            }
        }
        tracing::info!(%folder, changes = events.len(), "objects changed");
        Some((Record::Revision(Revision { what: format!("folder {folder}"), at: now(), before }), events))
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
