//! The cluster's long-running parts: starting them in the background, knowing whether they live, waiting for them.
//!
//! A part writes its own process id and start time before it becomes its program, so that a recycled id is never
//! mistaken for it. Its parent is the machine's first process from the start: it outlives the command that made it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::state::Cluster;
use knit_dev::process;

/// `$1` is the file for the process id, the rest is the command. Field 22 of `stat` is the start time.
const BECOME: &str = r#"
set -e
started() { shift 21; echo "$1"; }
read -r stat < /proc/$$/stat
echo "$$ $(started $stat)" > "$1"
shift
exec "$@"
"#;

/// How much of a log is read to show its end.
const TAIL_BYTES: u64 = 16 * 1024;

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The process id.
    pub pid: i32,
    started: u64,
}

impl Running {
    /// Whether that very process still runs. One that has ended but was not waited for does not.
    pub fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        parse_stat(&stat)
            .is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    fn parse(text: &str) -> Option<Self> {
        // Without its line end the file is still being written.
        let (pid, started) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// State and start time of a process. Its name, in parentheses, may hold anything.
pub fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.nth(18)?.parse().ok()?))
}

/// A part that is about to be started.
pub struct Daemon {
    part: String,
    words: Vec<OsString>,
    environment: Vec<(String, OsString)>,
}

impl Daemon {
    /// A program of the root namespace. `part` names its log.
    pub fn new(part: impl Into<String>, program: impl AsRef<OsStr>) -> Self {
        Self { part: part.into(), words: vec![program.as_ref().to_owned()], environment: Vec::new() }
    }

    /// Adds an argument.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds `--flag=value`.
    pub fn flag(self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        let mut word = OsString::from(format!("--{flag}="));
        word.push(value);
        self.arg(word)
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts it in a node's namespaces.
    pub fn inside(mut self, holder: Running) -> Self {
        let enter = enter(holder);
        let words = std::iter::once(enter.get_program()).chain(enter.get_args()).map(OsStr::to_owned);
        self.words.splice(0..0, words);
        self
    }

    /// Starts it, and returns once it has written down who it is.
    pub fn start(self, cluster: &Cluster) -> Result<Running> {
        let log = log(cluster, &self.part);
        let file = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let note = note(cluster, &self.part);
        let mut command = Command::new("setsid");
        command.args(["--fork", "sh", "-c", BECOME, "sh"]).arg(&note).args(&self.words);
        command.envs(self.environment).current_dir("/");
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        process::run(&mut command).with_context(|| format!("cannot start {}", self.part))?;
        let began = Instant::now();
        loop {
            if let Some(running) = find(cluster, &self.part) {
                return Ok(running);
            }
            if began.elapsed() > Duration::from_secs(30) {
                bail!("{} did not start\n{}", self.part, log_tail(cluster, &self.part));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A command that enters the namespaces of a node; what to run there is added to it.
pub fn enter(holder: Running) -> Command {
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--target={}", holder.pid)).args(["--mount", "--uts", "--net", "--"]);
    enter
}

/// The same, killed when it takes longer than this.
pub fn enter_for(holder: Running, limit: Duration) -> Command {
    let enter = enter(holder);
    let mut limited = Command::new("timeout");
    limited
        .arg("--signal=KILL")
        .arg(limit.as_secs().to_string())
        .arg(enter.get_program())
        .args(enter.get_args());
    limited
}

/// Where a part's output goes.
pub fn log(cluster: &Cluster, part: &str) -> PathBuf {
    cluster.folder("logs").join(format!("{part}.log"))
}

/// Where a part writes down who it is.
fn note(cluster: &Cluster, part: &str) -> PathBuf {
    cluster.folder("run").join(format!("{part}.pid"))
}

/// The process of a part, if it was ever started.
pub fn find(cluster: &Cluster, part: &str) -> Option<Running> {
    Running::parse(&fs::read_to_string(note(cluster, part)).ok()?)
}

/// Forgets a part that has ended, so that the next of its name is not taken for it.
pub fn forget(cluster: &Cluster, part: &str) -> Result<()> {
    let note = note(cluster, part);
    fs::remove_file(&note).with_context(|| format!("cannot remove {}", note.display()))
}

/// The process of a part that must be running.
pub fn alive(cluster: &Cluster, part: &str) -> Result<Running> {
    match find(cluster, part) {
        Some(running) if running.is_alive() => Ok(running),
        Some(_) => bail!("{part} has ended\n{}", log_tail(cluster, part)),
        None => bail!("{part} was not started: `cargo xtask cluster up` did not get that far"),
    }
}

/// The end of a part's log, below a line that says where the whole is.
pub fn log_tail(cluster: &Cluster, part: &str) -> String {
    let path = log(cluster, part);
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(&path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    format!("--- the end of {}:\n{}", path.display(), process::tail(&String::from_utf8_lossy(&text)))
}

/// What a look at something that should become true found.
pub enum Look<T> {
    /// It is true.
    Done(T),
    /// Not yet, and what is missing.
    NotYet(String),
}

/// Looks until it is true. Fails with the ends of the parts' logs when the time is up, or at once when a part has ended.
pub fn wait<T>(
    cluster: &Cluster,
    what: &str,
    limit: Duration,
    parts: &[String],
    mut look: impl FnMut() -> Result<Look<T>>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let missing = match look()? {
            Look::Done(value) => return Ok(value),
            Look::NotYet(missing) => missing,
        };
        for part in parts {
            alive(cluster, part)?;
        }
        if began.elapsed() > limit {
            let logs: Vec<String> = parts.iter().map(|part| log_tail(cluster, part)).collect();
            bail!("{what}: not after {} s: {missing}\n{}", limit.as_secs(), logs.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_note_is_no_process() {
        assert_eq!(Running::parse("12 345\n"), Some(Running { pid: 12, started: 345 }));
        for bad in ["", "12", "12 345", "12 x\n"] {
            assert_eq!(Running::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn this_process_is_alive_and_an_older_one_of_its_number_is_not() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (_, started) = parse_stat(&stat).unwrap();
        let pid = nix::unistd::getpid().as_raw();
        assert!(Running { pid, started }.is_alive());
        assert!(!Running { pid, started: started - 1 }.is_alive());
    }

    #[test]
    fn a_process_name_with_blanks_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4242 1 2";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
    }
}
