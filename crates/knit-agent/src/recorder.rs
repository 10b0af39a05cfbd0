//! Writes everything that enters the engine to a file (`knit agent --record`), for `knit replay`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use knit_engine::recording::Entry;

use crate::error::{Error, Result};

/// Appends entries to a recording, one JSON object per line. A recording that cannot be written ends; the node goes on.
pub(crate) struct Recorder {
    path: PathBuf,
    file: Option<File>,
}

impl Recorder {
    /// Starts an empty recording, readable only by its owner: it contains objects of all tenants.
    pub(crate) fn create(path: &Path) -> Result<()> {
        let failed = |source| Error::File { path: path.display().to_string(), source };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(path).map(drop).map_err(failed)
    }

    /// Continues a recording.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::File { path: path.display().to_string(), source };
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file: Some(file) })
    }

    /// Appends an entry.
    pub(crate) fn write(&mut self, entry: &Entry) {
        let Some(file) = &mut self.file else { return };
        let written = serde_json::to_vec(entry).map_err(std::io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        if let Err(error) = written {
            tracing::error!(file = %self.path.display(), %error, "cannot write the recording; it ends here");
            self.file = None;
        }
    }
}
