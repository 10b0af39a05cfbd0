//! The segment that is written: appending to it, and starting the next one.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use crate::crc::Crc;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::line;
use crate::segment::{ACTIVE, Header, JournalHeader, Segment, archived_name};

/// A file that is not in place yet.
pub(crate) fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

/// The segment that is written.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) file: Arc<File>,
    pub(crate) header: JournalHeader,
    /// The next record's sequence number.
    pub(crate) next: u64,
    /// How many records it has.
    pub(crate) records: u64,
    /// How long it is.
    pub(crate) length: u64,
    buffer: Vec<u8>,
    /// An earlier failure after which it is unsure what is on disk.
    pub(crate) stopped: Option<String>,
}

impl Active {
    /// Opens the segment on disk, which is whole.
    pub(crate) fn open(disk: &Disk, segment: &Segment, header: JournalHeader, next: u64) -> Result<Self> {
        Ok(Self {
            file: Arc::new(disk.open_to_append(ACTIVE)?),
            header,
            next,
            records: segment.lines.len() as u64,
            length: segment.bytes.len() as u64,
            buffer: Vec::new(),
            stopped: None,
        })
    }

    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Refuses if it is unsure what is on disk.
    pub(crate) fn check(&self, disk: &Disk) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(why) => Err(Error::Stopped { dir: disk.dir().to_owned(), why: why.clone() }),
        }
    }

    /// Writes a record in one call. A record that does not fit leaves nothing behind.
    pub(crate) fn append(&mut self, disk: &Disk, json: &[u8], crc: Crc) -> Result<u64> {
        self.check(disk)?;
        let seq = self.next;
        self.buffer.clear();
        line::encode(&mut self.buffer, seq, json, crc);
        // One write(2), unless the kernel takes only part of it.
        if let Err(source) = (&*self.file).write_all(&self.buffer) {
            let error = Error::io("append to", disk.path(ACTIVE), source);
            if let Err(again) = self.file.set_len(self.length) {
                self.stopped = Some(format!("{error}, and cutting the half-written record failed: {again}"));
            }
            return Err(error);
        }
        self.length += self.buffer.len() as u64;
        self.records += 1;
        self.next += 1;
        Ok(seq)
    }

    /// Starts a new segment with this header; the present one is kept under its number.
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
                self.stopped = Some(error.to_string());
                Err(error)
            }
        }
    }
}

/// The file holds these bytes, and what it was has the other name, if one is given. Between the two renames there is no
/// such file, but then there is the unfinished one, which the next opening puts in place.
pub(crate) fn replace(disk: &Disk, name: &str, bytes: &[u8], aside: Option<&str>) -> Result<()> {
    disk.write_synced(&unfinished(name), bytes)?;
    if let Some(aside) = aside {
        disk.rename(name, aside)?;
    }
    disk.rename(&unfinished(name), name)?;
    disk.sync()
}
