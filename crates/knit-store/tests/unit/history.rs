//! History, and the segments that compaction retains.

use std::fs;

use crate::numbers::{Numbers, OPTIONS, all, first_ten, open};
use knit_store::{Error, Options, Seq};
use tempfile::TempDir;

fn numbers(journal: &Numbers, from: u64) -> Vec<u32> {
    let history = journal.history(Seq(from)).unwrap();
    history
        .map(|record| record.unwrap())
        .map(|(seq, text)| {
            assert_eq!(seq.to_string(), text);
            text.parse().unwrap()
        })
        .collect()
}

#[test]
fn history_includes_records_before_snapshots() {
    let dir = TempDir::new().unwrap();
    let journal = first_ten(dir.path());
    assert_eq!(numbers(&journal, 0), (1..=10).collect::<Vec<_>>());
    assert_eq!(numbers(&journal, 3), (3..=10).collect::<Vec<_>>());
    assert_eq!(numbers(&journal, 8), [8, 9, 10]);
    assert_eq!(numbers(&journal, 11), [0_u32; 0]);
    drop(journal);
    assert_eq!(numbers(&open(dir.path()).journal, 5), (5..=10).collect::<Vec<_>>());
}

#[test]
fn history_is_bounded() {
    let dir = TempDir::new().unwrap();
    let journal = open(dir.path()).journal;
    for number in 1..=200_u32 {
        journal.append(&number.to_string()).unwrap();
        if number % 10 == 0 {
            journal.compact(&(1..=number).collect(), Seq(number.into())).unwrap();
        }
    }
    // Four archived segments of ten records each.
    assert_eq!(numbers(&journal, 0), (161..=200).collect::<Vec<_>>());
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 1 + 2 + 1 + 4);
    assert_eq!(journal.size().records, 0);
}

#[test]
fn history_skips_and_reports_damage() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let path = dir.path().join("journal.1");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"2\"", "\"3\"")).unwrap();
    // The snapshot covers it, so opening does not read it.
    let opened = open(dir.path());
    assert_eq!(opened.findings, []);
    let history: Vec<_> = opened.journal.history(Seq(0)).unwrap().collect();
    assert!(matches!(history[0], Err(Error::Corrupt { .. })), "{:?}", history[0]);
    let seqs: Vec<_> = history.iter().flatten().map(|(seq, _)| seq.0).collect();
    assert_eq!(seqs, [1, 3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn a_snapshot_must_be_at_a_record_of_the_journal() {
    let dir = TempDir::new().unwrap();
    let journal = first_ten(dir.path());
    for at in [5, 11] {
        let error = journal.compact(&vec![], Seq(at)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "state in {}: cannot snapshot at sequence {at}: the journal has 6 to 10",
                dir.path().display()
            )
        );
    }
}

#[test]
fn segments_that_the_previous_snapshot_needs_are_always_retained() {
    let dir = TempDir::new().unwrap();
    let options = Options { retained_segments: 0, ..OPTIONS };
    let journal = Numbers::open(dir.path(), options).unwrap().journal;
    for number in 1..=40_u32 {
        journal.append(&number.to_string()).unwrap();
        if number % 10 == 0 {
            journal.compact(&(1..=number).collect(), Seq(number.into())).unwrap();
        }
    }
    assert_eq!(numbers(&journal, 0), (31..=40).collect::<Vec<_>>());
    drop(journal);
    fs::write(dir.path().join("snapshot"), "").unwrap();
    assert_eq!(all(&open(dir.path())), (1..=40).collect::<Vec<_>>());
}
