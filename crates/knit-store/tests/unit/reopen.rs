//! Contents of a journal after it was reopened, intact or damaged.

use std::fs;

use crate::numbers::{Numbers, all, copy, first_ten, open};
use knit_store::recovery::SnapshotFallback;
use knit_store::{RecoveryFinding, Seq};
use tempfile::TempDir;

#[test]
fn records_are_restored_in_order_and_numbers_continue() {
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
fn a_second_open_is_rejected_with_the_pid_of_the_holder() {
    let dir = TempDir::new().unwrap();
    let opened = open(dir.path());
    let error = Numbers::open(dir.path(), crate::numbers::OPTIONS).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "state in {}: locked by another knit process (pid {})",
            dir.path().display(),
            std::process::id()
        )
    );
    assert!(error.is_retryable());
    drop(opened);
    open(dir.path());
}

#[test]
fn a_journal_truncated_at_any_byte_gives_the_intact_records_before() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let whole = fs::read(dir.path().join("journal")).unwrap();
    for length in 0..whole.len() {
        let truncated = copy(dir.path());
        fs::write(truncated.path().join("journal"), &whole[..length]).unwrap();
        let opened = open(truncated.path());
        let lines = whole[..length].iter().filter(|byte| **byte == b'\n').count();
        // The snapshot covers six; the journal has a header and four records.
        let expected: Vec<u32> = (1..=6 + lines.saturating_sub(1) as u32).collect();
        assert_eq!(all(&opened), expected, "truncated at {length}");
        let at_a_boundary = length > 0 && whole[length - 1] == b'\n';
        assert_eq!(opened.findings.is_empty(), at_a_boundary, "truncated at {length}: {:?}", opened.findings);
        assert!(opened.findings.iter().all(RecoveryFinding::loses_records));
        opened.journal.append(&"11".to_owned()).unwrap();
        drop(opened.journal);
        let opened = open(truncated.path());
        assert_eq!(all(&opened), [expected, vec![11]].concat(), "truncated at {length}");
        assert_eq!(opened.findings, [], "truncated at {length}");
    }
}

#[test]
fn a_torn_record_is_reported() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let path = dir.path().join("journal");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let opened = open(dir.path());
    assert_eq!(
        opened.findings[0].to_string(),
        "journal: the record after sequence 9 was partially written; 14 bytes were truncated"
    );
}

#[test]
fn damage_at_any_byte_is_detected_and_the_file_is_kept() {
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
        assert_eq!(
            opened.findings.iter().any(RecoveryFinding::loses_records),
            used < 10,
            "{:?}",
            opened.findings
        );
        let kept = fs::read(damaged.path().join("journal.damaged-1"));
        let torn = matches!(opened.findings[0], RecoveryFinding::Torn { .. });
        assert!(torn || kept.unwrap() == bytes, "damage at {at}: {:?}", opened.findings);
        // A number that may have been observed is not reused.
        let next = opened.journal.append(&"77".to_owned()).unwrap();
        assert!(torn || next >= Seq(11), "damage at {at}: {next}");
        drop(opened.journal);
        let opened = open(damaged.path());
        assert_eq!(opened.findings, [], "damage at {at}");
        assert_eq!(all(&opened), (1..=used).chain([77]).collect::<Vec<_>>(), "damage at {at}");
    }
}

#[test]
fn damage_and_a_gap_are_reported() {
    let dir = TempDir::new().unwrap();
    drop(first_ten(dir.path()));
    let path = dir.path().join("journal");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"8\"", "\"9\"")).unwrap();
    let messages: Vec<_> = open(dir.path()).findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "journal: 15 bytes at offset 76, after sequence 7, are corrupt; records were lost; \
             the file was renamed to journal.damaged-1",
            "records between sequence 7 and 9 are missing; 2 intact records after the gap were not used \
             and are kept in journal.damaged-1",
        ]
    );
}

#[test]
fn a_damaged_snapshot_loses_nothing() {
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
        assert_eq!(
            opened.findings,
            [RecoveryFinding::NoSnapshot { kept, fallback: SnapshotFallback::Previous(Seq(3)) }]
        );
        assert_eq!(fs::read(damaged.path().join("snapshot.damaged-1")).unwrap(), bytes);
        drop(opened);
        let opened = open(damaged.path());
        assert_eq!((all(&opened).len(), opened.findings), (10, vec![]));
    }
}

#[test]
fn missing_files_are_reported() {
    let without = |names: &[&str]| {
        let dir = TempDir::new().unwrap();
        drop(first_ten(dir.path()));
        names.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
        let opened = open(dir.path());
        let next = opened.journal.append(&"11".to_owned()).unwrap();
        let messages: Vec<_> = opened.findings.iter().map(ToString::to_string).collect();
        (all(&opened).len(), next.0, messages.join("; "))
    };
    assert_eq!(
        without(&["journal"]),
        (6, 7, "the journal is missing; changes after sequence 6 are lost".to_owned())
    );
    assert_eq!(
        without(&["snapshot"]),
        (10, 11, "the snapshot is missing; the previous one, of sequence 3, was used".to_owned())
    );
    // All records are still there, so the missing snapshot cannot be noticed.
    assert_eq!(without(&["snapshot", "snapshot.1"]), (10, 11, String::new()));
    let (records, next, message) = without(&["snapshot", "snapshot.1", "journal.1"]);
    assert_eq!((records, next), (0, 11));
    assert_eq!(message, "the snapshot is missing; the state must be rebuilt");
    let (records, next, message) = without(&["snapshot", "journal.4"]);
    assert_eq!((records, next), (3, 11));
    assert!(message.contains("records between sequence 3 and 7 are missing"), "{message}");
}

#[test]
fn missing_files_are_reported_once() {
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
