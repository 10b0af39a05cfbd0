//! Crashes at every single change of the state directory: no existing record is ever lost.

use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::format::EntryKind;

type Numbers = Journal<u32, Vec<u32>>;

/// Opens with a simulated crash after this many changes.
fn open_crashing(dir: &Path, format: Format, changes: u32) -> Result<OpenedJournal<u32, Vec<u32>>> {
    let disk = Disk::open(dir)?;
    disk.changes_left.store(changes, SeqCst);
    let lock = Lock::take(&disk)?;
    open::open(disk, lock, Options { format, retained_segments: 4 })
}

/// Opens and returns all numbers and the findings.
fn reopen(dir: &Path) -> (Numbers, Vec<u32>, Vec<RecoveryFinding>) {
    let opened = Numbers::open(dir, Options::default()).unwrap();
    let mut state = opened.snapshot.map(|(_, state)| state).unwrap_or_default();
    state.extend(opened.records.into_iter().map(|(_, record)| record));
    (opened.journal, state, opened.findings)
}

/// One to eight: a snapshot of one to five, the rest in the journal, and an archived segment.
fn eight(dir: &Path) -> Numbers {
    let (journal, ..) = reopen(dir);
    (1..=5).for_each(|number| assert_eq!(journal.append(&number).unwrap(), Seq(number.into())));
    journal.compact(&vec![1, 2, 3, 4, 5], Seq(5)).unwrap();
    (6..=8).for_each(|number| assert_eq!(journal.append(&number).unwrap(), Seq(number.into())));
    journal
}

/// Appends one more record; all records are there after reopening, without findings.
fn assert_works(dir: &Path, expected: &[u32]) {
    let (journal, state, _) = reopen(dir);
    assert_eq!(state, expected);
    journal.append(&99).unwrap();
    drop(journal);
    let (_, state, findings) = reopen(dir);
    assert_eq!(state, [expected, &[99]].concat());
    assert_eq!(findings, []);
}

#[test]
fn a_crash_anywhere_in_a_compaction_loses_nothing() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let journal = eight(dir.path());
        journal.disk.changes_left.store(changes, SeqCst);
        let compacted = journal.compact(&(1..=8).collect(), Seq(8));
        drop(journal);
        let (journal, state, findings) = reopen(dir.path());
        assert_eq!(state, (1..=8).collect::<Vec<_>>(), "after {changes} changes");
        assert_eq!(findings, [], "after {changes} changes");
        let temporary = journal.disk.names().unwrap().into_iter().find(|name| name.ends_with(".new"));
        assert_eq!(temporary, None, "after {changes} changes");
        drop(journal);
        assert_works(dir.path(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        if compacted.is_ok() {
            assert!(changes >= 8, "a compaction has more than {changes} changes");
            return;
        }
    }
    panic!("the compaction never finished");
}

#[test]
fn a_compaction_at_an_earlier_record_keeps_later_ones() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let journal = eight(dir.path());
        journal.disk.changes_left.store(changes, SeqCst);
        let compacted = journal.compact(&(1..=7).collect(), Seq(7));
        drop(journal);
        assert_works(dir.path(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        if compacted.is_ok() {
            return;
        }
    }
    panic!("the compaction never finished");
}

#[test]
fn a_crash_anywhere_in_a_repair_keeps_the_damaged_file_and_earlier_records() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        drop(eight(dir.path()));
        let path = dir.path().join("journal");
        let mut bytes = fs::read(&path).unwrap();
        let seventh = bytes.windows(3).position(|window| window == b"\n7 ").unwrap();
        bytes[seventh + 12] ^= 1;
        fs::write(&path, &bytes).unwrap();

        let repaired = open_crashing(dir.path(), Format::initial(), changes).map(|opened| opened.findings);
        assert_works(dir.path(), &[1, 2, 3, 4, 5, 6]);
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let kept: Vec<_> = names.filter(|name| fs::read(name).unwrap() == bytes).collect();
        assert_eq!(kept, [dir.path().join("journal.damaged-1")], "after {changes} changes");
        if let Ok(findings) = repaired {
            assert!(changes >= 6 && findings.iter().all(RecoveryFinding::loses_records));
            return;
        }
    }
    panic!("the repair never finished");
}

#[test]
fn a_crash_anywhere_in_a_migration_loses_nothing() {
    let migrate = |_: u32, kind: EntryKind, value: Value| match (kind, value) {
        (EntryKind::Record, Value::Number(number)) => Ok(Value::from(number.as_u64().unwrap_or(0) + 100)),
        (EntryKind::Snapshot, value) => Ok(value),
        (_, other) => Err(format!("{other} is not a number")),
    };
    let second = Format { version: 2, migrate };
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        drop(eight(dir.path()));
        let crashed = open_crashing(dir.path(), second, changes).is_err();
        let opened = open_crashing(dir.path(), second, u32::MAX).unwrap();
        let records =
            |opened: &OpenedJournal<u32, Vec<u32>>| opened.records.iter().map(|record| record.1).collect();
        assert_eq!((opened.findings.as_slice(), records(&opened)), (&[][..], vec![106, 107, 108]));
        opened.journal.append(&9).unwrap();
        drop(opened);
        let opened = open_crashing(dir.path(), second, u32::MAX).unwrap();
        assert_eq!((opened.findings.as_slice(), records(&opened)), (&[][..], vec![106, 107, 108, 9]));
        if !crashed {
            assert!(changes >= 4);
            return;
        }
    }
    panic!("the migration never finished");
}

#[test]
fn a_crash_anywhere_in_the_first_open_leaves_a_usable_directory() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let crashed = open_crashing(dir.path(), Format::initial(), changes).is_err();
        assert_works(dir.path(), &[]);
        if !crashed {
            assert!(changes >= 3);
            return;
        }
    }
    panic!("the open never finished");
}

#[test]
fn a_journal_rejects_writes_after_a_failed_compaction() {
    let dir = TempDir::new().unwrap();
    let journal = eight(dir.path());
    // The crash is after the new snapshot is written and the old one renamed.
    journal.disk.changes_left.store(2, SeqCst);
    journal.compact(&(1..=8).collect(), Seq(8)).unwrap_err();
    let error = journal.append(&9).unwrap_err();
    assert_eq!(error.reason(), "StateWriteFailed");
    assert!(error.to_string().contains("killed by the test"), "{error}");
}
