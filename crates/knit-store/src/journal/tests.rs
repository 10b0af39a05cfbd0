//! A process that dies at every single change of the state folder: whatever it was doing, nothing that was there is lost.

use std::fs;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::format::Part;

type Numbers = Journal<u32, Vec<u32>>;

/// Opens; the process dies after this many changes.
fn open_dying(dir: &Path, format: Format, changes: u32) -> Result<Opened<u32, Vec<u32>>> {
    let disk = Disk::open(dir)?;
    disk.changes_left.store(changes, SeqCst);
    let lock = Lock::take(&disk)?;
    open::open(disk, lock, Options { format, segments: 4 })
}

/// Opens; all that is there, folded, and what was wrong.
fn reopen(dir: &Path) -> (Numbers, Vec<u32>, Vec<Finding>) {
    let opened = Numbers::open(dir, Options::default()).unwrap();
    let mut state = opened.snapshot.map(|(_, state)| state).unwrap_or_default();
    state.extend(opened.records.into_iter().map(|(_, record)| record));
    (opened.journal, state, opened.findings)
}

/// One to eight: a snapshot of one to five, the rest in the journal, and an older segment.
fn eight(dir: &Path) -> Numbers {
    let (journal, ..) = reopen(dir);
    (1..=5).for_each(|number| assert_eq!(journal.append(&number).unwrap(), Seq(number.into())));
    journal.compact(&vec![1, 2, 3, 4, 5], Seq(5)).unwrap();
    (6..=8).for_each(|number| assert_eq!(journal.append(&number).unwrap(), Seq(number.into())));
    journal
}

/// Afterwards the folder works as ever: one more record, and all are there again, with nothing to complain of.
fn works(dir: &Path, expected: &[u32]) {
    let (journal, state, _) = reopen(dir);
    assert_eq!(state, expected);
    journal.append(&99).unwrap();
    drop(journal);
    let (_, state, findings) = reopen(dir);
    assert_eq!(state, [expected, &[99]].concat());
    assert_eq!(findings, []);
}

#[test]
fn dying_anywhere_in_a_compaction_loses_nothing() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let journal = eight(dir.path());
        journal.disk.changes_left.store(changes, SeqCst);
        let compacted = journal.compact(&(1..=8).collect(), Seq(8));
        drop(journal);
        let (journal, state, findings) = reopen(dir.path());
        assert_eq!(state, (1..=8).collect::<Vec<_>>(), "after {changes} changes");
        assert_eq!(findings, [], "after {changes} changes");
        let unfinished = journal.disk.names().unwrap().into_iter().find(|name| name.ends_with(".new"));
        assert_eq!(unfinished, None, "after {changes} changes");
        drop(journal);
        works(dir.path(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        if compacted.is_ok() {
            assert!(changes >= 8, "a compaction has more than {changes} changes to die at");
            return;
        }
    }
    panic!("the compaction never came to its end");
}

#[test]
fn a_compaction_of_an_earlier_moment_keeps_what_came_after() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let journal = eight(dir.path());
        journal.disk.changes_left.store(changes, SeqCst);
        let compacted = journal.compact(&(1..=7).collect(), Seq(7));
        drop(journal);
        works(dir.path(), &[1, 2, 3, 4, 5, 6, 7, 8]);
        if compacted.is_ok() {
            return;
        }
    }
    panic!("the compaction never came to its end");
}

#[test]
fn dying_anywhere_in_a_repair_keeps_the_evidence_and_the_records_before_it() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        drop(eight(dir.path()));
        let path = dir.path().join("journal");
        let mut bytes = fs::read(&path).unwrap();
        let seventh = bytes.windows(3).position(|window| window == b"\n7 ").unwrap();
        bytes[seventh + 12] ^= 1;
        fs::write(&path, &bytes).unwrap();

        let repaired = open_dying(dir.path(), Format::first(), changes).map(|opened| opened.findings);
        works(dir.path(), &[1, 2, 3, 4, 5, 6]);
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let kept: Vec<_> = names.filter(|name| fs::read(name).unwrap() == bytes).collect();
        assert_eq!(kept, [dir.path().join("journal.damaged-1")], "after {changes} changes");
        if let Ok(findings) = repaired {
            assert!(changes >= 6 && findings.iter().all(Finding::loses));
            return;
        }
    }
    panic!("the repair never came to its end");
}

#[test]
fn dying_anywhere_in_a_change_of_format_loses_nothing() {
    let from_words = |_: u32, part: Part, value: Value| match (part, value) {
        (Part::Record, Value::Number(number)) => Ok(Value::from(number.as_u64().unwrap_or(0) + 100)),
        (Part::Snapshot, value) => Ok(value),
        (_, other) => Err(format!("{other} is no number")),
    };
    let second = Format { version: 2, migrate: from_words };
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        drop(eight(dir.path()));
        let died = open_dying(dir.path(), second, changes).is_err();
        let opened = open_dying(dir.path(), second, u32::MAX).unwrap();
        let records = |opened: &Opened<u32, Vec<u32>>| opened.records.iter().map(|record| record.1).collect();
        assert_eq!((opened.findings.as_slice(), records(&opened)), (&[][..], vec![106, 107, 108]));
        opened.journal.append(&9).unwrap();
        drop(opened);
        let opened = open_dying(dir.path(), second, u32::MAX).unwrap();
        assert_eq!((opened.findings.as_slice(), records(&opened)), (&[][..], vec![106, 107, 108, 9]));
        if !died {
            assert!(changes >= 4);
            return;
        }
    }
    panic!("the change never came to its end");
}

#[test]
fn dying_anywhere_in_the_first_opening_leaves_a_folder_that_opens() {
    for changes in 0..100 {
        let dir = TempDir::new().unwrap();
        let died = open_dying(dir.path(), Format::first(), changes).is_err();
        works(dir.path(), &[]);
        if !died {
            assert!(changes >= 3);
            return;
        }
    }
    panic!("the opening never came to its end");
}

#[test]
fn a_journal_that_failed_half_way_stops_and_says_why() {
    let dir = TempDir::new().unwrap();
    let journal = eight(dir.path());
    // The snapshot is written and the old one is renamed; then the folder takes no more.
    journal.disk.changes_left.store(2, SeqCst);
    journal.compact(&(1..=8).collect(), Seq(8)).unwrap_err();
    let refused = journal.append(&9).unwrap_err();
    assert_eq!(refused.reason(), "StateStopped");
    assert!(refused.to_string().contains("killed by the test"), "{refused}");
}
