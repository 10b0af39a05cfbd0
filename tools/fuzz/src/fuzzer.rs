//! Builds the program of libFuzzer and runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_dev::packages::{self, Purpose};
use knit_dev::{places, process};

use crate::{Target, corpus};

/// The variable with the name of the target.
pub const TARGET: &str = "KNIT_FUZZ_TARGET";

/// Counters at every branch, which libFuzzer reads. They are flags of the stable compiler.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// An input that takes longer hangs.
const TIMEOUT_SECONDS: u32 = 10;
/// A process that uses more memory fails.
const MEMORY_MIB: u32 = 1_024;
/// The longest generated input.
const MAX_INPUT: u32 = 32_768;
/// A folder in memory, for the journal's files.
const MEMORY_FOLDER: &str = "/dev/shm";

/// The program of libFuzzer.
#[derive(Debug)]
pub struct Fuzzer {
    program: PathBuf,
    folder: PathBuf,
}

/// The result of fuzzing a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of inputs that were tried.
    pub inputs: u64,
    /// How long it took.
    pub duration: Duration,
    /// Whether an input failed.
    pub failed: bool,
}

impl Run {
    /// Inputs in a second.
    pub fn rate(&self) -> u64 {
        self.inputs / self.duration.as_secs().max(1)
    }
}

impl Fuzzer {
    /// Builds the program, into a target folder of its own: its compiler flags are other than those of ordinary builds.
    pub fn build() -> Result<Self> {
        packages::ensure(&[Purpose::Fuzz])?;
        eprintln!("builds Knit with coverage counters (about ten minutes the first time)");
        let folder = places::target().join("fuzz");
        let mut cargo = process::cargo();
        cargo.current_dir(places::workspace());
        cargo.env("RUSTFLAGS", COVERAGE.join(" ")).env("CARGO_TARGET_DIR", &folder);
        cargo.args(["build", "--locked", "--profile", "fuzz", "--package", "knit-fuzz"]);
        cargo.args(["--bin", "knit-fuzz-target", "--features", "libfuzzer"]);
        process::run(&mut cargo)?;
        Ok(Self { program: built(&folder)?, folder })
    }

    /// Fuzzes a target for this long, or until an input fails. The output of libFuzzer goes to a file.
    pub fn fuzz(&self, target: &Target, seconds: u64) -> Result<Run> {
        let [inputs, failures] = ["corpus", "failures"].map(|kind| self.folder.join(kind).join(target.name));
        for folder in [&inputs, &failures] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let log_path = self.folder.join(format!("{}.log", target.name));
        let log =
            fs::File::create(&log_path).with_context(|| format!("cannot create {}", log_path.display()))?;
        let temporary = temporary_folder()?;
        let mut fuzzer = self.command(target, temporary.path());
        fuzzer.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={MAX_INPUT}"));
        fuzzer.arg(format!("-artifact_prefix={}/", failures.display())).arg("-print_final_stats=1");
        fuzzer.arg(&inputs).args(corpus::folders(target).iter().filter(|folder| folder.is_dir()));
        let started = Instant::now();
        let status = process::status(fuzzer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))?;
        let duration = started.elapsed();
        let output = fs::read(&log_path).with_context(|| format!("cannot read {}", log_path.display()))?;
        let output = String::from_utf8_lossy(&output);
        if !status.success() {
            eprintln!("{}", process::tail(&output));
            eprintln!("the failed input is in {}; to repeat it:", failures.display());
            eprintln!("  cargo xtask fuzz {} --input FILE", target.name);
        }
        Ok(Run { inputs: executed(&output), duration, failed: !status.success() })
    }

    /// Runs a target once, with this input.
    pub fn repeat(&self, target: &Target, input: &Path) -> Result<()> {
        let temporary = temporary_folder()?;
        process::run(self.command(target, temporary.path()).arg(input))
    }

    fn command(&self, target: &Target, temporary: &Path) -> Command {
        let mut fuzzer = Command::new(&self.program);
        fuzzer.env(TARGET, target.name).env("TMPDIR", temporary);
        fuzzer.arg(format!("-timeout={TIMEOUT_SECONDS}")).arg(format!("-rss_limit_mb={MEMORY_MIB}"));
        fuzzer
    }
}

/// The program below a target folder: cargo names a folder after the machine.
fn built(folder: &Path) -> Result<PathBuf> {
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let programs = entries.filter_map(|entry| Some(entry.ok()?.path().join("fuzz/knit-fuzz-target")));
    match programs.into_iter().find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!("cargo built no knit-fuzz-target in {}", folder.display()),
    }
}

/// A folder that is removed with what a failed program leaves in it.
fn temporary_folder() -> Result<tempfile::TempDir> {
    let mut options = tempfile::Builder::new();
    options.prefix("knit-fuzz-");
    let in_memory = options.tempdir_in(MEMORY_FOLDER);
    in_memory.or_else(|_| options.tempdir()).context("cannot create a temporary folder")
}

/// The number of inputs in the statistics of libFuzzer.
fn executed(output: &str) -> u64 {
    let counts = output.lines().filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    counts.filter_map(|count| count.trim().parse().ok()).next_back().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_read_from_the_statistics() {
        let output = "Done\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec:     56\n";
        assert_eq!(executed(output), 1234);
        assert_eq!(executed("killed"), 0);
    }

    #[test]
    fn the_rate_of_a_short_run_is_defined() {
        let run = Run { inputs: 7, duration: Duration::from_millis(10), failed: false };
        assert_eq!(run.rate(), 7);
    }
}
