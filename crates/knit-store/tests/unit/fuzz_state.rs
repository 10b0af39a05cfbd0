//! Fuzzed state directories: random bytes, random damage, and nonsense lines with valid checksums.
//! Opening never panics, uses only records that were written, and leaves a usable directory.

use std::fs;
use std::path::Path;

use crate::numbers::{Numbers, OPTIONS, all, first_ten};
use knit_store::{RecoveryFinding, Seq};
use proptest::prelude::*;
use tempfile::TempDir;

/// Files that are read on open.
const FILES: [&str; 8] = [
    "journal",
    "snapshot",
    "snapshot.1",
    "journal.1",
    "journal.4",
    "journal.new",
    "snapshot.new",
    "journal.18446744073709551615",
];

/// Damage of a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip { at: usize, with: u8 },
    Cut { at: usize },
    Remove { at: usize, length: usize },
    Insert { at: usize, bytes: Vec<u8> },
    Repeat { at: usize, length: usize },
    Replace { other: usize },
    Missing,
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop::collection::vec(any::<u8>(), 1..40);
    prop_oneof![
        (any::<usize>(), 1..=255_u8).prop_map(|(at, with)| Damage::Flip { at, with }),
        any::<usize>().prop_map(|at| Damage::Cut { at }),
        (any::<usize>(), 1..60_usize).prop_map(|(at, length)| Damage::Remove { at, length }),
        (any::<usize>(), bytes).prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        (any::<usize>(), 1..200_usize).prop_map(|(at, length)| Damage::Repeat { at, length }),
        (0..FILES.len()).prop_map(|other| Damage::Replace { other }),
        Just(Damage::Missing),
    ]
}

fn apply_damage(dir: &Path, file: usize, damage: &Damage) {
    let path = dir.join(FILES[file]);
    let mut bytes = fs::read(&path).unwrap_or_default();
    let place = |at: usize| at % (bytes.len() + 1);
    let range = |at: usize, length: usize| place(at)..(place(at) + length).min(bytes.len());
    match damage {
        Damage::Flip { at, with } => {
            let at = place(*at);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= with;
            }
        }
        Damage::Cut { at } => bytes.truncate(place(*at)),
        Damage::Remove { at, length } => drop(bytes.drain(range(*at, *length))),
        Damage::Insert { at, bytes: new } => drop(bytes.splice(place(*at)..place(*at), new.iter().copied())),
        Damage::Repeat { at, length } => {
            let piece = bytes[range(*at, *length)].to_vec();
            drop(bytes.splice(place(*at)..place(*at), piece));
        }
        Damage::Replace { other } => bytes = fs::read(dir.join(FILES[*other])).unwrap_or_default(),
        Damage::Missing => {
            let _ = fs::remove_file(path);
            return;
        }
    }
    fs::write(path, bytes).unwrap();
}

/// CRC-32, computed bit by bit.
fn crc(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0_u32, |value, byte| {
        (0..8).fold(value ^ u32::from(byte), |value, _| (value >> 1) ^ (0xedb8_8320 * (value & 1)))
    })
}

/// A line with a valid checksum.
fn line(seq: u64, json: &str) -> String {
    format!("{seq} {:08x} {json}\n", crc(json.bytes().chain(seq.to_le_bytes())))
}

/// Sequence numbers, biased to boundaries.
fn seq() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 2, 3, 4, 7, 1 << 32, 1 << 62, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()]
}

/// A line with a valid checksum that the journal never writes.
fn odd_line() -> impl Strategy<Value = String> {
    let format = prop_oneof![Just(1_u32), any::<u32>()];
    let header = (format.clone(), seq(), seq()).prop_map(|(format, first, after)| {
        line(0, &format!(r#"{{"knit":"journal","format":{format},"first":{first},"after":{after}}}"#))
    });
    let snapshot = (format, seq()).prop_map(|(format, seq)| {
        line(0, &format!(r#"{{"knit":"snapshot","format":{format},"seq":{seq}}}"#))
    });
    let json = prop::sample::select(vec![r#""7""#, "[1,2]", "[]", "null", "{", "", r#""\ud800""#]);
    let record = (seq(), json).prop_map(|(seq, json)| line(seq, json));
    prop_oneof![2 => header, 1 => snapshot, 4 => record]
}

/// Opens, appends and reopens: nothing panics, and accepted state is accepted again.
fn assert_works(dir: &Path) -> Result<(), TestCaseError> {
    // An unusable directory is rejected and left unchanged.
    let Ok(opened) = Numbers::open(dir, OPTIONS) else { return Ok(()) };
    prop_assert!(opened.findings.iter().all(|finding| !finding.to_string().is_empty()));
    let covered = opened.snapshot.as_ref().map_or(0, |(Seq(seq), _)| *seq);
    let seqs: Vec<u64> = opened.records.iter().map(|(Seq(seq), _)| *seq).collect();
    prop_assert!(seqs.iter().all(|seq| *seq > covered), "{:?} after {}", seqs, covered);
    prop_assert!(seqs.is_sorted_by(|one, next| one < next), "{:?}", seqs);
    let numbers = all(&opened);
    if opened.findings.iter().any(RecoveryFinding::loses_records) {
        // As every user of a journal must: after a loss, records are usable only after a new snapshot.
        opened.journal.compact(&numbers, opened.journal.last()).unwrap();
    }
    let Seq(next) = opened.journal.append(&"77".to_owned()).unwrap();
    prop_assert!(seqs.iter().all(|seq| *seq < next), "{} after {:?}", next, seqs);
    drop(opened.journal);

    let again = Numbers::open(dir, OPTIONS).unwrap();
    prop_assert_eq!(all(&again), [numbers, vec![77]].concat());
    prop_assert!(!again.findings.iter().any(RecoveryFinding::loses_records), "{:?}", again.findings);
    Ok(())
}

proptest! {
    #[test]
    fn a_damaged_directory_yields_only_written_records(
        damages in prop::collection::vec((0..FILES.len(), damage()), 1..6)
    ) {
        let dir = TempDir::new().unwrap();
        drop(first_ten(dir.path()));
        damages.iter().for_each(|(file, damage)| apply_damage(dir.path(), *file, damage));
        if let Ok(opened) = Numbers::open(dir.path(), OPTIONS) {
            if let Some((Seq(seq), numbers)) = &opened.snapshot {
                prop_assert_eq!(numbers, &(1..=u32::try_from(*seq).unwrap()).collect::<Vec<_>>());
            }
            for (Seq(seq), text) in &opened.records {
                prop_assert_eq!(text, &seq.to_string());
            }
        }
        assert_works(dir.path())?;
    }

    #[test]
    fn random_bytes_are_usable_or_rejected(
        files in prop::collection::vec((0..FILES.len(), prop::collection::vec(any::<u8>(), 0..200)), 1..4)
    ) {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(file, bytes)| fs::write(dir.path().join(FILES[*file]), bytes).unwrap());
        assert_works(dir.path())?;
    }

    #[test]
    fn nonsense_with_valid_checksums_is_usable_or_rejected(
        files in prop::collection::vec((0..FILES.len(), prop::collection::vec(odd_line(), 0..6)), 1..5)
    ) {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(file, lines)| fs::write(dir.path().join(FILES[*file]), lines.concat()).unwrap());
        assert_works(dir.path())?;
    }
}
