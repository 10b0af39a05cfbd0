//! `cargo xtask suite`: long suites that do not fit a run of CI. Each records its last result in `docs/conformance.md`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::seconds;
use knit_testcluster::conformance::cluster_network_policy::{TestSelection, cluster_network_policy};
use knit_testcluster::conformance::cyclonus::{self, CaseSelection, cyclonus};
use knit_testcluster::conformance::{self, Results, SpecSelection, State};
use knit_testcluster::go_tools::{self, Tool};
use knit_testcluster::{Cluster, Network, Options, Profile, ServiceProxy};

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
/// The specs about Services that need neither a cloud provider nor SSH to nodes.
const SERVICES: &str = r"\[sig-network\] (Services|Traffic Distribution|Proxy|EndpointSlice|DNS|Conntrack)";
/// What this kernel or this cluster lacks: SCTP, a cloud provider, SSH, an image, a DNS server to configure.
const UNSUPPORTED_SERVICES: &str = "SCTP|Disruptive|Feature:LoadBalancer|Feature:Example|DNS configMap nameserver|invalid conntrack state bug";
/// What this kernel lacks.
const UNSUPPORTED: &str = "SCTP";

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// All sig-network conformance specs of Kubernetes on a cluster with Knit as its network (about 10 minutes)
    Conformance,
    /// The specs about Services, DNS and conntrack, except those with SCTP or a cloud provider (about 40 minutes)
    Services,
    /// All sig-network specs about NetworkPolicies, except those with SCTP (about 40 minutes)
    NetworkPolicy,
    /// All cases of Cyclonus about NetworkPolicies, with TCP and UDP (about 1 hour)
    Cyclonus,
    /// The conformance tests of the network policy API for ClusterNetworkPolicies, except those with SCTP (about 10 minutes)
    ClusterNetworkPolicy,
    /// Random changes and failures on a real cluster (30 minutes)
    Soak,
    /// The simulation of 5,000 nodes and 150,000 pods (about 20 minutes)
    Sim,
}

/// Which suite to run, and on what.
#[derive(Args, Clone, Debug)]
pub struct Request {
    /// Which one
    suite: Suite,
    /// Run an upstream suite on agents without the eBPF fast path
    #[arg(long)]
    no_fast_path: bool,
    /// What translates the addresses of Services for an upstream suite
    #[arg(long, value_enum, default_value_t)]
    service_proxy: ServiceProxy,
    /// Run an upstream suite on this image of Knit [default: built from this checkout]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

impl Request {
    /// The name of the row with the result.
    fn name(&self) -> String {
        let suite = self.suite.name();
        let proxy = if self.service_proxy == ServiceProxy::Knit { ", without kube-proxy" } else { "" };
        let path = if self.no_fast_path { ", no fast path" } else { "" };
        format!("{suite}{proxy}{path}")
    }
}

/// Runs the suite, prints its result and writes it to the page.
pub fn command(request: &Request) -> Result<()> {
    let start = Instant::now();
    // The checkout may change while the suite runs.
    let revision = revision()?;
    let outcome = run(request);
    let result = match &outcome {
        Ok(result) => result.clone(),
        Err(error) => format!("failed: {}", error.to_string().lines().next().unwrap_or_default()),
    };
    let name = request.name();
    let row = format!("| {name} | {result} | {} | {revision} | {} |", today()?, seconds(start.elapsed()));
    println!("{row}");
    let path = places::workspace().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let page = with_row(&page, &name, &row)?;
    std::fs::write(&path, page).with_context(|| format!("cannot write {PAGE}"))?;
    outcome.map(|_| ())
}

fn run(request: &Request) -> Result<String> {
    let folder = conformance::default_folder();
    let specs = |focus: &str, skip: Option<&str>| {
        let specs = SpecSelection { focus: focus.to_owned(), skip: skip.map(str::to_owned) };
        run_upstream(request, &[Tool::E2eTest], "specs", |cluster| {
            conformance::conformance(cluster, &specs, &folder)
        })
    };
    match request.suite {
        Suite::Conformance => specs(CONFORMANCE, None),
        Suite::Services => specs(SERVICES, Some(UNSUPPORTED_SERVICES)),
        Suite::NetworkPolicy => specs(NETWORK_POLICY, Some(UNSUPPORTED)),
        Suite::Cyclonus => {
            let all = CaseSelection::default();
            run_upstream(request, &cyclonus::PROGRAMS, "cases", |cluster| cyclonus(cluster, &all, &folder))
        }
        Suite::ClusterNetworkPolicy => {
            let tests = TestSelection { only: Vec::new(), skip: Some(UNSUPPORTED.to_owned()) };
            run_upstream(request, &[Tool::NetworkPolicyApi], "tests", |cluster| {
                cluster_network_policy(cluster, &tests, &folder)
            })
        }
        Suite::Soak | Suite::Sim
            if request.no_fast_path
                || request.service_proxy == ServiceProxy::Knit
                || request.image.is_some() =>
        {
            bail!("--no-fast-path, --service-proxy and --image are about upstream suites")
        }
        Suite::Soak => run_tool("knit-soak"),
        Suite::Sim => run_tool("knit-sim"),
    }
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Conformance => "conformance",
            Self::Services => "services",
            Self::NetworkPolicy => "network-policy",
            Self::Cyclonus => "cyclonus",
            Self::ClusterNetworkPolicy => "cluster-network-policy",
            Self::Soak => "soak",
            Self::Sim => "sim",
        }
    }
}

/// Runs upstream tests on a cluster with Knit as its network.
fn run_upstream(
    request: &Request,
    programs: &[Tool],
    what: &str,
    tests: impl FnOnce(&Cluster) -> Result<Results>,
) -> Result<String> {
    process::require_root("the test cluster")?;
    go_tools::ensure(programs)?;
    knit_testcluster::down(CLUSTER)?;
    let options = Options {
        name: CLUSTER.to_owned(),
        nodes: 2,
        network: Network::Knit,
        service_proxy: request.service_proxy,
        // As the other suites: what people run.
        profile: Profile::Release,
    };
    let cluster = knit_testcluster::up_with_image(&options, request.image.as_deref())?;
    let prepared = if request.no_fast_path { knit_testcluster::disable_fast_path(&cluster) } else { Ok(()) };
    let results = prepared.and_then(|()| tests(&cluster));
    let down = knit_testcluster::down(CLUSTER);
    let results = results?;
    down?;
    results.print();
    summary(&results, what)
}

/// The result in a few words; an error if a test failed.
fn summary(results: &Results, what: &str) -> Result<String> {
    let [passed, failed, skipped] =
        [State::Passed, State::Failed, State::Skipped].map(|state| results.count(state));
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    if failed > 0 || passed == 0 {
        bail!("{passed} {what} passed, {failed} failed{skipped}");
    }
    Ok(format!("{passed} of {} {what} passed{skipped}", results.specs.len()))
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
    fn a_suite_without_the_fast_path_has_a_row_of_its_own() {
        let request = |no_fast_path| Request {
            suite: Suite::Cyclonus,
            no_fast_path,
            service_proxy: ServiceProxy::KubeProxy,
            image: None,
        };
        let page = with_row(TABLE, &request(false).name(), "| cyclonus | a |").unwrap();
        let page = with_row(&page, &request(true).name(), "| cyclonus, no fast path | b |").unwrap();
        assert!(page.contains("| cyclonus | a |\n| cyclonus, no fast path | b |\n"), "{page}");
    }

    #[test]
    fn a_page_without_the_table_is_an_error() {
        assert!(with_row("no table", "sim", "| sim | new |").is_err());
    }
}
