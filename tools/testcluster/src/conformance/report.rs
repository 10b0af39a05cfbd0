//! The upstream tests' JSON report, reduced to the specs that ran.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The result of a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It skipped itself at run time.
    Skipped,
}

impl State {
    /// The text for tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "FAIL",
            Self::Skipped => "skip",
        }
    }
}

/// One spec that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its full name.
    pub name: String,
    /// How it ended.
    pub state: State,
    /// How long it took.
    pub time: Duration,
    /// The failure or skip message.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    run_time: u64,
    #[serde(default)]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// The specs that ran, by name.
pub fn read(file: &Path) -> Result<Vec<Spec>> {
    let reader = BufReader::new(File::open(file).with_context(|| format!("cannot open {}", file.display()))?);
    let suites: Vec<Suite> =
        serde_json::from_reader(reader).with_context(|| format!("cannot read {}", file.display()))?;
    let entries = suites.into_iter().filter_map(|suite| suite.spec_reports).flatten();
    let mut specs: Vec<Spec> = entries.filter_map(spec).collect();
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(specs)
}

/// A spec that was filtered out is skipped without a message; a node that is no spec counts only when it failed.
fn spec(entry: Entry) -> Option<Spec> {
    let message = entry.failure.map(|failure| failure.message).unwrap_or_default();
    let state = match entry.state.as_str() {
        "passed" => State::Passed,
        "skipped" if message.is_empty() => return None,
        "skipped" => State::Skipped,
        "pending" => return None,
        _ => State::Failed,
    };
    let is_spec = entry.leaf_node_type == "It";
    if !is_spec && state != State::Failed {
        return None;
    }
    let mut texts = entry.container_hierarchy_texts.unwrap_or_default();
    texts.push(if is_spec { entry.leaf_node_text } else { format!("({})", entry.leaf_node_type) });
    Some(Spec { name: texts.join(" "), state, time: Duration::from_nanos(entry.run_time), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_specs_that_ran_are_reported() {
        let text = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": ["[sig-network] B"], "LeafNodeType": "It", "LeafNodeText": "works",
             "State": "passed", "RunTime": 2000000000},
            {"ContainerHierarchyTexts": ["[sig-network] A"], "LeafNodeType": "It", "LeafNodeText": "breaks",
             "State": "timedout", "RunTime": 1, "Failure": {"Message": "too late"}},
            {"ContainerHierarchyTexts": ["x"], "LeafNodeType": "It", "LeafNodeText": "filtered", "State": "skipped",
             "RunTime": 0},
            {"ContainerHierarchyTexts": ["x"], "LeafNodeType": "It", "LeafNodeText": "cannot", "State": "skipped",
             "RunTime": 0, "Failure": {"Message": "needs a cloud"}},
            {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "",
             "State": "passed", "RunTime": 0}
        ]}, {"SpecReports": null}]"#;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.json");
        std::fs::write(&file, text).unwrap();
        let specs = read(&file).unwrap();
        let seen: Vec<_> = specs.iter().map(|spec| (spec.name.as_str(), spec.state)).collect();
        assert_eq!(
            seen,
            [
                ("[sig-network] A breaks", State::Failed),
                ("[sig-network] B works", State::Passed),
                ("x cannot", State::Skipped)
            ]
        );
        assert_eq!(specs[0].message, "too late");
        assert_eq!(specs[1].time, Duration::from_secs(2));
    }
}
