//! The upstream end-to-end tests against a running cluster, with progress by spec and typed results.

pub mod cluster_network_policy;
pub mod cyclonus;
mod progress;
mod report;
mod run;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Table, presets};

pub use report::{Spec, State};

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
    /// The JUnit file, if the tests write one.
    pub junit: Option<PathBuf>,
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
        self.junit.iter().for_each(|junit| println!("JUnit: {}", junit.display()));
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
    let [report, junit, log] = run::prepare(folder, ["report.json", "junit_01.xml", "e2e.log"])?;
    let mut tests = upstream(tools.path(Tool::E2eTest), selection, &report);
    tests.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    tests.arg(format!("--kubectl-path={}", cluster.tool(Tool::Kubectl)?.display()));
    tests.env("KUBECACHEDIR", cluster.folder("kubectl-cache"));
    tests.arg(format!("--num-nodes={}", cluster.nodes));
    let folder = report.parent().unwrap_or(folder);
    tests.arg(format!("--report-dir={}", folder.display()));
    tests.args(["--ginkgo.v", "--ginkgo.timeout=3h"]).current_dir(folder);
    let (status, time) = run::run(cluster, tests, |output| progress::follow(output, &log))?;
    if !report.exists() {
        bail!("the upstream tests ended without a report ({status}); {}", run::tail(&log));
    }
    let specs = report::read(&report)?;
    if specs.is_empty() {
        bail!(
            "no spec matches {}: `cargo xtask cluster conformance --list --focus ...` lists the specs",
            selection.focus
        );
    }
    let results = Results { specs, time, junit: Some(junit), log };
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
