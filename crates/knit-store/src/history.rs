//! History: recorded entries in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::format::{EntryKind, Format};
use crate::journal::Seq;
use crate::segment::Segment;

/// Records in order, read one segment at a time. Damage yields errors at the start of its segment, followed by the intact
/// records.
#[derive(Debug)]
pub struct History<R> {
    files: VecDeque<(PathBuf, File, u64)>,
    from: Seq,
    format: Format,
    ready: VecDeque<Result<(Seq, R)>>,
}

impl<R: DeserializeOwned> History<R> {
    /// Files with their lengths, oldest first.
    pub(crate) fn new(files: Vec<(PathBuf, File, u64)>, from: Seq, format: Format) -> Self {
        Self { files: files.into(), from, format, ready: VecDeque::new() }
    }

    fn read(&mut self, path: &Path, file: File, length: u64) -> Result<()> {
        let mut bytes = Vec::new();
        let read = file.take(length).read_to_end(&mut bytes);
        read.map_err(|source| Error::io("read", path, source))?;
        let segment = Segment::parse("", bytes);
        let damage = segment.damage.iter().chain(&segment.torn);
        self.ready.extend(
            damage.map(|range| {
                Err(Error::Corrupt { path: path.to_owned(), at: range.start, bytes: range.len() })
            }),
        );
        let version = segment.header.map_or(self.format.version, |header| header.format);
        let (from, format) = (self.from, self.format);
        let lines = segment.lines.iter().filter(|line| Seq(line.seq) >= from);
        self.ready.extend(lines.map(|line| {
            let record = format.decode(version, EntryKind::Record, &segment.bytes[line.json.clone()]);
            let path = path.to_owned();
            let undecodable = |cause| Error::Undecodable { path, seq: line.seq, format: version, cause };
            record.map(|record| (Seq(line.seq), record)).map_err(undecodable)
        }));
        Ok(())
    }
}

impl<R: DeserializeOwned> Iterator for History<R> {
    type Item = Result<(Seq, R)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            let (path, file, length) = self.files.pop_front()?;
            if let Err(error) = self.read(&path, file, length) {
                return Some(Err(error));
            }
        }
        self.ready.pop_front()
    }
}
