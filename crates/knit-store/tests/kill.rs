//! Several threads write, and the process is killed without warning.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    pub mod numbers;
}

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use support::numbers::open;
use tempfile::TempDir;

const CHILD: &str = "KNIT_STORE_TEST_CHILD";

/// Appends from two threads, every tenth record durably, and says each number once it is recorded. It ends by itself when
/// nobody listens any more.
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

/// The test starts itself once more as the process that is killed.
#[test]
fn what_was_appended_survives_kill_9() {
    if let Some(dir) = std::env::var_os(CHILD) {
        write_until_killed(Path::new(&dir));
    }
    for wait_for in [1, 50, 3000] {
        let dir = TempDir::new().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_appended_survives_kill_9", "--nocapture"])
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
        let torn = opened.findings.len();
        let last = opened.records.last().unwrap().0.0;
        assert!(last >= highest, "{highest} was recorded, {last} is the last that is there");
        assert!(opened.records.iter().zip(1..).all(|((seq, _), number)| seq.0 == number));
        assert!(torn <= 1, "{:?}", opened.findings);
    }
}
