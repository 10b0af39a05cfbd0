//! Runs the pages about Knit on one machine: what they tell people to type works, and shows what they say it shows.
//!
//! # How a page is written
//!
//! - A block ```` ```yaml ```` begins with a line `# NAME.yaml`. It is written to that file in the page's folder, and is
//!   the same as `examples/standalone/NAME.yaml`, for people who have the sources.
//! - A block ```` ```console ```` has commands, each after `$ ` (a line that ends in `\` goes on in the next one), and
//!   below each what it prints, standard output and standard error as they come. Commands of a page run in order, in
//!   one folder, one state folder and one network namespace that stands for the machine. `knit` is the one just built.
//! - A command that fails ends in a line `[exit code N]`.
//! - A line `...` stands for any number of lines.
//! - Any other block must be ```` ```text ````: it is not looked at.
//!
//! What differs from run to run is written as something that stays, see [`normal`]. Spaces are compared as one, because
//! a table's columns are as wide as what differs.
//!
//! `KNIT_DOCS_WRITE=1` writes what was printed into the pages, and their YAML into `examples/standalone`. Where a line
//! `...` no longer fits, the whole output is written: shorten it again.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "netns_docs/compare.rs"]
mod compare;
#[path = "netns_docs/normal.rs"]
mod normal;
#[path = "netns_docs/page.rs"]
mod page;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use knit_testbed::{Namespace, Testbed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use normal::Normaliser;
use page::{Block, Page, Step};

/// No command of a page takes this long.
const LIMIT_SECONDS: &str = "30";

/// One test for each page, and the list of pages.
macro_rules! pages {
    ($($name:ident => $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $name() {
                run_page($path);
            }
        )*
    };
}

pages! {
    bridge => "docs/kinds/bridge.md",
    podnetworkconfig => "docs/kinds/podnetworkconfig.md",
    podconfig => "docs/kinds/podconfig.md",
    primarynetwork => "docs/kinds/primarynetwork.md",
    veth => "docs/kinds/veth.md",
    macvlan => "docs/kinds/macvlan.md",
    vxlan => "docs/kinds/vxlan.md",
    uplink => "docs/kinds/uplink.md",
    virtualnetwork => "docs/kinds/virtualnetwork.md",
    podroute => "docs/kinds/podroute.md",
    standalone => "docs/standalone.md",
}

#[test]
fn every_kind_has_a_page_that_is_run_and_listed() {
    let index = fs::read_to_string(root().join("docs/kinds/README.md")).unwrap();
    for kind in knit_crds::Object::kinds() {
        let page = format!("docs/kinds/{}.md", kind.singular);
        assert!(PAGES.contains(&page.as_str()), "{page} is not run");
        let entry = format!("[{}]({}.md)", kind.kind, kind.singular);
        assert!(index.contains(&entry), "docs/kinds/README.md has no entry {entry}");
    }
}

#[test]
fn every_example_is_a_block_of_exactly_one_page() {
    let mut shown = BTreeSet::new();
    for path in PAGES {
        for file in Page::parse(&fs::read_to_string(root().join(path)).unwrap()).files() {
            assert!(shown.insert(file.name.clone()), "{path}: {} is in another page, too", file.name);
        }
    }
    let entries = fs::read_dir(examples()).unwrap();
    let kept: BTreeSet<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(kept, shown, "examples/standalone and the pages have different files");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn examples() -> PathBuf {
    root().join("examples/standalone")
}

fn run_page(path: &str) {
    let write = std::env::var_os("KNIT_DOCS_WRITE").is_some();
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut page = Page::parse(&text);
    let complaints = page.complaints();
    assert!(complaints.is_empty(), "{path}:\n{}", complaints.join("\n"));

    let testbed = Testbed::new("docs");
    let mut session = Session::new(testbed.host(), &page);
    let mut differences = Vec::new();
    for block in &mut page.blocks {
        match block {
            Block::Text(_) => {}
            Block::File(file) => {
                fs::write(session.folder.path().join(&file.name), &file.text).unwrap();
                let example = examples().join(&file.name);
                if write {
                    fs::create_dir_all(examples()).unwrap();
                    fs::write(&example, &file.text).unwrap();
                }
                let kept = fs::read_to_string(&example).unwrap_or_default();
                if kept != file.text {
                    differences.push(format!("{path}: examples/standalone/{} is another text", file.name));
                }
            }
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
    if write {
        fs::write(root().join(path), page.render()).unwrap();
    } else {
        let how = "KNIT_DOCS_WRITE=1 writes what was printed into the page";
        assert!(differences.is_empty(), "\n{}\n\n{how}", differences.join("\n\n"));
    }
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
            .args([LIMIT_SECONDS, "bash", "-c", &format!("exec 2>&1\n{}", step.command)])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{search}", programs.display()))
            .env("KNIT_STATE_DIR", self.folder.path().join("state"))
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut lines = self.normaliser.lines(&printed);
        match output.status.code() {
            Some(0) => {}
            Some(code) => lines.push(format!("[exit code {code}]")),
            None => lines.push(format!("[{}]", output.status)),
        }
        lines
    }
}

impl Drop for Session {
    /// A sandbox lives in a namespace of its own, held by a process that the testbed does not know.
    fn drop(&mut self) {
        for pid in self.normaliser.holders() {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if words.ends_with(b"\0sandbox\0hold\0") {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}
