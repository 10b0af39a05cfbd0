//! Background processes that never outlive their testbed.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// A program in the background. Cheap to clone; killed with the testbed.
#[derive(Clone, Debug)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pid: u32,
    /// With the PID this identifies one process, also after the PID is reused.
    start_time: Option<u64>,
    command: String,
    child: Mutex<Child>,
    output: File,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let output = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = command.spawn()?;
        let pid = child.id();
        let command = Self::describe(command);
        Ok(Self {
            inner: Arc::new(Inner {
                pid,
                start_time: start_time(pid),
                command,
                child: Mutex::new(child),
                output,
            }),
        })
    }

    /// The command line, without the leading `nsenter`.
    pub(crate) fn describe(command: &Command) -> String {
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let start = words.iter().position(|word| word == "--").map_or(0, |dashes| dashes + 1);
        words[start..].join(" ")
    }

    /// The PID of the program itself.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// Its output so far, standard output and standard error together.
    pub fn output(&self) -> String {
        let mut text = Vec::new();
        let mut part = [0; 4096];
        // Reads by position: the program writes at the shared file offset.
        while let Ok(length @ 1..) = self.inner.output.read_at(&mut part, text.len() as u64) {
            text.extend_from_slice(&part[..length]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Whether it is still running.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// Its exit status, if it has exited.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        let mut child = self.inner.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().ok().flatten()
    }

    /// Kills it, waits for its exit and returns its exit status. Stopping it twice is not an error.
    pub fn stop(&self) -> io::Result<ExitStatus> {
        let mut child = self.inner.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.kill()?;
        child.wait()
    }

    /// Whether the started process still exists, also as a zombie.
    pub(crate) fn still_exists(&self) -> bool {
        self.inner.start_time.is_some() && start_time(self.pid()) == self.inner.start_time
    }
}

impl fmt::Display for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} `{}`", self.inner.pid, self.inner.command)
    }
}

/// When the process started, in clock ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of proc_pid_stat(5), counted after the command name, which may contain anything.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_after_a_command_name_with_parentheses() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0";
        assert_eq!(parse_start_time(stat), Some(987_654));
        assert_eq!(parse_start_time("garbage"), None);
    }

    #[test]
    fn command_is_described_without_nsenter() {
        let mut command = Command::new("nsenter");
        command.args(["--net=/run/netns/x", "--", "sleep", "1"]);
        assert_eq!(Process::describe(&command), "sleep 1");
    }
}
