//! Runs a page about Knit on one machine: what it tells people to type works, and shows what it says it shows.
//!
//! # How a page is written
//!
//! - A block ```` ```yaml ```` begins with a line `# NAME.yaml`. It is written to that file in the page's folder, and is
//!   the same as `examples/standalone/NAME.yaml`, for people who have the sources.
//! - A block ```` ```console ```` has commands, each after `$ ` (a line that ends in `\` goes on in the next one), and
//!   below each what it prints, standard output and standard error as they come. Commands of a page run in order, in
//!   one folder, one state folder and one network namespace that stands for the machine. `knit` is the one just built.
//! - The page's folder stands for the machine's root: an agent that a page starts has its sockets in `run/knit` there, and
//!   CNI's folders are `opt/cni/bin` and `etc/cni/net.d` there. In what is printed the folder's own path is left out.
//! - A process that a page leaves running is in a file `NAME.pid`; it ends with the page.
//! - A command that fails ends in a line `[exit code N]`.
//! - A line `...` stands for any number of lines.
//! - Any other block must be ```` ```text ````: it is not looked at.
//!
//! What differs from run to run is written as something that stays, see [`normal`]. Spaces are compared as one, because
//! a table's columns are as wide as what differs.
//!
//! `KNIT_DOCS_WRITE=1` writes what was printed into the pages, and their YAML into `examples/standalone`. Where a line
//! `...` no longer fits, the whole output is written: shorten it again. A page that is run in the guest, which has none of
//! these files, is printed instead, between two lines of scissors.

#[path = "pages/compare.rs"]
mod compare;
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

/// No command of a page takes this long.
const LIMIT_SECONDS: &str = "60";

/// A page's path in the sources, and its text.
macro_rules! page {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../", $path)))
    };
}

/// Pages about what this machine's kernel may lack, and their texts: the guest has no files of the sources.
pub const IN_GUEST: &[(&str, &str)] = &[
    page!("docs/kinds/dummy.md"),
    page!("docs/kinds/vlan.md"),
    page!("docs/vlans.md"),
    page!("docs/kinds/ipvlan.md"),
    page!("docs/kinds/vrf.md"),
    page!("docs/kinds/wireguard.md"),
    page!("docs/kinds/geneve.md"),
    page!("docs/kinds/gre.md"),
    page!("docs/kinds/iptunnel.md"),
];

/// Runs a page. What is not as it says is told, and what it should say is put into it.
pub fn run(path: &str, page: &mut Page) -> Vec<String> {
    let mut differences: Vec<String> =
        page.complaints().into_iter().map(|complaint| format!("{path}: {complaint}")).collect();
    let testbed = Testbed::new("docs");
    let mut session = Session::new(testbed.host(), page);
    for block in &mut page.blocks {
        match block {
            Block::Text(_) => {}
            Block::File(file) => fs::write(session.folder.path().join(&file.name), &file.text).unwrap(),
            Block::Console(steps) => {
                for step in steps {
                    let printed = session.run(step);
                    if compare::fits(&step.output, &printed) {
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

/// Whether pages are to be written anew.
pub fn write() -> bool {
    std::env::var_os("KNIT_DOCS_WRITE").is_some()
}

/// A person's shell while they read a page.
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

    /// Runs a command and gives what it printed, without what differs from run to run.
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

    /// Ends what a page left running, and waits until it has.
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
    /// A sandbox lives in a namespace of its own, held by a process that the testbed does not know.
    fn drop(&mut self) {
        self.end_what_runs();
        for pid in self.normaliser.holders() {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if words.ends_with(b"\0sandbox\0hold\0") {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        // Programs that a page left in the background, and namespaces that its agent made.
        for (pid, _) in self.host.processes() {
            let _ = i32::try_from(pid).map(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL));
        }
        for made in fs::read_dir(self.folder.path().join("netns")).into_iter().flatten().flatten() {
            let _ = nix::mount::umount2(&made.path(), nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
