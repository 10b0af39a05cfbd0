//! Runs one plugin once, with a timeout.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::writable_sysctls;

/// Upper bound of a plugin's output, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;
/// Longest pause between two checks of a running plugin.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A plugin invocation.
pub(super) struct Plugin<'a> {
    pub(super) kind: String,
    pub(super) dirs: &'a [String],
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) timeout: Duration,
}

/// Why a plugin failed.
pub(super) struct Failure {
    kind: String,
    /// The CNI error code that it reported, or 0.
    code: u64,
    why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => write!(out, "plugin {}: {}", self.kind, self.why),
            code => write!(out, "plugin {} failed with code {code}: {}", self.kind, self.why),
        }
    }
}

impl Plugin<'_> {
    /// Runs the plugin and returns its output, if it is a JSON object.
    pub(super) fn run(self, config: &Value) -> Result<Option<Value>, Failure> {
        let failed = |code: u64, why: String| Failure { kind: self.kind.clone(), code, why };
        let program =
            self.find().ok_or_else(|| failed(0, format!("not found in {}", self.dirs.join(", "))))?;
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        // A process group of its own, so that its children are killed with it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = writable_sysctls::spawn(&mut command).map_err(|why| failed(0, why.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // A plugin that ended early reports the reason itself.
            let _ = input.write_all(config.to_string().as_bytes());
        }
        let (output, errors) = (read_output(child.stdout.take()), read_output(child.stderr.take()));
        let status = match wait(&mut child, self.timeout) {
            Some(status) => status.map_err(|why| failed(0, why.to_string()))?,
            None => {
                let _ = killpg(Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()), Signal::SIGKILL);
                let _ = child.wait();
                let seconds = self.timeout.as_secs();
                return Err(failed(0, format!("timed out after {seconds} s and was killed")));
            }
        };
        let (output, errors) = (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
        let output_json: Option<Value> = serde_json::from_slice(&output).ok();
        if status.success() {
            return Ok(output_json.filter(Value::is_object));
        }
        let output_json = output_json.unwrap_or_default();
        let part = |key: &str| output_json.get(key).and_then(Value::as_str).unwrap_or_default();
        let code = output_json.get("code").and_then(Value::as_u64).unwrap_or_default();
        let mut why = [part("msg"), part("details")].join(" ").trim().to_owned();
        if why.is_empty() {
            why = format!("{status}: {}", String::from_utf8_lossy(&errors).trim());
        }
        Err(failed(code, why))
    }

    fn find(&self) -> Option<PathBuf> {
        let candidates = self.dirs.iter().map(|dir| Path::new(dir).join(&self.kind));
        candidates.into_iter().find(|path| path.is_file())
    }
}

/// Reads a plugin's output on a thread, so that the plugin never blocks on a full pipe.
fn read_output(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            // Partial output is used as it is.
            let _ = from.take(MAX_OUTPUT).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for the exit; `None` after the timeout.
fn wait(child: &mut Child, timeout: Duration) -> Option<std::io::Result<std::process::ExitStatus>> {
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(Ok(status)),
            Ok(None) if Instant::now() >= until => return None,
            Ok(None) => std::thread::sleep(pause),
            Err(why) => return Some(Err(why)),
        }
        pause = (pause * 2).min(MAX_POLL_INTERVAL);
    }
}
