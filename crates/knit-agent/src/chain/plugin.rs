//! One plugin, run once, with a deadline.

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// No result is larger.
const MOST_OUTPUT: u64 = 1 << 20;
/// How often a running plugin is looked at, at most.
const LOOK: Duration = Duration::from_millis(5);

/// A plugin that is about to be run.
pub(super) struct Plugin<'a> {
    pub(super) kind: String,
    pub(super) dirs: &'a [String],
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) timeout: Duration,
}

/// Why a plugin did not do what it was run for.
pub(super) struct Failure {
    kind: String,
    /// The code that it said, or 0.
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
    /// Runs it; answers with what it wrote, if it wrote something.
    pub(super) fn run(self, config: &Value) -> Result<Option<Value>, Failure> {
        let failed = |code: u64, why: String| Failure { kind: self.kind.clone(), code, why };
        let program =
            self.find().ok_or_else(|| failed(0, format!("it is in none of {}", self.dirs.join(", "))))?;
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        // A group of its own, so that what it started ends with it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|why| failed(0, why.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // One that ended early says why.
            let _ = input.write_all(config.to_string().as_bytes());
        }
        let (output, errors) = (listen(child.stdout.take()), listen(child.stderr.take()));
        let status = match wait(&mut child, self.timeout) {
            Some(status) => status.map_err(|why| failed(0, why.to_string()))?,
            None => {
                let _ = killpg(Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()), Signal::SIGKILL);
                let _ = child.wait();
                let seconds = self.timeout.as_secs();
                return Err(failed(0, format!("it did not end within {seconds} s and was killed")));
            }
        };
        let (output, errors) = (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
        let said: Option<Value> = serde_json::from_slice(&output).ok();
        if status.success() {
            return Ok(said.filter(Value::is_object));
        }
        let said = said.unwrap_or_default();
        let part = |key: &str| said.get(key).and_then(Value::as_str).unwrap_or_default();
        let code = said.get("code").and_then(Value::as_u64).unwrap_or_default();
        let mut why = [part("msg"), part("details")].join(" ").trim().to_owned();
        if why.is_empty() {
            why = format!("{status}: {}", String::from_utf8_lossy(&errors).trim());
        }
        Err(failed(code, why))
    }

    fn find(&self) -> Option<PathBuf> {
        let places = self.dirs.iter().map(|dir| Path::new(dir).join(&self.kind));
        places.into_iter().find(|path| path.is_file())
    }
}

/// Reads what a plugin writes, so that it never waits for a reader.
fn listen(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            // What was read so far will do.
            let _ = from.take(MOST_OUTPUT).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits until it ends; nothing if it does not in time.
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
        pause = (pause * 2).min(LOOK);
    }
}
