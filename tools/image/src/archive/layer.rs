//! A tree of files that is written as a tar, the same bytes wherever and whenever that happens.
//!
//! What always holds: entries are sorted, a folder comes before what lies in it, everything belongs to root,
//! every time is 0, and no path is there twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use tar::{Builder, EntryType, Header};

/// The mode of a folder that nobody asked for by name, but that something lies in.
const IMPLIED_FOLDER: u32 = 0o755;

/// The files of one layer. Paths may be written with or without the leading slash.
#[derive(Default)]
pub struct Layer {
    entries: BTreeMap<PathBuf, Entry>,
}

enum Entry {
    /// An implied folder may still be given its own mode.
    Folder {
        mode: u32,
        implied: bool,
    },
    Bytes {
        mode: u32,
        contents: Vec<u8>,
    },
    /// Read only when the tar is written, so that big programs are never held in memory.
    Disk {
        mode: u32,
        source: PathBuf,
    },
    Symlink {
        target: PathBuf,
    },
}

impl Layer {
    /// Adds a folder. The folders above any entry come by themselves, with mode 0755.
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

    /// Adds a symbolic link; the target is kept as it is given.
    pub fn add_symlink(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) -> Result<()> {
        self.add(path.as_ref(), Entry::Symlink { target: target.into() })
    }

    /// Adds what lies in the folder `source`, with its permission bits, below `path` (`/` for the root).
    pub fn add_tree(&mut self, path: impl AsRef<Path>, source: &Path) -> Result<()> {
        let listing =
            std::fs::read_dir(source).with_context(|| format!("cannot list {}", source.display()))?;
        for item in listing {
            let item = item.with_context(|| format!("cannot list {}", source.display()))?;
            let (from, to) = (item.path(), path.as_ref().join(item.file_name()));
            let about = item.metadata().with_context(|| format!("cannot look at {}", from.display()))?;
            let mode = about.permissions().mode() & 0o7777;
            if about.is_dir() {
                self.add_folder(&to, mode)?;
                self.add_tree(&to, &from)?;
            } else if about.is_symlink() {
                let target =
                    std::fs::read_link(&from).with_context(|| format!("cannot read {}", from.display()))?;
                self.add_symlink(&to, target)?;
            } else if about.is_file() {
                self.add_file_from(&to, mode, from)?;
            } else {
                bail!(
                    "{} is neither a file, a folder nor a symbolic link: no image can hold it",
                    from.display()
                );
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, entry: Entry) -> Result<()> {
        let path = inside(path)?;
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            let implied = Entry::Folder { mode: IMPLIED_FOLDER, implied: true };
            let above = self.entries.entry(parent.to_path_buf()).or_insert(implied);
            if !matches!(above, Entry::Folder { .. }) {
                bail!(
                    "layer: /{} cannot lie below /{}, which is no folder",
                    path.display(),
                    parent.display()
                );
            }
        }
        match (self.entries.get(&path), &entry) {
            (None | Some(Entry::Folder { implied: true, .. }), Entry::Folder { .. }) | (None, _) => {}
            (Some(_), _) => bail!("layer: /{} is there twice", path.display()),
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    /// Writes the tar and gives the writer back.
    pub(super) fn write_tar<W: Write>(&self, out: W) -> Result<W> {
        let mut tar = Builder::new(out);
        for (path, entry) in &self.entries {
            append(&mut tar, path, entry)
                .with_context(|| format!("cannot write /{} into the archive", path.display()))?;
        }
        tar.into_inner().context("cannot end the archive")
    }
}

/// The path relative to the image's root.
fn inside(path: &Path) -> Result<PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || relative.as_os_str().is_empty() {
        bail!("layer: {path:?} is no path inside an image: it is empty, or has `.` or `..` in it");
    }
    Ok(relative.components().collect())
}

fn append<W: Write>(tar: &mut Builder<W>, path: &Path, entry: &Entry) -> Result<()> {
    match entry {
        // The empty last part makes the slash that marks folders in archives.
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
            // The header already promised a size: a shorter file would shift everything behind it.
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
