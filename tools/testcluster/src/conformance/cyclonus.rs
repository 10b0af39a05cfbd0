//! Cyclonus: NetworkPolicies with every combination of fields. After each change every pod of nine connects to every other,
//! and Cyclonus compares the result with what its own evaluation of the policies allows.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Spec, State};
use super::{Results, run};
use crate::go_tools::{self, Tool, Tools};
use crate::images;
use crate::state::Cluster;
use knit_dev::progress::Step;

/// What is built for it.
pub const PROGRAMS: [Tool; 3] = [Tool::Cyclonus, Tool::CyclonusWorker, Tool::Agnhost];

/// Which cases to run.
#[derive(Clone, Debug, Default)]
pub struct CaseSelection {
    /// Only cases with one of these tags; all if empty.
    pub include: Vec<String>,
    /// No cases with one of these tags. Without it Cyclonus leaves out several by default.
    pub exclude: Vec<String>,
}

/// Runs the cases that match against the cluster, one after the other. Pods connect to each other's addresses by TCP and UDP.
pub fn cyclonus(cluster: &Cluster, selection: &CaseSelection, folder: &Path) -> Result<Results> {
    let tools = go_tools::ensure(&PROGRAMS)?;
    load_worker(cluster, &tools)?;
    let [junit, log] = run::prepare(folder, ["junit_cyclonus.xml", "cyclonus.log"])?;
    let mut program = Command::new(tools.path(Tool::Cyclonus));
    program.env("KUBECONFIG", cluster.kubeconfig()).arg("generate");
    program.args(arguments(selection)).arg(format!("--junit-results-file={}", junit.display()));
    let mut progress = Progress::default();
    let (status, time) =
        run::run(cluster, program, |output| run::lines(output, &log, |line| progress.read(line)))?;
    if !status.success() {
        bail!("cyclonus failed outside of a case ({status}); {}", run::tail(&log));
    }
    let (ran, total) = (progress.specs.len(), progress.total);
    ensure!(ran == total, "{ran} of {total} cases ran; {}", run::tail(&log));
    ensure!(ran > 0, "no case matches {selection:?}");
    Ok(Results { specs: progress.specs, time, junit: Some(junit), log })
}

/// Loads the image of the pods into all nodes.
fn load_worker(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot create a directory for an image")?;
    let archive = folder.path().join("worker.tar");
    images::write_cyclonus_worker(tools, &archive)?;
    crate::load_images(cluster, &archive)
}

fn arguments(selection: &CaseSelection) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--server-protocol=TCP,UDP",
        "--destination-type=pod-ip",
        // A pod always reaches itself by its own address.
        "--ignore-loopback",
        // Policies take effect within milliseconds; a busy machine may need longer.
        "--perturbation-wait-seconds=2",
        "--retries=2",
        "--pod-creation-timeout-seconds=300",
        "--cleanup-namespaces",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("--exclude={}", selection.exclude.join(",")));
    if !selection.include.is_empty() {
        arguments.push(format!("--include={}", selection.include.join(",")));
    }
    arguments
}

/// What a line of the output is about.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// How many cases will run.
    Total(usize),
    /// The description of the next case in the list, which precedes the first case.
    Described(String),
    /// The case with this number begins.
    Started(usize),
    /// Pods reach what they must not, or do not reach what they must.
    Wrong(String),
    /// The running case has ended.
    Finished,
}

fn read(line: &str) -> Option<Event> {
    if let Some(rest) = line.strip_prefix("testing ") {
        return rest.strip_suffix(" cases")?.parse().ok().map(Event::Total);
    }
    if let Some(rest) = line.strip_prefix("test #") {
        let (_, description) = rest.split_once(": ")?;
        return Some(Event::Described(description.to_owned()));
    }
    if let Some(number) = line.strip_prefix("starting test case #") {
        return number.parse().ok().map(Event::Started);
    }
    if let Some(counts) = line.strip_prefix("Discrepancy found:") {
        return Some(Event::Wrong(counts.to_owned()));
    }
    line.starts_with("finished policy #").then_some(Event::Finished)
}

/// Shows each case as a step, and collects the results.
#[derive(Default)]
struct Progress {
    total: usize,
    descriptions: Vec<String>,
    specs: Vec<Spec>,
    running: Option<Running>,
}

struct Running {
    name: String,
    start: Instant,
    wrong: Vec<String>,
    step: Step,
}

impl Progress {
    fn read(&mut self, line: &str) {
        match read(line) {
            Some(Event::Total(count)) => self.total = count,
            Some(Event::Described(description)) => self.descriptions.push(description),
            Some(Event::Started(number)) => self.running = Some(self.start(number)),
            Some(Event::Wrong(counts)) => {
                self.running.iter_mut().for_each(|case| case.wrong.push(counts.clone()));
            }
            Some(Event::Finished) => {
                self.specs.extend(self.running.take().map(Running::end));
            }
            None => {}
        }
    }

    /// Descriptions are not unique: the number is.
    fn start(&self, number: usize) -> Running {
        let description = self.descriptions.get(number.wrapping_sub(1)).map_or("", String::as_str);
        let name = format!("#{number} {description}");
        let step = Step::start(format!("{number}/{} {description}", self.total));
        Running { name, start: Instant::now(), wrong: Vec::new(), step }
    }
}

impl Running {
    fn end(self) -> Spec {
        let time = self.start.elapsed();
        if self.wrong.is_empty() {
            self.step.done();
            return Spec { name: self.name, state: State::Passed, time, message: String::new() };
        }
        // A dropped step is shown as failed.
        drop(self.step);
        Spec { name: self.name, state: State::Failed, time, message: self.wrong.join("\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
testing 2 cases

test #1: set namespace to x
 - tags: target, target-namespace
test #2: egress: deny all
 - tags: deny-all
starting test case #1
time=\"2026-11-19T04:00:00Z\" level=info msg=\"running kube probe on try 1\"
evaluating test case: set namespace to x
0 wrong, 36 ignored, 288 correct
finished policy #1
starting test case #2
Discrepancy found:3 wrong, 36 ignored, 285 correct
finished policy #2
";

    #[test]
    fn a_case_with_a_discrepancy_fails() {
        let mut progress = Progress::default();
        OUTPUT.lines().for_each(|line| progress.read(line));
        let seen: Vec<_> = progress.specs.iter().map(|spec| (spec.name.as_str(), spec.state)).collect();
        assert_eq!(seen, [("#1 set namespace to x", State::Passed), ("#2 egress: deny all", State::Failed)]);
        assert_eq!(
            (progress.total, progress.specs[1].message.as_str()),
            (2, "3 wrong, 36 ignored, 285 correct")
        );
    }

    #[test]
    fn nothing_is_left_out_unless_it_is_selected() {
        let all = arguments(&CaseSelection::default());
        assert!(all.contains(&"--exclude=".to_owned()), "{all:?}");
        assert!(!all.iter().any(|argument| argument.starts_with("--include")), "{all:?}");
    }
}
