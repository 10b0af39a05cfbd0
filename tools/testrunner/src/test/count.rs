//! Counting what passed and failed, over test programs and checks of our own.

use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::kinds::Seen;

/// A run with this many tests that passed only when they ran once more has failed: that is no coincidence any more.
const MAX_FLAKY: usize = 3;

/// How many tests passed and failed, which failed, and which passed only when they ran once more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    passed: usize,
    failed: usize,
    failures: Vec<String>,
    flaky: Vec<String>,
    seen: Seen,
}

impl Count {
    /// Something that should have run tests and could not.
    pub fn failure() -> Self {
        Self { failed: 1, ..Self::default() }
    }

    /// What the tests did to links.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }

    /// Takes in what tests noted about links.
    pub fn read_notes(&mut self, lines: &str, place: &'static str) {
        self.seen.read(lines, place);
    }

    /// How many passed.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// The tests that failed, by name.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// A test that failed has passed when it ran once more, alone.
    pub fn passed_on_retry(&mut self, name: &str, again: Self) {
        self.seen.add(again.seen);
        self.failures.retain(|failed| failed != name);
        self.failed = self.failed.saturating_sub(1);
        self.passed += 1;
        self.flaky.push(name.to_owned());
    }

    /// Counts flaky tests as failed if there are too many.
    pub fn limit_flaky(&mut self) {
        if self.flaky.len() >= MAX_FLAKY {
            self.passed = self.passed.saturating_sub(self.flaky.len());
            self.failed += self.flaky.len();
            self.failures.append(&mut self.flaky);
        }
    }

    /// Counts one check by its outcome and shows it the way the test harness does.
    pub fn check<T>(&mut self, name: &str, outcome: anyhow::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                println!("test {name} ... ok");
                self.passed += 1;
                Some(value)
            }
            Err(error) => {
                println!("test {name} ... FAILED\n{error:#}");
                self.failed += 1;
                self.failures.push(name.to_owned());
                None
            }
        }
    }

    /// Takes in one line of a test program's output. The harness closes with
    /// `test result: ok. 3 passed; 0 failed; ...`, and names each failure in a line of its own.
    pub fn read_line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }

    /// A program that ended badly without naming a failed test (a crash, a time limit) counts as one failure.
    pub fn program_failed(&mut self, program: &str) {
        if self.failed == 0 {
            self.failed = 1;
            self.failures.push(format!("{program} (ended before it could say which test)"));
        }
    }

    /// Names the failed and the flaky tests again, after everything else.
    pub fn print_failures(&self) {
        let flaky = ("flaky (failed, then passed alone; each one hides a fault):", &self.flaky);
        for (title, names) in [flaky, ("failed:", &self.failures)] {
            if !names.is_empty() {
                println!("{title}");
                names.iter().for_each(|name| println!("  {name}"));
            }
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
        self.seen.add(other.seen);
    }
}

/// One line: `12 passed, 0 failed`, or `flaky=1: 12 passed, 0 failed`. Programs read it, so that nothing may follow.
impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.flaky.is_empty() {
            write!(out, "flaky={}: ", self.flaky.len())?;
        }
        write!(out, "{} passed, {} failed", self.passed, self.failed)
    }
}

fn number_before(text: &str, word: &str) -> usize {
    let end = text.find(word).unwrap_or(0);
    let digits = text[..end].rsplit(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_summary_is_counted() {
        let mut count = Count::default();
        count.read_line(
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s",
        );
        count.read_line("test a::b ... FAILED");
        count.read_line("test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!((count.passed(), count.failed()), (15, 1));
        assert_eq!(count.failures, ["a::b"]);
        assert_eq!(count.to_string(), "15 passed, 1 failed");
    }

    #[test]
    fn a_test_that_passes_when_run_again_is_no_failure_and_is_remembered() {
        let mut count = Count::default();
        for line in ["test a ... FAILED", "test b ... FAILED", "test result: FAILED. 3 passed; 2 failed;"] {
            count.read_line(line);
        }
        count.passed_on_retry("a", Count::default());
        assert_eq!((count.passed(), count.failed()), (4, 1));
        assert_eq!(
            (count.failures(), count.flaky.as_slice()),
            (&["b".to_owned()][..], &["a".to_owned()][..])
        );
    }

    #[test]
    fn the_last_line_shows_flaky_tests_and_three_of_them_are_failures() {
        let mut count = Count::default();
        for name in ["a", "b", "c"] {
            count.read_line(&format!("test {name} ... FAILED"));
        }
        count.read_line("test result: FAILED. 7 passed; 3 failed;");
        count.passed_on_retry("a", Count::default());
        count.passed_on_retry("b", Count::default());
        count.limit_flaky();
        assert_eq!(count.to_string(), "flaky=2: 9 passed, 1 failed");
        count.passed_on_retry("c", Count::default());
        count.limit_flaky();
        assert_eq!((count.to_string(), count.failures().len()), ("7 passed, 3 failed".to_owned(), 3));
    }

    #[test]
    fn a_crash_is_a_failure_even_if_no_test_was_named() {
        let mut count = Count::default();
        count.read_line("test result: garbage");
        count.program_failed("netns_wire");
        assert_eq!(count.failed(), 1);
    }

    #[test]
    fn a_failed_check_is_named() {
        let mut count = Count::default();
        assert!(count.check("good", Ok(1)).is_some());
        assert!(count.check::<()>("bad", Err(anyhow::anyhow!("why"))).is_none());
        assert_eq!((count.passed(), count.failed()), (1, 1));
        assert_eq!(count.failures, ["bad"]);
    }
}
