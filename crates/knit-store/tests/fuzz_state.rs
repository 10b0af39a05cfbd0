//! State folders that no program wrote: random bytes, random damage, and lines with good checksums that make no sense.
//! Opening never panics, uses nothing that was not written, and leaves a folder that works.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod numbers;
}

use std::fs;
use std::path::Path;

use knit_store::{Finding, Seq};
use proptest::prelude::*;
use support::numbers::{Numbers, OPTIONS, all, first_ten};
use tempfile::TempDir;

/// Files that an opening looks at.
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

/// What happens to a file.
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

fn hurt(dir: &Path, file: usize, damage: &Damage) {
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

/// A checksum as the journal writes it, said in the plainest way.
fn crc(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0_u32, |value, byte| {
        (0..8).fold(value ^ u32::from(byte), |value, _| (value >> 1) ^ (0xedb8_8320 * (value & 1)))
    })
}

/// A line with a good checksum.
fn line(seq: u64, json: &str) -> String {
    format!("{seq} {:08x} {json}\n", crc(json.bytes().chain(seq.to_le_bytes())))
}

/// Sequence numbers, often at an edge.
fn seq() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 2, 3, 4, 7, 1 << 32, 1 << 62, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()]
}

/// A line that a program of ours never writes there.
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

/// Opens, works and opens again. Whatever was there, nothing panics, and what was accepted once is accepted again.
fn works(dir: &Path) -> Result<(), TestCaseError> {
    // A folder that cannot be used is refused in words and left as it is.
    let Ok(opened) = Numbers::open(dir, OPTIONS) else { return Ok(()) };
    prop_assert!(opened.findings.iter().all(|finding| !finding.to_string().is_empty()));
    let covered = opened.snapshot.as_ref().map_or(0, |(Seq(seq), _)| *seq);
    let seqs: Vec<u64> = opened.records.iter().map(|(Seq(seq), _)| *seq).collect();
    prop_assert!(seqs.iter().all(|seq| *seq > covered), "{:?} after {}", seqs, covered);
    prop_assert!(seqs.is_sorted_by(|one, next| one < next), "{:?}", seqs);
    let numbers = all(&opened);
    if opened.findings.iter().any(Finding::loses) {
        // As every user of a journal does: what follows a loss needs a snapshot that it follows.
        opened.journal.compact(&numbers, opened.journal.last()).unwrap();
    }
    let Seq(next) = opened.journal.append(&"77".to_owned()).unwrap();
    prop_assert!(seqs.iter().all(|seq| *seq < next), "{} after {:?}", next, seqs);
    drop(opened.journal);

    let again = Numbers::open(dir, OPTIONS).unwrap();
    prop_assert_eq!(all(&again), [numbers, vec![77]].concat());
    prop_assert!(!again.findings.iter().any(Finding::loses), "{:?}", again.findings);
    Ok(())
}

proptest! {
    #[test]
    fn nothing_that_was_not_written_comes_out_of_a_damaged_folder(
        hurts in prop::collection::vec((0..FILES.len(), damage()), 1..6)
    ) {
        let dir = TempDir::new().unwrap();
        drop(first_ten(dir.path()));
        hurts.iter().for_each(|(file, damage)| hurt(dir.path(), *file, damage));
        if let Ok(opened) = Numbers::open(dir.path(), OPTIONS) {
            if let Some((Seq(seq), numbers)) = &opened.snapshot {
                prop_assert_eq!(numbers, &(1..=u32::try_from(*seq).unwrap()).collect::<Vec<_>>());
            }
            for (Seq(seq), text) in &opened.records {
                prop_assert_eq!(text, &seq.to_string());
            }
        }
        works(dir.path())?;
    }

    #[test]
    fn random_bytes_are_a_folder_that_works_or_is_refused(
        files in prop::collection::vec((0..FILES.len(), prop::collection::vec(any::<u8>(), 0..200)), 1..4)
    ) {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(file, bytes)| fs::write(dir.path().join(FILES[*file]), bytes).unwrap());
        works(dir.path())?;
    }

    #[test]
    fn good_checksums_on_nonsense_are_a_folder_that_works_or_is_refused(
        files in prop::collection::vec((0..FILES.len(), prop::collection::vec(odd_line(), 0..6)), 1..5)
    ) {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(file, lines)| fs::write(dir.path().join(FILES[*file]), lines.concat()).unwrap());
        works(dir.path())?;
    }
}
