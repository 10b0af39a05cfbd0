//! The active segment: appending records and rotation.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::line;
use crate::segment::{ACTIVE, Header, JournalHeader, Segment, archived_name};
use crc32fast::Hasher;

/// Name of a file that is not in place yet.
pub(crate) fn temporary_name(name: &str) -> String {
    format!("{name}.new")
}

/// The active segment.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) file: Arc<File>,
    pub(crate) header: JournalHeader,
    /// Sequence number of the next record.
    pub(crate) next: u64,
    /// Number of records.
    pub(crate) records: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    buffer: Vec<u8>,
    /// An earlier failure after which the contents of the disk are unknown.
    pub(crate) failed: Option<String>,
}

impl Active {
    /// Opens the segment on disk, which must be intact.
    pub(crate) fn open(disk: &Disk, segment: &Segment, header: JournalHeader, next: u64) -> Result<Self> {
        Ok(Self {
            file: Arc::new(disk.open_to_append(ACTIVE)?),
            header,
            next,
            records: segment.lines.len() as u64,
            length: segment.bytes.len() as u64,
            buffer: Vec::new(),
            failed: None,
        })
    }

    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Fails after an earlier failure.
    pub(crate) fn check(&self, disk: &Disk) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(cause) => Err(Error::WriteFailed { dir: disk.dir().to_owned(), cause: cause.clone() }),
        }
    }

    /// Writes a record with one `write(2)`. A partially written record is truncated.
    pub(crate) fn append(&mut self, disk: &Disk, json: &[u8], crc: Hasher) -> Result<u64> {
        self.check(disk)?;
        let seq = self.next;
        self.buffer.clear();
        line::encode(&mut self.buffer, seq, json, crc);
        if let Err(source) = (&*self.file).write_all(&self.buffer) {
            let error = Error::io("append to", disk.path(ACTIVE), source);
            if let Err(again) = self.file.set_len(self.length) {
                self.failed = Some(format!("{error}, and truncating the partial record failed: {again}"));
            }
            return Err(error);
        }
        self.length += self.buffer.len() as u64;
        self.records += 1;
        self.next += 1;
        Ok(seq)
    }

    /// Starts a new segment with this header; the current one is archived under its first sequence number.
    pub(crate) fn rotate(&mut self, disk: &Disk, header: JournalHeader) -> Result<()> {
        let bytes = Header::from(header).encode();
        let rotated = replace(disk, ACTIVE, &bytes, Some(&archived_name(self.header.first)))
            .and_then(|()| disk.open_to_append(ACTIVE));
        match rotated {
            Ok(file) => {
                self.file = Arc::new(file);
                self.header = header;
                self.next = self.next.max(header.first);
                self.records = 0;
                self.length = bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.failed = Some(error.to_string());
                Err(error)
            }
        }
    }
}

/// Replaces a file by these bytes and renames the old file, if `archive` is given. Between the two renames only the temporary
/// file exists, which the next open puts in place.
pub(crate) fn replace(disk: &Disk, name: &str, bytes: &[u8], archive: Option<&str>) -> Result<()> {
    disk.write_synced(&temporary_name(name), bytes)?;
    if let Some(archive) = archive {
        disk.rename(name, archive)?;
    }
    disk.rename(&temporary_name(name), name)?;
    disk.sync()
}
