//! Writes everything that enters the engine to a file (`knit agent --record`), for `knit replay`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
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
    /// Starts or continues a recording. Only its owner can read it: it contains objects of all tenants.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::File { path: path.display().to_string(), source };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)?;
        end_last_line(&mut file).map_err(failed)?;
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

/// An agent that was killed may have written a part of a line.
fn end_last_line(file: &mut File) -> std::io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}
