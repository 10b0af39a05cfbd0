//! A tree of files that is written as a reproducible tar.
//!
//! Entries are sorted, a directory precedes its entries, everything belongs to root, every time is 0, and no path occurs
//! twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use tar::{Builder, EntryType, Header};

/// The mode of a directory that was not added explicitly.
const IMPLIED_FOLDER_MODE: u32 = 0o755;

/// The files of one layer. The leading slash of paths is optional.
#[derive(Default)]
pub struct Layer {
    entries: BTreeMap<PathBuf, Entry>,
}

enum Entry {
    /// An implied directory can still be added explicitly.
    Folder {
        mode: u32,
        implied: bool,
    },
    Bytes {
        mode: u32,
        contents: Vec<u8>,
    },
    /// Read when the tar is written, so that large files are never in memory.
    Disk {
        mode: u32,
        source: PathBuf,
    },
    Symlink {
        target: PathBuf,
    },
}

impl Layer {
    /// Adds a directory. The parents of any entry are added with mode 0755.
    pub fn add_folder(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.add(path.as_ref(), Entry::Folder { mode, implied: false })
    }

    /// Adds a file with these contents.
    pub fn add_file(
        &mut self,
        path: impl AsRef<Path>,
        mode: u32,
        contents: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.add(path.as_ref(), Entry::Bytes { mode, contents: contents.into() })
    }

    /// Adds a file whose contents are read from `source` when the layer is written.
    pub fn add_file_from(
        &mut self,
        path: impl AsRef<Path>,
        mode: u32,
        source: impl Into<PathBuf>,
    ) -> Result<()> {
        self.add(path.as_ref(), Entry::Disk { mode, source: source.into() })
    }

    /// Adds a symbolic link with this target, unchanged.
    pub fn add_symlink(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) -> Result<()> {
        self.add(path.as_ref(), Entry::Symlink { target: target.into() })
    }

    /// Adds the entries of the directory `source`, with their permission bits, below `path` (`/` for the root).
    pub fn add_tree(&mut self, path: impl AsRef<Path>, source: &Path) -> Result<()> {
        let listing =
            std::fs::read_dir(source).with_context(|| format!("cannot list {}", source.display()))?;
        for item in listing {
            let item = item.with_context(|| format!("cannot list {}", source.display()))?;
            let (from, to) = (item.path(), path.as_ref().join(item.file_name()));
            let metadata = item.metadata().with_context(|| format!("cannot read {}", from.display()))?;
            let mode = metadata.permissions().mode() & 0o7777;
            if metadata.is_dir() {
                self.add_folder(&to, mode)?;
                self.add_tree(&to, &from)?;
            } else if metadata.is_symlink() {
                let target =
                    std::fs::read_link(&from).with_context(|| format!("cannot read {}", from.display()))?;
                self.add_symlink(&to, target)?;
            } else if metadata.is_file() {
                self.add_file_from(&to, mode, from)?;
            } else {
                bail!("{} is neither a file, a directory nor a symbolic link", from.display());
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, entry: Entry) -> Result<()> {
        let path = relative_path(path)?;
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            let implied = Entry::Folder { mode: IMPLIED_FOLDER_MODE, implied: true };
            let ancestor = self.entries.entry(parent.to_path_buf()).or_insert(implied);
            if !matches!(ancestor, Entry::Folder { .. }) {
                bail!(
                    "layer: /{} cannot be below /{}, which is not a directory",
                    path.display(),
                    parent.display()
                );
            }
        }
        match (self.entries.get(&path), &entry) {
            (None | Some(Entry::Folder { implied: true, .. }), Entry::Folder { .. }) | (None, _) => {}
            (Some(_), _) => bail!("layer: duplicate path /{}", path.display()),
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    /// Writes the tar and returns the writer.
    pub(super) fn write_tar<W: Write>(&self, out: W) -> Result<W> {
        let mut tar = Builder::new(out);
        for (path, entry) in &self.entries {
            append(&mut tar, path, entry)
                .with_context(|| format!("cannot write /{} into the archive", path.display()))?;
        }
        tar.into_inner().context("cannot finish the archive")
    }
}

/// The path relative to the image's root.
fn relative_path(path: &Path) -> Result<PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let plain = relative.components().all(|component| matches!(component, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() {
        bail!("layer: {path:?} is not a path inside an image: it is empty, or contains `.` or `..`");
    }
    Ok(relative.components().collect())
}

fn append<W: Write>(tar: &mut Builder<W>, path: &Path, entry: &Entry) -> Result<()> {
    match entry {
        // The empty last component adds the slash that marks directories.
        Entry::Folder { mode, .. } => {
            tar.append_data(&mut header(EntryType::Directory, *mode, 0), path.join(""), std::io::empty())?;
        }
        Entry::Bytes { mode, contents } => {
            let size = contents.len() as u64;
            tar.append_data(&mut header(EntryType::Regular, *mode, size), path, contents.as_slice())?;
        }
        Entry::Symlink { target } => {
            tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
        }
        Entry::Disk { mode, source } => {
            let file = File::open(source).with_context(|| format!("cannot open {}", source.display()))?;
            let size = file.metadata()?.len();
            let mut contents = (&file).take(size);
            tar.append_data(&mut header(EntryType::Regular, *mode, size), path, &mut contents)?;
            // The header already contains the size: a shorter file would shift everything after it.
            if contents.limit() != 0 || file.metadata()?.len() != size {
                bail!("{} changed while it was read", source.display());
            }
        }
    }
    Ok(())
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests;
