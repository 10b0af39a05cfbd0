//! The journal: its files, and the records in them.

use std::fs;

use knit_engine::{Event, Record, State, step};
use knit_ipam::Time;
use knit_store::{Journal, OpenedJournal, Options, RecoveryFinding, Seq};
use serde_json::Value;

use super::parts;

/// The files of a state folder, in the order of the parts of an input.
const FILES: [&str; 5] = ["journal", "snapshot", "journal.1", "snapshot.1", "journal.new"];

/// The files of a journal: opened, appended to, and opened again. A missing or empty part is a missing file.
pub(super) fn journal(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let files: [&[u8]; FILES.len()] = parts(data);
    for (name, part) in FILES.iter().zip(files).filter(|(_, part)| !part.is_empty()) {
        fs::write(folder.path().join(name), with_checksums(part)).expect("a file can be written");
    }
    let open = || Journal::<Value, Value>::open(folder.path(), Options::default());
    let Ok(OpenedJournal { journal, mut snapshot, mut records, findings }) = open() else { return };
    assert!(records.windows(2).all(|pair| pair[0].0.0 + 1 == pair[1].0.0), "records follow each other");
    let covered = snapshot.as_ref().map_or(Seq(0), |(seq, _)| *seq);
    assert!(records.first().is_none_or(|(first, _)| *first > covered), "records follow the snapshot");
    // As the agent does: records after a gap are only readable with a snapshot that they follow.
    if findings.iter().any(RecoveryFinding::loses_records) {
        let state = Value::from("state");
        journal.compact(&state, journal.last()).expect("an open journal is compacted");
        (snapshot, records) = (Some((journal.last(), state)), Vec::new());
    }
    let appended = Value::from("appended");
    let seq = journal.append(&appended).expect("an open journal is appended to");
    assert!(records.last().is_none_or(|(last, _)| *last < seq), "sequence numbers grow");
    records.push((seq, appended));
    drop(journal);
    let again = open().unwrap_or_else(|why| panic!("a repaired journal is not opened again: {why}"));
    assert_eq!(again.snapshot, snapshot, "the same snapshot");
    let values =
        |records: &[(Seq, Value)]| records.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
    assert_eq!(values(&again.records), values(&records), "the same records and the new one");
    assert!(again.findings.is_empty(), "damage is reported once: {:?}", again.findings);
}

/// Lines `!7 {"a": 1}` get the checksum that makes them intact, which fuzzing would not find.
fn with_checksums(text: &[u8]) -> Vec<u8> {
    let line = |line: &[u8]| -> Option<Vec<u8>> {
        let (seq, json) = std::str::from_utf8(line).ok()?.strip_prefix('!')?.split_once(' ')?;
        let seq: u64 = seq.parse().ok()?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(json.trim_end_matches('\n').as_bytes());
        crc.update(&seq.to_le_bytes());
        Some(format!("{seq} {:08x} {json}", crc.finalize()).into_bytes())
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|bytes| line(bytes).unwrap_or_else(|| bytes.to_vec())).collect()
}

/// A record in each line: applied to a state, which is stored, read and reported.
pub(super) fn records(data: &[u8]) {
    let mut state = State::default();
    for line in data.split(|byte| *byte == b'\n') {
        if let Ok(record) = serde_json::from_slice::<Record>(line) {
            state.record(&record);
        }
    }
    let text = serde_json::to_string(&state.persistent()).expect("a state is plain data");
    let again: State = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!(serde_json::to_string(&again).expect("a state is plain data"), text);
    step(&mut state, Event::Resync, Time(1));
    for object in state.objects.keys() {
        assert!(state.report(object).is_some());
    }
}
