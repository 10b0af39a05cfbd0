//! The conformance tests of the network policy API: ClusterNetworkPolicies of both tiers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::report::{Spec, State};
use super::{Results, run};
use crate::go_tools::{self, Module, Tool};
use crate::state::Cluster;
use knit_dev::process;
use knit_dev::progress::Step;

/// The definition of the kind, in the module of its tests. The experimental channel has all fields of the standard one.
const DEFINITION: &str = "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml";
const RESOURCE: &str = "crd/clusternetworkpolicies.policy.networking.k8s.io";
/// The features beyond the standard ones that Knit has.
const FEATURES: &str = "ClusterNetworkPolicyNamedPorts";
/// The Go test that runs all others as its subtests.
const SUITE: &str = "TestConformance";
/// What precedes the lines of Go's test package in its output.
const MARKER: char = '\u{16}';

/// Which tests to run.
#[derive(Clone, Debug, Default)]
pub struct TestSelection {
    /// Only these; all if empty.
    pub only: Vec<String>,
    /// A regular expression on the names of tests to leave out.
    pub skip: Option<String>,
}

/// Installs the kind, and runs the tests against the cluster, one after the other.
pub fn cluster_network_policy(
    cluster: &Cluster,
    selection: &TestSelection,
    folder: &Path,
) -> Result<Results> {
    let tools = go_tools::ensure(&[Tool::NetworkPolicyApi])?;
    install_kind(cluster)?;
    let [log] = run::prepare(folder, ["cluster-network-policy.log"])?;
    let mut program = Command::new(tools.path(Tool::NetworkPolicyApi));
    program.env("KUBECONFIG", cluster.kubeconfig()).args(arguments(selection));
    let mut progress = Progress::default();
    let (status, time) =
        run::run(cluster, program, |output| run::lines(output, &log, |line| progress.read(line)))?;
    let results = Results { specs: progress.specs, time, junit: None, log };
    if results.specs.is_empty() || (!status.success() && results.count(State::Failed) == 0) {
        bail!("the tests ended outside of a test ({status}); {}", run::tail(&results.log));
    }
    Ok(results)
}

fn install_kind(cluster: &Cluster) -> Result<()> {
    let definition = go_tools::module_folder(Module::NetworkPolicyApi)?.join(DEFINITION);
    let mut apply = cluster.kubectl()?;
    apply.args(["apply", "--server-side", "-f"]).arg(&definition).stdout(Stdio::null());
    process::output(&mut apply).with_context(|| format!("cannot apply {}", definition.display()))?;
    let mut wait = cluster.kubectl()?;
    wait.args(["wait", "--for=condition=Established", "--timeout=60s", RESOURCE]);
    process::output(&mut wait).context("the API server does not serve ClusterNetworkPolicies")?;
    Ok(())
}

fn arguments(selection: &TestSelection) -> Vec<String> {
    let mut only = format!("^{SUITE}$");
    if !selection.only.is_empty() {
        only += &format!("/^({})$", selection.only.join("|"));
    }
    let mut arguments = vec![
        // The only verbosity with which each test's result is printed when it ends.
        "-test.v=test2json".to_owned(),
        "-test.timeout=2h".to_owned(),
        format!("-test.run={only}"),
        format!("--supported-features={FEATURES}"),
    ];
    arguments.extend(selection.skip.iter().map(|skip| format!("-test.skip=^{SUITE}$/{skip}")));
    arguments
}

/// What a line of the output is about.
#[derive(Debug, PartialEq, Eq)]
enum Event<'a> {
    Started(&'a str),
    /// A part of a test failed.
    PartFailed(&'a str),
    Ended(&'a str, State, Duration),
}

fn read(line: &str) -> Option<Event<'_>> {
    let line = line.trim_start_matches([MARKER, ' ']);
    if let Some(name) = line.strip_prefix("=== RUN ") {
        let test = name.trim().strip_prefix(SUITE)?.strip_prefix('/')?;
        return (!test.contains('/')).then_some(Event::Started(test));
    }
    let (result, rest) = line.strip_prefix("--- ")?.split_once(": ")?;
    let (name, time) = rest.rsplit_once(" (")?;
    let test = name.strip_prefix(SUITE)?.strip_prefix('/')?;
    let state = match result {
        "PASS" => State::Passed,
        "SKIP" => State::Skipped,
        _ => State::Failed,
    };
    match test.split_once('/') {
        Some((_, part)) => (state == State::Failed).then_some(Event::PartFailed(part)),
        None => {
            let seconds = time.strip_suffix("s)")?.parse().ok()?;
            Some(Event::Ended(test, state, Duration::try_from_secs_f64(seconds).ok()?))
        }
    }
}

/// Shows each test as a step, and collects the results.
#[derive(Default)]
struct Progress {
    specs: Vec<Spec>,
    failed_parts: Vec<String>,
    step: Option<Step>,
}

impl Progress {
    fn read(&mut self, line: &str) {
        match read(line) {
            Some(Event::Started(test)) => {
                self.failed_parts.clear();
                self.step = Some(Step::start(test));
            }
            Some(Event::PartFailed(part)) => self.failed_parts.push(part.replace('_', " ")),
            Some(Event::Ended(test, state, time)) => {
                match (state, self.step.take()) {
                    (State::Passed, Some(step)) => step.done(),
                    (State::Skipped, Some(step)) => step.done_with("skipped"),
                    // A dropped step is shown as failed.
                    (_, step) => drop(step),
                }
                let message = std::mem::take(&mut self.failed_parts).join("\n");
                self.specs.push(Spec { name: test.to_owned(), state, time, message });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
\u{16}=== RUN   TestConformance
    conformance_test.go:56: Running conformance tests
\u{16}=== RUN   TestConformance/CNPAdminTierEgressTCP
\u{16}=== RUN   TestConformance/CNPAdminTierEgressTCP/Should_support_A
\u{16}--- PASS: TestConformance/CNPAdminTierEgressTCP/Should_support_A (0.36s)
\u{16}--- PASS: TestConformance/CNPAdminTierEgressTCP (1.50s)
\u{16}=== RUN   TestConformance/CNPAdminTierGress
\u{16}=== RUN   TestConformance/CNPAdminTierGress/Should_support_B
\u{16}--- FAIL: TestConformance/CNPAdminTierGress/Should_support_B (10.36s)
\u{16}--- FAIL: TestConformance/CNPAdminTierGress (11.00s)
\u{16}=== RUN   TestConformance/CNPAdminTierEgressNodePeers
\u{16}--- SKIP: TestConformance/CNPAdminTierEgressNodePeers (0.00s)
\u{16}--- FAIL: TestConformance (30.00s)
FAIL
";

    #[test]
    fn each_test_counts_once_and_names_the_parts_that_failed() {
        let mut progress = Progress::default();
        OUTPUT.lines().for_each(|line| progress.read(line));
        let seen: Vec<_> = progress
            .specs
            .iter()
            .map(|spec| (spec.name.as_str(), spec.state, spec.message.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("CNPAdminTierEgressTCP", State::Passed, ""),
                ("CNPAdminTierGress", State::Failed, "Should support B"),
                ("CNPAdminTierEgressNodePeers", State::Skipped, ""),
            ]
        );
        assert_eq!(progress.specs[0].time, Duration::from_millis(1500));
    }

    #[test]
    fn a_selection_is_about_the_tests_of_the_suite() {
        let selection =
            TestSelection { only: vec!["A".to_owned(), "B".to_owned()], skip: Some("SCTP$".to_owned()) };
        let arguments = arguments(&selection);
        assert!(arguments.contains(&"-test.run=^TestConformance$/^(A|B)$".to_owned()), "{arguments:?}");
        assert!(arguments.contains(&"-test.skip=^TestConformance$/SCTP$".to_owned()), "{arguments:?}");
    }
}
