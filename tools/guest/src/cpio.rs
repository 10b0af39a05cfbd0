//! Writes a `cpio` archive in the `newc` format, which the kernel unpacks as its initial root file system.
//!
//! The same contents always give the same bytes: entries are sorted, times are zero, everything belongs to root.
//! The format is described in the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// The length of a header before the name.
const HEADER: usize = 110;

/// A tree of files by path. Adding a path again replaces the entry.
#[derive(Default)]
pub struct Archive {
    /// Relative paths, so a directory sorts before its entries.
    entries: BTreeMap<PathBuf, Entry>,
}

enum Entry {
    Directory,
    File { content: Content, mode: u32 },
    Symlink(String),
    Device { major: u32, minor: u32 },
}

enum Content {
    Bytes(Vec<u8>),
    /// Read when the archive is written.
    Host(PathBuf),
}

impl Archive {
    /// Adds a directory.
    pub fn directory(&mut self, path: impl AsRef<Path>) {
        self.add(path.as_ref(), Entry::Directory);
    }

    /// Adds a file with these contents.
    pub fn bytes(&mut self, path: impl AsRef<Path>, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.add(path.as_ref(), Entry::File { content: Content::Bytes(bytes.into()), mode });
    }

    /// Adds a file with the contents of a file of the host.
    pub fn host_file(&mut self, path: impl AsRef<Path>, mode: u32, host: impl Into<PathBuf>) {
        self.add(path.as_ref(), Entry::File { content: Content::Host(host.into()), mode });
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: impl AsRef<Path>, target: impl Into<String>) {
        self.add(path.as_ref(), Entry::Symlink(target.into()));
    }

    /// Adds a character device.
    pub fn device(&mut self, path: impl AsRef<Path>, major: u32, minor: u32) {
        self.add(path.as_ref(), Entry::Device { major, minor });
    }

    /// Writes the archive.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        for (number, (path, entry)) in (1_u32..).zip(&self.entries) {
            write_entry(out, number, path, entry)
                .with_context(|| format!("cannot write {} into the archive", path.display()))?;
        }
        write_record(out, &Header::default(), "TRAILER!!!", &[])
    }

    fn add(&mut self, path: &Path, entry: Entry) {
        let path = relative(path);
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            self.entries.entry(parent.to_owned()).or_insert(Entry::Directory);
        }
        self.entries.insert(path, entry);
    }
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// The fields of a header that differ between entries.
#[derive(Default)]
struct Header {
    inode: u32,
    mode: u32,
    device: (u32, u32),
}

fn write_entry(out: &mut impl Write, inode: u32, path: &Path, entry: &Entry) -> Result<()> {
    let name = path.to_str().context("the name is not UTF-8")?;
    let header = |mode| Header { inode, mode, device: (0, 0) };
    match entry {
        Entry::Directory => write_record(out, &header(DIRECTORY | 0o755), name, &[]),
        Entry::Symlink(target) => write_record(out, &header(SYMLINK | 0o777), name, target.as_bytes()),
        Entry::Device { major, minor } => {
            let header = Header { device: (*major, *minor), ..header(CHARACTER | 0o600) };
            write_record(out, &header, name, &[])
        }
        Entry::File { content: Content::Bytes(bytes), mode } => {
            write_record(out, &header(REGULAR | mode), name, bytes)
        }
        Entry::File { content: Content::Host(host), mode } => {
            let bytes = std::fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
            write_record(out, &header(REGULAR | mode), name, &bytes)
        }
    }
}

fn write_record(out: &mut impl Write, header: &Header, name: &str, data: &[u8]) -> Result<()> {
    let Ok(size) = u32::try_from(data.len()) else {
        bail!("{} bytes exceed the format's limit of 4 GiB per file", data.len());
    };
    let name_size = u32::try_from(name.len() + 1).context("the name is too long")?;
    let links = 1;
    let fields = [
        header.inode,
        header.mode,
        0, // user
        0, // group
        links,
        0, // time
        size,
        0, // device of the file, major
        0, // and minor
        header.device.0,
        header.device.1,
        name_size,
        0, // checksum, unused in this format
    ];
    write!(out, "070701")?;
    for field in fields {
        write!(out, "{field:08x}")?;
    }
    out.write_all(name.as_bytes())?;
    out.write_all(&[0])?;
    pad(out, HEADER + name.len() + 1)?;
    out.write_all(data)?;
    pad(out, data.len())
}

/// Pads to a multiple of four after `written` bytes.
fn pad(out: &mut impl Write, written: usize) -> Result<()> {
    let missing = written.next_multiple_of(4) - written;
    Ok(out.write_all(&[0; 3][..missing])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Archive {
        let mut archive = Archive::default();
        archive.bytes("/etc/text", 0o644, "knit\n");
        archive.symlink("/bin/sh", "dash");
        archive.device("/dev/console", 5, 1);
        archive.directory("/proc");
        archive
    }

    fn written(archive: &Archive) -> Vec<u8> {
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn one_file_is_written_byte_for_byte() {
        let mut archive = Archive::default();
        archive.bytes("hi", 0o755, "abcde");
        let mut golden = Vec::new();
        golden.extend(b"070701000000010000");
        golden.extend(b"81ed"); // a regular file, mode 755
        golden.extend(b"000000000000000000000001000000000000000500000000000000000000000000000000");
        golden.extend(b"0000000300000000hi\0\0\0\0abcde\0\0\0");
        golden.extend(b"07070100000000000000000000000000000000000000010000000000000000");
        golden.extend(b"000000000000000000000000000000000000000b00000000TRAILER!!!\0\0\0\0");
        assert_eq!(
            String::from_utf8_lossy(&written(&archive)).replace('\0', "."),
            String::from_utf8_lossy(&golden).replace('\0', ".")
        );
    }

    #[test]
    fn order_of_adding_does_not_change_the_bytes() {
        let mut other = Archive::default();
        other.directory("/proc");
        other.device("/dev/console", 5, 1);
        other.symlink("/bin/sh", "dash");
        other.bytes("/etc/text", 0o600, "replaced");
        other.bytes("/etc/text", 0o644, "knit\n");
        assert_eq!(written(&sample()), written(&other));
    }
}
