//! Runs an upstream test program in the cluster's cgroup, with its output as a log and as progress.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cgroups::Membership;
use crate::state::Cluster;

/// The report directory, without reports of an earlier run: they must not be mistaken for this one.
pub fn prepare<const N: usize>(folder: &Path, reports: [&str; N]) -> Result<[PathBuf; N]> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = fs::canonicalize(folder)?;
    let reports = reports.map(|name| folder.join(name));
    for old in reports.iter().filter(|old| old.exists()) {
        fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    Ok(reports)
}

/// Runs the program to its end. `follow` reads all of its output.
pub fn run(
    cluster: &Cluster,
    mut program: Command,
    follow: impl FnOnce(PipeReader) -> Result<()>,
) -> Result<(ExitStatus, Duration)> {
    let (printed, print) = std::io::pipe().context("cannot create a pipe")?;
    program.stdin(Stdio::null()).stdout(print.try_clone()?).stderr(print);
    let start = Instant::now();
    // `down` must find the tests too if they outlive this command.
    let membership = Membership::enter(&cluster.names().cgroup())?;
    let mut child = program.spawn().context("cannot start the upstream tests")?;
    drop(membership);
    // The command holds the write end of the pipe: without dropping it the output never ends.
    drop(program);
    follow(printed)?;
    let status = child.wait()?;
    Ok((status, start.elapsed()))
}

/// Copies the output to the log and passes on each line, until the output ends.
pub fn lines(output: impl Read, log: &Path, mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut copy = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).context("cannot read the tests' output")? > 0 {
        copy.write_all(&line).context("cannot write the tests' log")?;
        on_line(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    Ok(())
}

/// The end of a log, for errors.
pub fn tail(log: &Path) -> String {
    let output = fs::read(log).unwrap_or_default();
    let end = knit_dev::process::tail(&String::from_utf8_lossy(&output));
    format!("the end of {}:\n{end}", log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_contains_the_whole_output() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut seen = Vec::new();
        lines(&b"a\n\xff\nb"[..], &log, |line| seen.push(line.to_owned())).unwrap();
        assert_eq!(seen, ["a", "\u{fffd}", "b"]);
        assert_eq!(fs::read(&log).unwrap(), b"a\n\xff\nb");
    }
}
