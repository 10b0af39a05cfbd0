//! A full and a read-only file system, mounted in a private mount namespace.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "shared with the unit tests")]
#[path = "unit/numbers.rs"]
mod numbers;

use std::fs;
use std::path::Path;
use std::thread;

use knit_store::{Error, Seq};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use numbers::{Numbers, OPTIONS, all, first_ten, open};
use tempfile::TempDir;

const NONE: Option<&str> = None;

/// Runs the closure on a small tmpfs, which is mounted in the mount namespace of one thread.
fn on_a_small_disk(run: impl FnOnce(&Path) + Send) {
    let dir = TempDir::new().unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root to mount a tmpfs");
            mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
            mount(Some("small"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
            run(dir.path());
        });
        thread.join().unwrap();
    });
}

/// Fills the disk.
fn fill(dir: &Path) {
    let (mut file, zeros) = (fs::File::create(dir.join("filler")).unwrap(), [0; 4096]);
    while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing() {
    on_a_small_disk(|dir| {
        let journal = first_ten(dir);
        fill(dir);
        // The last page of the journal may still have space.
        let long = format!("{:0>3000}", 11);
        let error = (0..10).find_map(|_| journal.append(&long).err()).unwrap();
        assert_eq!(
            error.to_string(),
            format!("cannot append to {}: the disk is full", dir.join("journal").display())
        );
        assert!(matches!(error, Error::DiskFull { .. }) && error.is_retryable());
        let last = journal.last();
        let compacted = journal.compact(&vec![7; 40_000], last).unwrap_err();
        assert_eq!(compacted.reason(), "DiskFull");
        assert!(!dir.join("snapshot.new").exists(), "a partial snapshot wastes space");

        // With free space again the journal continues.
        fs::remove_file(dir.join("filler")).unwrap();
        assert_eq!(journal.append(&"12".to_owned()).unwrap(), Seq(last.0 + 1));
        drop(journal);
        let opened = open(dir);
        assert_eq!(opened.findings, []);
        assert_eq!(all(&opened).len() as u64, last.0 + 1);
    });
}

#[test]
fn a_full_disk_can_be_opened() {
    on_a_small_disk(|dir| {
        drop(first_ten(dir));
        fill(dir);
        assert_eq!(all(&open(dir)), (1..=10).collect::<Vec<_>>());
    });
}

#[test]
fn a_read_only_disk_is_reported() {
    on_a_small_disk(|dir| {
        drop(first_ten(dir));
        mount(NONE, dir, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, NONE).unwrap();
        let error = Numbers::open(dir, OPTIONS).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot open {}: the file system is read-only", dir.join("state.lock").display())
        );
        assert_eq!(error.reason(), "DiskReadOnly");
    });
}
