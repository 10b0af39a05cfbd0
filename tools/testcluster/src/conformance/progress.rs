//! Progress by spec, parsed from the output of the upstream tests. (Their progress URL leaves out specs that passed.)

use std::io::Read;
use std::path::Path;

use anyhow::Result;

use super::run;
use knit_dev::progress::Step;

const SEPARATOR: &str = "------------------------------";

/// An event in the output.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// How many specs will run.
    Total(u32),
    /// A spec starts.
    Started(String),
    /// The running spec has ended.
    Passed,
    Failed,
    Skipped,
}

/// Copies the output to the log and shows each spec as a step, until the output ends.
pub fn follow(output: impl Read, log: &Path) -> Result<()> {
    let mut reader = Reader::default();
    let (mut total, mut begun) = (0, 0);
    let mut step: Option<Step> = None;
    run::lines(output, log, |line| match reader.read(line) {
        Some(Event::Total(count)) => total = count,
        Some(Event::Started(name)) => {
            begun += 1;
            step = Some(Step::start(format!("{begun}/{total} {name}")));
        }
        Some(Event::Passed) => step.take().into_iter().for_each(Step::done),
        Some(Event::Skipped) => step.take().into_iter().for_each(|step| step.done_with("skipped")),
        // A dropped step is shown as failed.
        Some(Event::Failed) => step = None,
        None => {}
    })
}

/// A spec's name follows a separator; its output is indented; its result is not.
#[derive(Default)]
struct Reader {
    after_rule: bool,
    running: bool,
}

impl Reader {
    fn read(&mut self, line: &str) -> Option<Event> {
        let after_rule = std::mem::replace(&mut self.after_rule, line == SEPARATOR);
        if let Some(rest) = line.strip_prefix("Will run ") {
            return rest.split(' ').next()?.parse().ok().map(Event::Total);
        }
        if self.running && (line.starts_with("• [") || line.starts_with("S [")) {
            self.running = false;
            return Some(if line.starts_with('S') {
                Event::Skipped
            } else if is_plain(line) {
                Event::Passed
            } else {
                Event::Failed
            });
        }
        let is_name = after_rule && line.starts_with('[') && !line.contains("Suite] ");
        if is_name && !self.running {
            self.running = true;
            return Some(Event::Started(without_labels(line)));
        }
        None
    }
}

/// `• [2.084 seconds]`, where a failure reads `• [FAILED] [2.084 seconds]`.
fn is_plain(line: &str) -> bool {
    line.matches('[').count() == 1
}

/// The name without the list of labels behind it, which it already contains.
fn without_labels(line: &str) -> String {
    line.rsplit_once(" [").map_or(line, |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Will run 3 of 7579 specs
------------------------------
[SynchronizedBeforeSuite]\u{20}
k8s.io/e2e.go:69
[SynchronizedBeforeSuite] PASSED [0.034 seconds]
------------------------------
SSSSSS
------------------------------
[sig-network] A works [Conformance] [sig-network, Conformance]
k8s.io/a.go:307
  STEP: • [not a result] @ 11/15/26
• [2.084 seconds]
------------------------------
[sig-network] B breaks [sig-network]
k8s.io/b.go:1
  [FAILED] in [It]
• [FAILED] [61.000 seconds]
[sig-network] B breaks [sig-network]
------------------------------
[sig-network] C cannot [sig-network]
S [SKIPPED] [0.010 seconds]
";

    #[test]
    fn each_spec_starts_and_ends_once() {
        let mut reader = Reader::default();
        let events: Vec<Event> = OUTPUT.lines().filter_map(|line| reader.read(line)).collect();
        let started = |name: &str| Event::Started(name.to_owned());
        assert_eq!(
            events,
            [
                Event::Total(3),
                started("[sig-network] A works [Conformance]"),
                Event::Passed,
                started("[sig-network] B breaks"),
                Event::Failed,
                started("[sig-network] C cannot"),
                Event::Skipped
            ]
        );
    }
}
