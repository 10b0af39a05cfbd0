//! The state folder: the few file operations that crash safety is made of, each named by what it did.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The state folder.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
    handle: File,
    /// How many more changes this folder takes before it is as dead as a killed process.
    #[cfg(test)]
    pub(crate) changes_left: std::sync::atomic::AtomicU32,
}

impl Disk {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        if !dir.exists() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
            // A folder that is only in its parent's memory takes all durable records with it.
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let made = made.and_then(|()| File::open(parent.unwrap_or(Path::new(".")))?.sync_all());
            made.map_err(|source| Error::io("make the folder", dir, source))?;
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

    /// The names of all files, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let refused = |source| Error::io("list", &self.dir, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(refused)? {
            names.extend(entry.map_err(refused)?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// A file's contents; `None` if it is not there.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.read_some(name, u64::MAX)
    }

    /// The beginning of a file.
    pub(crate) fn read_some(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::io("read", path, source)),
        }
    }

    /// A file that is on disk with these contents. Not for a file that counts: that one is replaced by `rename`.
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

    /// Shortens a file, on disk.
    pub(crate) fn cut(&self, name: &str, length: u64) -> Result<()> {
        self.change(name)?;
        let path = self.path(name);
        let cut = OpenOptions::new().write(true).open(&path).and_then(|file| {
            file.set_len(length)?;
            file.sync_all()
        });
        cut.map_err(|source| Error::io("shorten", path, source))
    }

    /// Renames so far are on disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.change(".")?;
        self.handle.sync_all().map_err(|source| Error::io("sync the folder", &self.dir, source))
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

    /// A name beside `name` that no file has.
    pub(crate) fn name_aside(&self, name: &str) -> String {
        let names = (1_u32..).map(|number| format!("{name}.damaged-{number}"));
        let free = |candidate: &String| !self.path(candidate).exists();
        names.into_iter().find(free).expect("a folder holds fewer files than there are numbers")
    }

    #[cfg(test)]
    fn change(&self, name: &str) -> Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.changes_left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let dead = |_| Error::io("go on with", self.path(name), io::Error::other("killed by the test"));
        left.map(|_| ()).map_err(dead)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests stop a process here")]
    fn change(&self, _: &str) -> Result<()> {
        Ok(())
    }
}
