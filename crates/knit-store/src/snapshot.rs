//! Snapshots: the whole state after one record, so that opening need not read everything that ever happened.

use serde::de::DeserializeOwned;

use crate::crc::Crc;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::{Format, Part};
use crate::line;
use crate::segment::Header;

pub(crate) const NEWEST: &str = "snapshot";
pub(crate) const PREVIOUS: &str = "snapshot.1";

/// A file of this name.
pub(crate) enum Found<S> {
    Missing,
    Damaged,
    Whole { seq: u64, state: S },
}

/// A snapshot file's contents.
pub(crate) fn encode(format: u32, seq: u64, json: &[u8]) -> Vec<u8> {
    let mut bytes = Header::Snapshot { format, seq }.encode();
    line::encode(&mut bytes, seq, json, Crc::of(json));
    bytes
}

pub(crate) fn read<S: DeserializeOwned>(disk: &Disk, name: &str, format: &Format) -> Result<Found<S>> {
    let Some(bytes) = disk.read(name)? else { return Ok(Found::Missing) };
    let Some((version, seq, json)) = whole(&bytes) else { return Ok(Found::Damaged) };
    let state = format.decode(version, Part::Snapshot, json).map_err(|why| Error::NotUnderstood {
        path: disk.path(name),
        seq,
        format: version,
        why,
    })?;
    Ok(Found::Whole { seq, state })
}

/// Format, sequence number and JSON, if the file is exactly a header and a state.
pub(crate) fn whole(bytes: &[u8]) -> Option<(u32, u64, &[u8])> {
    let Some(Header::Snapshot { format, seq }) = Header::read(bytes) else { return None };
    let scan = line::scan(bytes);
    match scan.lines.as_slice() {
        [_, state] if state.seq == seq && scan.damage.is_empty() && scan.torn.is_none() => {
            Some((format, seq, &bytes[state.json.clone()]))
        }
        _ => None,
    }
}
