//! Runs the commands of a documentation page and compares their output with the page.
//!
//! # How a page is written
//!
//! - A block ```` ```yaml ```` begins with a line `# NAME.yaml`. It is written to that file in the directory of the page, and is
//!   identical to `examples/standalone/NAME.yaml`.
//! - A block ```` ```console ```` has commands, each after `$ ` (a line that ends in `\` continues), and
//!   below each its output: standard output and standard error, interleaved. The commands of a page run in order, in
//!   one directory, one state directory and one network namespace. `knit` is the one just built.
//! - The directory of the page represents the root directory: an agent has its sockets in `run/knit` there, and
//!   the CNI directories are `opt/cni/bin` and `etc/cni/net.d` there. The path of the directory is removed from output.
//! - The pid of a background process is in a file `NAME.pid`; it is killed at the end of the page.
//! - A command that fails ends in a line `[exit code N]`.
//! - A line `...` matches any number of lines.
//! - A line `<!-- kernel: guest -->` marks a page that runs in the guest. `cargo xtask generate` lists the pages.
//! - Any other block must be ```` ```text ````: it is ignored.
//!
//! Values that differ from run to run are normalized, see [`normal`]. Runs of spaces are equal to one space, because
//! the width of table columns depends on these values.
//!
//! `KNIT_DOCS_WRITE=1` writes the output to the pages, and their YAML to `examples/standalone`. If a line
//! `...` no longer matches, the whole output is written: shorten it again. A page that runs in the guest, which has none of
//! these files, is printed between two scissors lines instead.

#[path = "pages/compare.rs"]
mod compare;
#[path = "pages/list.rs"]
#[macro_use]
mod list;
#[path = "pages/normal.rs"]
mod normal;
#[path = "pages/page.rs"]
mod page;

use std::fs;
use std::path::Path;

use knit_testbed::{Namespace, Testbed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use normal::Normaliser;
pub use page::Page;
use page::{Block, Step};

/// The timeout of a command.
const LIMIT_SECONDS: &str = "60";

/// The paths of pages in the repository, and their texts.
macro_rules! with_texts {
    ($($name:ident => $path:literal,)*) => {
        &[$(($path, include_str!(concat!("../../../../", $path)))),*]
    };
}

/// Pages that need the kernel of the guest, with their texts: the guest does not have the repository.
pub const IN_GUEST: &[(&str, &str)] = pages_in_guest!(with_texts);

/// Runs a page. Returns the differences, and updates the page.
pub fn run(path: &str, page: &mut Page) -> Vec<String> {
    let mut differences: Vec<String> =
        page.errors().into_iter().map(|complaint| format!("{path}: {complaint}")).collect();
    let testbed = Testbed::new("docs");
    let mut session = Session::new(testbed.host(), page);
    for block in &mut page.blocks {
        match block {
            Block::Text(_) => {}
            Block::File(file) => fs::write(session.folder.path().join(&file.name), &file.text).unwrap(),
            Block::Console(steps) => {
                for step in steps {
                    let printed = session.run(step);
                    if compare::matches(&step.output, &printed) {
                        continue;
                    }
                    let difference = compare::difference(&step.output, &printed);
                    differences.push(format!("{path}:{}: $ {}\n{difference}", step.line, step.command));
                    step.output = printed;
                }
            }
        }
    }
    differences
}

/// Whether to update the pages.
pub fn write() -> bool {
    std::env::var_os("KNIT_DOCS_WRITE").is_some()
}

/// The shell that runs the commands of a page.
struct Session {
    host: Namespace,
    folder: tempfile::TempDir,
    normaliser: Normaliser,
}

impl Session {
    fn new(host: Namespace, page: &Page) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { host, folder, normaliser: Normaliser::new(page.files().map(|file| file.text.as_str())) }
    }

    /// Runs a command and returns its normalized output.
    fn run(&mut self, step: &Step) -> Vec<String> {
        let programs = Path::new(env!("CARGO_BIN_EXE_knit")).parent().unwrap();
        let search = std::env::var("PATH").unwrap_or_default();
        let output = self
            .host
            .command("timeout")
            .args([LIMIT_SECONDS, "sh", "-c", &format!("exec 2>&1\n{}", step.command)])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{search}", programs.display()))
            .env("KNIT_STATE_DIR", self.folder.path().join("state"))
            .env("KNIT_KNI_SOCKET", self.folder.path().join("run/knit/kni.sock"))
            .env("KNIT_CNI_SOCKET", self.folder.path().join("run/knit/cni.sock"))
            .env("KNIT_CNI_BIN_DIR", self.folder.path().join("opt/cni/bin"))
            .env("KNIT_CNI_CONF_DIR", self.folder.path().join("etc/cni/net.d"))
            .env("KNIT_NETNS_DIR", self.folder.path().join("netns"))
            .envs([("KNIT_METRICS_ADDR", ""), ("KNIT_HEALTH_ADDR", "")])
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let printed = printed.replace(&self.folder.path().display().to_string(), "");
        let mut lines = self.normaliser.lines(&printed);
        match output.status.code() {
            Some(0) => {}
            Some(code) => lines.push(format!("[exit code {code}]")),
            None => lines.push(format!("[{}]", output.status)),
        }
        lines
    }

    /// Kills the background processes of a page and waits for them.
    fn end_what_runs(&self) {
        for file in fs::read_dir(self.folder.path()).unwrap().flatten().map(|entry| entry.path()) {
            let pid = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<i32>().ok());
            let Some(pid) = pid.filter(|_| file.extension().is_some_and(|end| end == "pid")) else {
                continue;
            };
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Drop for Session {
    /// Deletes sandboxes, whose holders the testbed does not track.
    fn drop(&mut self) {
        self.end_what_runs();
        for pid in self.normaliser.holders() {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if words.ends_with(b"\0sandbox\0hold\0") {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        // Background processes of the page, and namespaces of its agent.
        for (pid, _) in self.host.processes() {
            let _ = i32::try_from(pid).map(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL));
        }
        for made in fs::read_dir(self.folder.path().join("netns")).into_iter().flatten().flatten() {
            let _ = nix::mount::umount2(&made.path(), nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
