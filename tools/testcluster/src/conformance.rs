//! The upstream end-to-end tests against a running cluster, with progress by spec and typed results.

mod progress;
mod report;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Table, presets};

pub use report::{Spec, State};

use super::cgroups::Membership;
use super::state::Cluster;
use crate::go_tools::{self, Tool};
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::seconds;

/// The network conformance tests.
pub const DEFAULT_FOCUS: &str = r"\[sig-network\].*\[Conformance\]";

/// Which upstream specs to run.
#[derive(Args, Clone, Debug)]
pub struct SpecSelection {
    /// A regular expression on the names of the specs
    #[arg(long, default_value = DEFAULT_FOCUS)]
    pub focus: String,
    /// Leave out specs whose names match this regular expression
    #[arg(long)]
    pub skip: Option<String>,
}

/// The results of a run.
pub struct Results {
    /// Every spec that ran or skipped itself at run time, by name.
    pub specs: Vec<Spec>,
    /// How long the whole run took.
    pub time: Duration,
    /// The JUnit file.
    pub junit: PathBuf,
    /// The output of the tests.
    pub log: PathBuf,
}

impl Results {
    /// How many specs ended like this.
    pub fn count(&self, state: State) -> usize {
        self.specs.iter().filter(|spec| spec.state == state).count()
    }

    /// Prints the result table and a summary.
    pub fn print(&self) {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["RESULT", "TIME", "SPEC"]);
        for spec in &self.specs {
            table.add_row([spec.state.label().to_owned(), seconds(spec.time), spec.name.clone()]);
        }
        println!("{}\n", table.trim_fmt());
        for spec in self.specs.iter().filter(|spec| spec.state == State::Failed) {
            println!("FAILED {}\n{}\n", spec.name, process::tail(&spec.message));
        }
        println!("JUnit: {}", self.junit.display());
        println!("log:   {}", self.log.display());
        println!(
            "{} passed, {} failed, {} skipped in {}",
            self.count(State::Passed),
            self.count(State::Failed),
            self.count(State::Skipped),
            seconds(self.time)
        );
    }
}

/// The default report directory, which outlives the cluster.
pub fn default_folder() -> PathBuf {
    places::workspace().join("target/conformance")
}

/// The names of the specs that match. Needs no cluster.
pub fn list(selection: &SpecSelection) -> Result<Vec<String>> {
    let tools = go_tools::ensure(&[Tool::E2eTest])?;
    let folder = tempfile::tempdir().context("cannot create a folder for the list")?;
    let report = folder.path().join("report.json");
    let mut dry_run = upstream(tools.path(Tool::E2eTest), selection, &report);
    process::output(dry_run.arg("--ginkgo.dry-run").current_dir(folder.path()))?;
    Ok(report::read(&report)?.into_iter().map(|spec| spec.name).collect())
}

/// Runs the specs that match against the cluster, one after the other.
pub fn conformance(cluster: &Cluster, selection: &SpecSelection, folder: &Path) -> Result<Results> {
    let tools = go_tools::ensure(&[Tool::E2eTest])?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder = fs::canonicalize(folder)?;
    let (report, junit, log) =
        (folder.join("report.json"), folder.join("junit_01.xml"), folder.join("e2e.log"));
    for old in [&report, &junit, &log] {
        // A report of an earlier run must not be mistaken for this one.
        if old.exists() {
            fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut run = upstream(tools.path(Tool::E2eTest), selection, &report);
    run.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    run.arg(format!("--kubectl-path={}", cluster.tool(Tool::Kubectl)?.display()));
    run.env("KUBECACHEDIR", cluster.folder("kubectl-cache"));
    run.arg(format!("--num-nodes={}", cluster.nodes));
    run.arg(format!("--report-dir={}", folder.display()));
    run.args(["--ginkgo.v", "--ginkgo.timeout=3h"]).current_dir(&folder);
    let (printed, print) = std::io::pipe().context("cannot create a pipe")?;
    run.stdin(Stdio::null()).stdout(print.try_clone()?).stderr(print);
    let start = Instant::now();
    // `down` must find the tests too if they outlive this command.
    let membership = Membership::enter(&cluster.names().cgroup())?;
    let mut child = run.spawn().context("cannot start the upstream tests")?;
    drop(membership);
    // The command holds the write end of the pipe: without dropping it the output never ends.
    drop(run);
    progress::follow(printed, output)?;
    let status = child.wait()?;
    let time = start.elapsed();
    if !report.exists() {
        let output = fs::read(&log).unwrap_or_default();
        let output = process::tail(&String::from_utf8_lossy(&output));
        bail!(
            "the upstream tests ended without a report ({status}); the end of {}:\n{output}",
            log.display()
        );
    }
    let specs = report::read(&report)?;
    if specs.is_empty() {
        bail!(
            "no spec matches {}: `cargo xtask cluster conformance --list --focus ...` lists the specs",
            selection.focus
        );
    }
    let results = Results { specs, time, junit, log };
    if !status.success() && results.count(State::Failed) == 0 {
        bail!("the upstream tests failed outside of a spec ({status}): see {}", results.log.display());
    }
    Ok(results)
}

fn upstream(program: &Path, selection: &SpecSelection, report: &Path) -> Command {
    let mut run = Command::new(program);
    run.args(["--provider=skeleton", "--ginkgo.no-color", &format!("--ginkgo.focus={}", selection.focus)]);
    run.args(selection.skip.iter().map(|skip| format!("--ginkgo.skip={skip}")));
    run.arg(format!("--ginkgo.json-report={}", report.display()));
    run
}
