//! Several threads write, and the process is killed.
//!
//! A program of its own: the test starts itself again as the process that is killed, selected by an environment variable.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

#[allow(dead_code, reason = "shared with the unit tests")]
#[path = "unit/numbers.rs"]
mod numbers;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use numbers::open;
use tempfile::TempDir;

const CHILD: &str = "KNIT_STORE_TEST_CHILD";

/// Appends from two threads, every tenth record durably, and prints each sequence number. It ends by itself once stdout is
/// closed.
fn write_until_killed(dir: &Path) -> ! {
    let journal = open(dir).journal;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Bounded: 200,000 records take far longer than the parent waits.
                for number in 0..200_000 {
                    let record = "7".repeat(100);
                    let append = if number % 10 == 0 {
                        journal.append_durable(&record)
                    } else {
                        journal.append(&record)
                    };
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "recorded {}", append.unwrap()).unwrap();
                }
            });
        }
    });
    std::process::exit(0)
}

#[test]
fn appended_records_survive_sigkill() {
    if let Some(dir) = std::env::var_os(CHILD) {
        write_until_killed(Path::new(&dir));
    }
    for wait_for in [1, 50, 3000] {
        let dir = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "appended_records_survive_sigkill", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers =
            lines.map_while(|line| line.ok()).filter_map(|line| line.strip_prefix("recorded ")?.parse().ok());
        let seen: Vec<u64> = numbers.by_ref().take(wait_for).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let highest = seen.into_iter().chain(numbers).max().unwrap();
        let opened = open(dir.path());
        let findings = opened.findings.len();
        let last = opened.records.last().unwrap().0.0;
        assert!(last >= highest, "{highest} was recorded, {last} is the last that is there");
        assert!(opened.records.iter().zip(1..).all(|((seq, _), number)| seq.0 == number));
        assert!(findings <= 1, "{:?}", opened.findings);
    }
}
