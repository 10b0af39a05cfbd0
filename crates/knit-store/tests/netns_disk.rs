//! A disk that is full, and one that takes no writes: real ones, mounted in a namespace of the test's own.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod numbers;
}

use std::fs;
use std::path::Path;
use std::thread;

use knit_store::{Error, Seq};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use support::numbers::{Numbers, OPTIONS, all, first_ten, open};
use tempfile::TempDir;

const NONE: Option<&str> = None;

/// Runs the closure on a small disk. The mount is seen by one thread only, and goes with it.
fn on_a_small_disk(run: impl FnOnce(&Path) + Send) {
    let dir = TempDir::new().unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root: it mounts a small disk");
            mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
            mount(Some("small"), dir.path(), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
            run(dir.path());
        });
        thread.join().unwrap();
    });
}

/// Takes all space that is left.
fn fill(dir: &Path) {
    let (mut file, zeros) = (fs::File::create(dir.join("filler")).unwrap(), [0; 4096]);
    while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
}

#[test]
fn a_full_disk_is_said_in_words_and_loses_nothing() {
    on_a_small_disk(|dir| {
        let journal = first_ten(dir);
        fill(dir);
        // A page of the journal may still have room; then there is none.
        let long = format!("{:0>3000}", 11);
        let refused = (0..10).find_map(|_| journal.append(&long).err()).unwrap();
        assert_eq!(
            refused.to_string(),
            format!("cannot append to {}: the disk is full", dir.join("journal").display())
        );
        assert!(matches!(refused, Error::Full { .. }) && refused.may_retry());
        let last = journal.last();
        let compacted = journal.compact(&vec![7; 40_000], last).unwrap_err();
        assert_eq!(compacted.reason(), "DiskFull");
        assert!(
            !dir.join("snapshot.new").exists(),
            "a half-written snapshot takes the little space there is"
        );

        // With room again the same journal goes on where it was.
        fs::remove_file(dir.join("filler")).unwrap();
        assert_eq!(journal.append(&"12".to_owned()).unwrap(), Seq(last.0 + 1));
        drop(journal);
        let opened = open(dir);
        assert_eq!(opened.findings, []);
        assert_eq!(all(&opened).len() as u64, last.0 + 1);
    });
}

#[test]
fn a_full_disk_still_opens_what_is_there() {
    on_a_small_disk(|dir| {
        drop(first_ten(dir));
        fill(dir);
        assert_eq!(all(&open(dir)), (1..=10).collect::<Vec<_>>());
    });
}

#[test]
fn a_read_only_disk_is_said_in_words() {
    on_a_small_disk(|dir| {
        drop(first_ten(dir));
        mount(NONE, dir, NONE, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, NONE).unwrap();
        let refused = Numbers::open(dir, OPTIONS).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("cannot open {}: the file system is read-only", dir.join("state.lock").display())
        );
        assert_eq!(refused.reason(), "DiskReadOnly");
    });
}
