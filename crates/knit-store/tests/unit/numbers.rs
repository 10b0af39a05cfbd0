//! A journal whose records are numbers as text and whose snapshot is their list.

use std::fs;
use std::path::Path;

use knit_store::{Format, Journal, OpenedJournal, Options, Seq};
use tempfile::TempDir;

pub type Numbers = Journal<String, Vec<u32>>;

pub const OPTIONS: Options = Options { format: Format::initial(), retained_segments: 4 };

pub fn open(dir: &Path) -> OpenedJournal<String, Vec<u32>> {
    Numbers::open(dir, OPTIONS).unwrap()
}

/// The numbers of the snapshot and the records after it.
pub fn all(opened: &OpenedJournal<String, Vec<u32>>) -> Vec<u32> {
    let covered = opened.snapshot.iter().flat_map(|(_, numbers)| numbers.clone());
    covered.chain(opened.records.iter().map(|(_, text)| text.parse().unwrap())).collect()
}

/// One to ten, with snapshots after three and six: two archived segments, and seven to ten in the journal.
pub fn first_ten(dir: &Path) -> Numbers {
    let journal = open(dir).journal;
    for number in 1..=10_u32 {
        assert_eq!(journal.append(&number.to_string()).unwrap(), Seq(number.into()));
        if number == 3 || number == 6 {
            journal.compact(&(1..=number).collect(), Seq(number.into())).unwrap();
        }
    }
    journal
}

/// Copies the directory.
pub fn copy(dir: &Path) -> TempDir {
    let other = TempDir::new().unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), other.path().join(entry.file_name())).unwrap();
    }
    other
}
