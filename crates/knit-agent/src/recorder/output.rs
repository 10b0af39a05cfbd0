//! One file of a recording, limited in size.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file of a recording.
pub(super) struct Output {
    path: PathBuf,
    /// `None` after an error.
    file: Option<File>,
    /// The size of the file, or beyond the limit if bytes were dropped.
    size: u64,
    limit: u64,
}

impl Output {
    /// Opens a file to append to it. Only its owner can read it: it contains objects of all tenants.
    pub(super) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        end_last_line(&mut file)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file: Some(file), size, limit })
    }

    /// The size of the file; beyond the limit if bytes were dropped. The last line is incomplete then.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Appends bytes. Those beyond the limit and all that follow are dropped.
    pub(super) fn append_bytes(&mut self, bytes: &[u8]) {
        let Some(file) = self.file.as_mut().filter(|_| self.size <= self.limit) else { return };
        let space = usize::try_from(self.limit - self.size).unwrap_or(usize::MAX);
        if let Err(error) = file.write_all(&bytes[..bytes.len().min(space)]) {
            tracing::error!(file = %self.path.display(), %error, "cannot write the recording; it ends here");
            self.file = None;
        }
        self.size += bytes.len() as u64;
    }
}

/// Never fails: an output handles its own errors.
impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append_bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An agent that was killed may have written a part of a line.
fn end_last_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}
