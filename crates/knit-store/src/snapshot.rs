//! Snapshots: the whole state after one record.

use serde::de::DeserializeOwned;

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::{EntryKind, Format};
use crate::line;
use crate::segment::Header;

pub(crate) const NEWEST: &str = "snapshot";
pub(crate) const PREVIOUS: &str = "snapshot.1";

/// A snapshot file.
pub(crate) enum SnapshotFile<S> {
    Missing,
    Damaged,
    Intact { seq: u64, state: S },
}

/// Contents of a snapshot file.
pub(crate) fn encode(format: u32, seq: u64, json: &[u8]) -> Vec<u8> {
    let mut bytes = Header::Snapshot { format, seq }.encode();
    line::encode(&mut bytes, seq, json, line::checksum(json));
    bytes
}

pub(crate) fn read<S: DeserializeOwned>(disk: &Disk, name: &str, format: &Format) -> Result<SnapshotFile<S>> {
    let Some(bytes) = disk.read(name)? else { return Ok(SnapshotFile::Missing) };
    let Some((version, seq, json)) = parse(&bytes) else { return Ok(SnapshotFile::Damaged) };
    let state = format.decode(version, EntryKind::Snapshot, json).map_err(|cause| Error::Undecodable {
        path: disk.path(name),
        seq,
        format: version,
        cause,
    })?;
    Ok(SnapshotFile::Intact { seq, state })
}

/// Format, sequence number and JSON, if the file consists of exactly an intact header and state.
pub(crate) fn parse(bytes: &[u8]) -> Option<(u32, u64, &[u8])> {
    let Some(Header::Snapshot { format, seq }) = Header::read(bytes) else { return None };
    let scan = line::scan(bytes);
    match scan.lines.as_slice() {
        [_, state] if state.seq == seq && scan.damage.is_empty() && scan.torn.is_none() => {
            Some((format, seq, &bytes[state.json.clone()]))
        }
        _ => None,
    }
}
