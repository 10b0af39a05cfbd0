//! What is there after the journal was closed and opened again, whole or damaged.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod numbers;
}

use std::fs;

use knit_store::finding::Instead;
use knit_store::{Finding, Seq};
use support::numbers::{Numbers, all, copy, first_ten, open};
use tempfile::TempDir;

#[test]
fn records_come_back_in_order_and_numbers_go_on() {
    let dir = TempDir::new().unwrap();
    let opened = open(dir.path());
    assert_eq!((opened.snapshot, opened.records.len(), opened.findings.len()), (None, 0, 0));
    assert_eq!(opened.journal.last(), Seq(0));
    assert_eq!(opened.journal.append(&"one\ntwo".to_owned()).unwrap(), Seq(1));
    assert_eq!(opened.journal.append_durable(&"ü\u{0}".to_owned()).unwrap(), Seq(2));
    drop(opened.journal);
    let opened = open(dir.path());
    assert_eq!(opened.records, [(Seq(1), "one\ntwo".to_owned()), (Seq(2), "ü\u{0}".to_owned())]);
    assert_eq!(opened.journal.append(&String::new()).unwrap(), Seq(3));
}

#[test]
fn a_second_opener_is_refused_with_the_first_ones_pid() {
    let dir = TempDir::new().unwrap();
    let opened = open(dir.path());
    let refused = Numbers::open(dir.path(), support::numbers::OPTIONS).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "state in {}: another knit is working here (pid {})",
            dir.path().display(),
            std::process::id()
        )
    );
    assert!(refused.may_retry());
    drop(opened);
    open(dir.path());
}

#[test]
fn a_journal_cut_at_any_byte_gives_the_whole_records_before_the_cut() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let whole = fs::read(dir.path().join("journal")).unwrap();
    for length in 0..whole.len() {
        let cut = copy(dir.path());
        fs::write(cut.path().join("journal"), &whole[..length]).unwrap();
        let opened = open(cut.path());
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        // The snapshot covers six; the journal has a header and four records.
        let expected: Vec<u32> = (1..=6 + lines.saturating_sub(1) as u32).collect();
        assert_eq!(all(&opened), expected, "cut at {length}");
        let at_a_boundary = length > 0 && whole[length - 1] == b'\n';
        assert_eq!(opened.findings.is_empty(), at_a_boundary, "cut at {length}: {:?}", opened.findings);
        assert!(opened.findings.iter().all(Finding::loses));
        opened.journal.append(&"11".to_owned()).unwrap();
        drop(opened.journal);
        let opened = open(cut.path());
        assert_eq!(all(&opened), [expected, vec![11]].concat(), "cut at {length}");
        assert_eq!(opened.findings, [], "cut at {length}");
    }
}

#[test]
fn a_torn_record_is_reported_in_words() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let path = dir.path().join("journal");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let opened = open(dir.path());
    assert_eq!(
        opened.findings[0].to_string(),
        "journal: the record after sequence 9 was not written to its end; its 14 bytes were cut"
    );
}

#[test]
fn damage_at_any_byte_is_found_kept_aside_and_ends_what_is_used() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let whole = fs::read(dir.path().join("journal")).unwrap();
    for at in 0..whole.len() {
        let damaged = copy(dir.path());
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(damaged.path().join("journal"), &bytes).unwrap();
        let opened = open(damaged.path());
        let lines_before = whole[..at].iter().filter(|byte| **byte == b'\n').count() as u32;
        let used = if lines_before == 0 && whole[at] != b'\n' { 10 } else { 5 + lines_before.max(1) };
        assert_eq!(all(&opened), (1..=used).collect::<Vec<_>>(), "damage at {at}: {:?}", opened.findings);
        assert!(!opened.findings.is_empty(), "damage at {at}");
        assert_eq!(opened.findings.iter().any(Finding::loses), used < 10, "{:?}", opened.findings);
        let aside = fs::read(damaged.path().join("journal.damaged-1"));
        let torn = matches!(opened.findings[0], Finding::Torn { .. });
        assert!(torn || aside.unwrap() == bytes, "damage at {at}: {:?}", opened.findings);
        // A number that someone may have seen is not given again.
        let next = opened.journal.append(&"77".to_owned()).unwrap();
        assert!(torn || next >= Seq(11), "damage at {at}: {next}");
        drop(opened.journal);
        let opened = open(damaged.path());
        assert_eq!(opened.findings, [], "damage at {at}");
        assert_eq!(all(&opened), (1..=used).chain([77]).collect::<Vec<_>>(), "damage at {at}");
    }
}

#[test]
fn damage_and_a_gap_are_reported_in_words() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let path = dir.path().join("journal");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"8\"", "\"9\"")).unwrap();
    let words: Vec<_> = open(dir.path()).findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "journal: 15 bytes at byte 76, after sequence 7, are damaged; records were lost; \
             the file is kept as journal.damaged-1",
            "records between sequence 7 and 9 are missing; 2 readable records after them were not used \
             and are kept in journal.damaged-1",
        ]
    );
}

#[test]
fn a_damaged_snapshot_costs_nothing() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let whole = fs::read(dir.path().join("snapshot")).unwrap();
    for at in 0..whole.len() {
        let damaged = copy(dir.path());
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        fs::write(damaged.path().join("snapshot"), &bytes).unwrap();
        let opened = open(damaged.path());
        assert_eq!(all(&opened), (1..=10).collect::<Vec<_>>(), "damage at {at}");
        let kept = Some("snapshot.damaged-1".to_owned());
        assert_eq!(opened.findings, [Finding::NoSnapshot { kept, instead: Instead::Previous(Seq(3)) }]);
        assert_eq!(fs::read(damaged.path().join("snapshot.damaged-1")).unwrap(), bytes);
        drop(opened);
        let opened = open(damaged.path());
        assert_eq!((all(&opened).len(), opened.findings), (10, vec![]));
    }
}

#[test]
fn each_missing_file_is_missed() {
    let without = |names: &[&str]| {
        let dir = TempDir::new().unwrap();
        drop(first_ten(dir.path()));
        names.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
        let opened = open(dir.path());
        let next = opened.journal.append(&"11".to_owned()).unwrap();
        let words: Vec<_> = opened.findings.iter().map(ToString::to_string).collect();
        (all(&opened).len(), next.0, words.join("; "))
    };
    assert_eq!(
        without(&["journal"]),
        (6, 7, "the journal is missing; what changed after sequence 6 is lost".to_owned())
    );
    assert_eq!(
        without(&["snapshot"]),
        (10, 11, "the snapshot is missing; the one before, of sequence 3, was used".to_owned())
    );
    // Everything is still there from the first record on, so nobody can tell that there ever was a snapshot.
    assert_eq!(without(&["snapshot", "snapshot.1"]), (10, 11, String::new()));
    let (records, next, words) = without(&["snapshot", "snapshot.1", "journal.1"]);
    assert_eq!((records, next), (0, 11));
    assert_eq!(words, "the snapshot is missing; the state must be built anew");
    let (records, next, words) = without(&["snapshot", "journal.4"]);
    assert_eq!((records, next), (3, 11));
    assert!(words.contains("records between sequence 3 and 7 are missing"), "{words}");
}

#[test]
fn what_was_missing_once_is_not_reported_again() {
    for names in [&["snapshot", "journal.4"][..], &["journal"], &["snapshot"]] {
        let dir = TempDir::new().unwrap();
        drop(first_ten(dir.path()));
        names.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
        let opened = open(dir.path());
        let before = all(&opened);
        drop(opened);
        let opened = open(dir.path());
        assert_eq!((all(&opened), opened.findings), (before, vec![]), "{names:?}");
    }
}
