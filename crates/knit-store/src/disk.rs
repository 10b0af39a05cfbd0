//! The state directory: the file operations that crash safety relies on.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The state directory.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    handle: File,
    /// Number of changes until the simulated crash.
    #[cfg(test)]
    pub(crate) changes_left: std::sync::atomic::AtomicU32,
}

impl Disk {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        if !dir.exists() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            // The entry of the new directory in its parent must be durable too.
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let made = made.and_then(|()| File::open(parent.unwrap_or(Path::new(".")))?.sync_all());
            made.map_err(|source| Error::io("create the directory", dir, source))?;
        }
        let handle = File::open(dir).map_err(|source| Error::io("open", dir, source))?;
        Ok(Self {
            dir: dir.to_owned(),
            handle,
            #[cfg(test)]
            changes_left: u32::MAX.into(),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Sorted names of all files.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let list_error = |source| Error::io("list", &self.dir, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(list_error)? {
            names.extend(entry.map_err(list_error)?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// Contents of a file; `None` if it does not exist.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read_prefix(name, u64::MAX)
    }

    /// The first `limit` bytes of a file.
    pub(crate) fn read_prefix(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::io("read", path, source)),
        }
    }

    /// Writes a file and syncs it. Not atomic: files in use are replaced by `rename`.
    pub(crate) fn write_synced(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.change(name)?;
        let path = self.path(name);
        let written =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).and_then(
                |mut file| {
                    file.write_all(bytes)?;
                    file.sync_all()
                },
            );
        written.map_err(|source| Error::io("write", path, source))
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.change(from)?;
        fs::rename(self.path(from), self.path(to))
            .map_err(|source| Error::io("rename", self.path(from), source))
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.change(name)?;
        fs::remove_file(self.path(name)).map_err(|source| Error::io("remove", self.path(name), source))
    }

    /// Truncates a file and syncs it.
    pub(crate) fn truncate(&self, name: &str, length: u64) -> Result<()> {
        self.change(name)?;
        let path = self.path(name);
        let truncated = OpenOptions::new().write(true).open(&path).and_then(|file| {
            file.set_len(length)?;
            file.sync_all()
        });
        truncated.map_err(|source| Error::io("truncate", path, source))
    }

    /// Syncs the directory, so that renames are durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.change(".")?;
        self.handle.sync_all().map_err(|source| Error::io("sync the directory", &self.dir, source))
    }

    pub(crate) fn open_to_append(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let opened = OpenOptions::new().append(true).open(&path);
        opened.map_err(|source| Error::io("open", path, source))
    }

    pub(crate) fn open_to_read(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::open(&path).map_err(|source| Error::io("open", path, source))
    }

    /// An unused name for a damaged file.
    pub(crate) fn damaged_name(&self, name: &str) -> String {
        let names = (1_u32..).map(|number| format!("{name}.damaged-{number}"));
        let free = |candidate: &String| !self.path(candidate).exists();
        names.into_iter().find(free).expect("a directory holds fewer files than there are numbers")
    }

    #[cfg(test)]
    fn change(&self, name: &str) -> Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.changes_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let crashed = |_| Error::io("continue with", self.path(name), io::Error::other("killed by the test"));
        left.map(|_| ()).map_err(crashed)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests simulate a crash here")]
    fn change(&self, _: &str) -> Result<()> {
        Ok(())
    }
}
