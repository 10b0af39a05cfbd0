//! `cargo xtask suite`: long suites that do not fit a run of CI. Each records its last result in `docs/conformance.md`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::seconds;
use knit_testcluster::conformance::{self, SpecSelection, State};
use knit_testcluster::{Network, Options, Profile};

/// The page with the results.
const PAGE: &str = "docs/conformance.md";
/// The line before the table of results.
const MARKER: &str = "<!-- results of `cargo xtask suite` -->";
/// Its own name, so that a cluster somebody works with stays as it is.
const CLUSTER: &str = "suite";
/// The specs that a conformant cluster network has to pass.
const CONFORMANCE: &str = r"\[sig-network\].*\[Conformance\]";
/// The specs about NetworkPolicies.
const NETWORK_POLICY: &str = r"\[sig-network\].*\[Feature:NetworkPolicy\]";
/// What this kernel lacks.
const UNSUPPORTED: &str = "SCTP";

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// All sig-network conformance specs of Kubernetes on a cluster with Knit as its network (about 10 minutes)
    Conformance,
    /// All sig-network specs about NetworkPolicies, except those with SCTP (about 40 minutes)
    NetworkPolicy,
    /// Random changes and failures on a real cluster (30 minutes)
    Soak,
    /// The simulation of 5,000 nodes and 150,000 pods (about 20 minutes)
    Sim,
}

/// Runs the suite, prints its result and writes it to the page.
pub fn command(suite: Suite) -> Result<()> {
    let start = Instant::now();
    let outcome = match suite {
        Suite::Conformance => run_upstream(CONFORMANCE, None),
        Suite::NetworkPolicy => run_upstream(NETWORK_POLICY, Some(UNSUPPORTED)),
        Suite::Soak => run_tool("knit-soak"),
        Suite::Sim => run_tool("knit-sim"),
    };
    let result = match &outcome {
        Ok(result) => result.clone(),
        Err(error) => format!("failed: {}", error.to_string().lines().next().unwrap_or_default()),
    };
    let row = format!(
        "| {} | {result} | {} | {} | {} |",
        suite.name(),
        today()?,
        revision()?,
        seconds(start.elapsed())
    );
    println!("{row}");
    let path = places::workspace().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let page = with_row(&page, suite.name(), &row)?;
    std::fs::write(&path, page).with_context(|| format!("cannot write {PAGE}"))?;
    outcome.map(|_| ())
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Conformance => "conformance",
            Self::NetworkPolicy => "network-policy",
            Self::Soak => "soak",
            Self::Sim => "sim",
        }
    }
}

/// Runs upstream specs on a cluster with Knit as its network.
fn run_upstream(focus: &str, skip: Option<&str>) -> Result<String> {
    process::require_root("the test cluster")?;
    knit_testcluster::down(CLUSTER)?;
    let options = Options {
        name: CLUSTER.to_owned(),
        nodes: 2,
        network: Network::Knit,
        // As the other suites: what people run.
        profile: Profile::Release,
    };
    let cluster = knit_testcluster::up(&options)?;
    let specs = SpecSelection { focus: focus.to_owned(), skip: skip.map(str::to_owned) };
    let results = conformance::conformance(&cluster, &specs, &conformance::default_folder());
    let down = knit_testcluster::down(CLUSTER);
    let results = results?;
    down?;
    let count = |state: State| results.specs.iter().filter(|spec| spec.state == state).count();
    let (passed, failed) = (count(State::Passed), count(State::Failed));
    if failed > 0 || passed == 0 {
        bail!("{passed} specs passed, {failed} failed");
    }
    Ok(format!("{passed} of {} specs passed", results.specs.len()))
}

/// Runs a tool with its default options; its own exit code is the result.
fn run_tool(package: &str) -> Result<String> {
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace()).args(["run", "--locked", "--release", "--package", package]);
    process::run(&mut cargo)?;
    Ok("passed".to_owned())
}

fn today() -> Result<String> {
    Ok(process::output(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned())
}

/// The commit, and whether the checkout differs from it.
fn revision() -> Result<String> {
    let mut describe = Command::new("git");
    describe.current_dir(places::workspace()).args(["describe", "--always", "--dirty", "--exclude", "*"]);
    Ok(process::output(&mut describe)?.trim().to_owned())
}

/// The page with this row in place of the suite's old one, or at the end of the table.
fn with_row(page: &str, suite: &str, row: &str) -> Result<String> {
    let (before, after) = page.split_once(MARKER).with_context(|| format!("{PAGE} has no line {MARKER}"))?;
    let mut lines: Vec<&str> = after.trim_start_matches('\n').lines().collect();
    let end = lines.iter().position(|line| !line.starts_with('|')).unwrap_or(lines.len());
    let old = lines[..end].iter().position(|line| line.starts_with(&format!("| {suite} |")));
    match old {
        Some(index) => lines[index] = row,
        None => lines.insert(end, row),
    }
    Ok(format!("{before}{MARKER}\n\n{}\n", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "intro\n<!-- results of `cargo xtask suite` -->\n\n| suite | result |\n|---|---|\n| sim | old |\n\nrest\n";

    #[test]
    fn a_result_replaces_the_last_one_of_its_suite() {
        let page = with_row(TABLE, "sim", "| sim | new |").unwrap();
        assert_eq!(page, TABLE.replace("old", "new"));
    }

    #[test]
    fn a_first_result_is_added_to_the_table() {
        let page = with_row(TABLE, "soak", "| soak | passed |").unwrap();
        assert!(page.contains("| sim | old |\n| soak | passed |\n\nrest\n"), "{page}");
    }

    #[test]
    fn a_page_without_the_table_is_an_error() {
        assert!(with_row("no table", "sim", "| sim | new |").is_err());
    }
}
