//! `knit replay`: makes the decisions of a recording again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use knit_engine::recording::{Entry, Replay, Replayed};
use knit_engine::{Effect, Event};

use crate::output;

/// The exit code when a decision differs.
const DIFFERENT: u8 = 2;

/// How many different decisions are printed.
const MAX_SHOWN: usize = 10;

/// Replays the file.
pub fn run(file: &Path, show: bool) -> Result<ExitCode> {
    let opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    let mut summary = Summary::default();
    let mut lines = BufReader::new(opened).lines().enumerate().peekable();
    let mut replay = Replay::default();
    while let Some((number, line)) = lines.next() {
        let line = line.with_context(|| format!("cannot read {}", file.display()))?;
        let entry = match serde_json::from_str::<Entry>(&line) {
            Ok(entry) => entry,
            // The agent was killed, or is still writing.
            Err(_) if lines.peek().is_none_or(|(_, next)| starts_recording(next)) => {
                summary.incomplete += 1;
                continue;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("{}:{}", file.display(), number + 1));
            }
        };
        summary.replay(&mut replay, number + 1, entry, show)?;
    }
    output::text(&summary.to_string())?;
    Ok(if summary.different == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// Whether an agent started with this line.
fn starts_recording(line: &std::io::Result<String>) -> bool {
    let entry = line.as_ref().ok().and_then(|line| serde_json::from_str(line).ok());
    matches!(entry, Some(Entry::Opened { .. }))
}

#[derive(Default)]
struct Summary {
    /// The versions of Knit that wrote it.
    versions: Vec<String>,
    inputs: BTreeMap<String, usize>,
    effects: usize,
    different: usize,
    /// Lines that an agent did not write to their end.
    incomplete: usize,
}

impl Summary {
    fn replay(&mut self, replay: &mut Replay, line: usize, entry: Entry, show: bool) -> Result<()> {
        if let Entry::Opened { version, .. } = &entry {
            self.versions.push(version.clone());
        }
        let input = match &entry {
            Entry::Handled { at, event, .. } => Some((at.0, name_of(event)?)),
            _ => None,
        };
        let (effects, is_same) = match replay.next(entry) {
            Replayed::Nothing => return Ok(()),
            Replayed::Same(effects) => (effects, true),
            Replayed::Different(effects) => (effects, false),
        };
        let (at, name) = input.unwrap_or_default();
        *self.inputs.entry(name.clone()).or_default() += 1;
        self.effects += effects.len();
        self.different += usize::from(!is_same);
        if show || (!is_same && self.different <= MAX_SHOWN) {
            let difference = if is_same { "" } else { ": different from the recorded decision" };
            let mut text = format!("line {line}, {at} ms: {name}{difference}\n");
            for effect in &effects {
                let described = describe(effect);
                for part in described.lines() {
                    let _ = writeln!(text, "    {part}");
                }
            }
            output::text(&text)?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, count) in &self.inputs {
            writeln!(out, "{count:>8} {name}")?;
        }
        if self.incomplete > 0 {
            writeln!(out, "Incomplete lines, where an agent was killed: {}", self.incomplete)?;
        }
        let own = env!("CARGO_PKG_VERSION");
        if let Some(other) = self.versions.iter().find(|version| *version != own) {
            writeln!(out, "Recorded by knit {other}; this is knit {own}: decisions may differ.")?;
        }
        let inputs: usize = self.inputs.values().sum();
        let (effects, different) = (self.effects, self.different);
        writeln!(out, "{inputs} inputs, {effects} decisions, {different} inputs with different decisions")
    }
}

/// The name of an event in the recording.
fn name_of(event: &Event) -> Result<String> {
    let value = serde_json::to_value(event).context("an event is plain data")?;
    Ok(match value {
        serde_json::Value::String(name) => name,
        serde_json::Value::Object(fields) => fields.keys().next().cloned().unwrap_or_default(),
        other => other.to_string(),
    })
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Journal(record) => {
            let value = serde_json::to_value(record).unwrap_or_default();
            let name = value.as_object().and_then(|fields| fields.keys().next().cloned());
            format!("journal {}", name.unwrap_or_else(|| value.to_string()))
        }
        Effect::Observe { unit, .. } => format!("observe {unit}"),
        Effect::Apply { unit, plan } => format!("apply {unit}\n{plan}"),
        Effect::ObjectsChanged(objects) => {
            let names: Vec<String> = objects.iter().map(ToString::to_string).collect();
            format!("report {}", names.join(", "))
        }
        Effect::Respond { call, .. } => format!("respond to call {call}"),
        other => {
            let text = format!("{other:?}");
            text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
        }
    }
}
