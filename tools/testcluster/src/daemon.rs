//! The cluster's long-running processes: starts them in the background, tracks them and waits for them.
//!
//! Each process writes its PID and start time before it executes its program, so that a recycled PID is never mistaken
//! for it. It is a child of PID 1 from the start and outlives the command that started it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::state::Cluster;
use knit_dev::process;

/// `$1` is the PID file, the rest is the command. Field 22 of `stat` is the start time.
const RECORD_PID_AND_EXEC: &str = r#"
set -e
started() { shift 21; echo "$1"; }
read -r stat < /proc/$$/stat
echo "$$ $(started $stat)" > "$1"
shift
exec "$@"
"#;

/// How much of a log is read to show its end.
const TAIL_BYTES: u64 = 16 * 1024;

/// A process, identified by PID and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessHandle {
    /// The process id.
    pub pid: i32,
    started: u64,
}

impl ProcessHandle {
    /// Whether this process still runs. A zombie does not.
    pub fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        parse_stat(&stat)
            .is_some_and(|(state, started)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    fn parse(text: &str) -> Option<Self> {
        // Without the newline the file is still being written.
        let (pid, started) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// State and start time of a process. Its name, in parentheses, may contain anything.
pub fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?.chars().next()?, fields.nth(18)?.parse().ok()?))
}

/// A component that is about to be started.
pub struct Daemon {
    component: String,
    args: Vec<OsString>,
    environment: Vec<(String, OsString)>,
}

impl Daemon {
    /// A program in the host's namespaces. `component` names its log.
    pub fn new(component: impl Into<String>, program: impl AsRef<OsStr>) -> Self {
        Self { component: component.into(), args: vec![program.as_ref().to_owned()], environment: Vec::new() }
    }

    /// Adds an argument.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.args.push(word.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds `--flag=value`.
    pub fn flag(self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        let mut word = OsString::from(format!("--{flag}="));
        word.push(value);
        self.arg(word)
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts it in a node's namespaces.
    pub fn in_node(mut self, init: ProcessHandle) -> Self {
        let enter = enter(init);
        let args = std::iter::once(enter.get_program()).chain(enter.get_args()).map(OsStr::to_owned);
        self.args.splice(0..0, args);
        self
    }

    /// Starts it, and returns once its PID file is written.
    pub fn start(self, cluster: &Cluster) -> Result<ProcessHandle> {
        let log = log(cluster, &self.component);
        let file = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let pid_file = pid_file(cluster, &self.component);
        let mut command = Command::new("setsid");
        command.args(["--fork", "sh", "-c", RECORD_PID_AND_EXEC, "sh"]).arg(&pid_file).args(&self.args);
        command.envs(self.environment).current_dir("/");
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        process::run(&mut command).with_context(|| format!("cannot start {}", self.component))?;
        let start = Instant::now();
        loop {
            if let Some(running) = find(cluster, &self.component) {
                return Ok(running);
            }
            if start.elapsed() > Duration::from_secs(30) {
                bail!("{} did not start\n{}", self.component, log_tail(cluster, &self.component));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A command prefix that enters the namespaces of a node.
pub fn enter(init: ProcessHandle) -> Command {
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--target={}", init.pid)).args(["--mount", "--uts", "--net", "--"]);
    enter
}

/// The same, killed after a timeout.
pub fn enter_with_timeout(init: ProcessHandle, timeout: Duration) -> Command {
    let enter = enter(init);
    let mut limited = Command::new("timeout");
    limited
        .arg("--signal=KILL")
        .arg(timeout.as_secs().to_string())
        .arg(enter.get_program())
        .args(enter.get_args());
    limited
}

/// A component's log file.
pub fn log(cluster: &Cluster, component: &str) -> PathBuf {
    cluster.folder("logs").join(format!("{component}.log"))
}

/// A component's PID file.
fn pid_file(cluster: &Cluster, component: &str) -> PathBuf {
    cluster.folder("run").join(format!("{component}.pid"))
}

/// The process of a component, if it was ever started.
pub fn find(cluster: &Cluster, component: &str) -> Option<ProcessHandle> {
    ProcessHandle::parse(&fs::read_to_string(pid_file(cluster, component)).ok()?)
}

/// Removes the PID file of a component that has ended, so that its successor is not mistaken for it.
pub fn remove_pid_file(cluster: &Cluster, component: &str) -> Result<()> {
    let file = pid_file(cluster, component);
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}

/// The process of a component; an error if it does not run.
pub fn running(cluster: &Cluster, component: &str) -> Result<ProcessHandle> {
    match find(cluster, component) {
        Some(running) if running.is_alive() => Ok(running),
        Some(_) => bail!("{component} has ended\n{}", log_tail(cluster, component)),
        None => bail!("{component} was not started: `cargo xtask cluster up` did not get that far"),
    }
}

/// The end of a component's log, below a line with its path.
pub fn log_tail(cluster: &Cluster, component: &str) -> String {
    let path = log(cluster, component);
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

/// The result of one check of a condition.
pub enum Readiness<T> {
    /// The condition holds.
    Ready(T),
    /// It does not hold yet; the text says what is missing.
    NotYet(String),
}

/// Waits until a condition holds. Fails with the ends of the logs after the timeout, or at once when a component has ended.
pub fn wait<T>(
    cluster: &Cluster,
    what: &str,
    limit: Duration,
    components: &[String],
    mut check: impl FnMut() -> Result<Readiness<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let missing = match check()? {
            Readiness::Ready(value) => return Ok(value),
            Readiness::NotYet(missing) => missing,
        };
        for component in components {
            running(cluster, component)?;
        }
        if start.elapsed() > limit {
            let logs: Vec<String> = components.iter().map(|component| log_tail(cluster, component)).collect();
            bail!("{what}: not after {} s: {missing}\n{}", limit.as_secs(), logs.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_pid_file_is_ignored() {
        assert_eq!(ProcessHandle::parse("12 345\n"), Some(ProcessHandle { pid: 12, started: 345 }));
        for bad in ["", "12", "12 345", "12 x\n"] {
            assert_eq!(ProcessHandle::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn this_process_is_alive_and_an_older_one_with_its_pid_is_not() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (_, started) = parse_stat(&stat).unwrap();
        let pid = nix::unistd::getpid().as_raw();
        assert!(ProcessHandle { pid, started }.is_alive());
        assert!(!ProcessHandle { pid, started: started - 1 }.is_alive());
    }

    #[test]
    fn a_process_name_with_blanks_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4242 1 2";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
    }
}
