//! `knit replay`: makes the decisions of a recording again. The recording is a file, or in a support bundle.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use knit_engine::recording::{Entry, Replay, Replayed};
use knit_engine::{Effect, Event};

use crate::output;
use crate::support_bundle::recording::SEGMENTS;

/// The exit code when a decision differs.
const DIFFERENT: u8 = 2;

/// How many different decisions are printed.
const MAX_SHOWN: usize = 10;

/// Replays a recording, or those of a support bundle.
pub fn run(file: &Path, show: bool) -> Result<ExitCode> {
    let mut summary = Summary::default();
    let open = || File::open(file).with_context(|| format!("cannot open {}", file.display()));
    if is_compressed(open()?)? {
        let mut archive = tar::Archive::new(GzDecoder::new(open()?));
        let mut count = 0;
        let entries = archive.entries().with_context(|| format!("cannot read {}", file.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", file.display()))?;
            let name = entry.path()?.display().to_string();
            if SEGMENTS.contains(&name.as_str()) {
                count += 1;
                output::text(&format!("{name}:\n"))?;
                summary.replay_lines(&name, BufReader::new(entry), show)?;
            }
        }
        if count == 0 {
            bail!("{} is not a support bundle with a recording", file.display());
        }
    } else {
        summary.replay_lines(&file.display().to_string(), BufReader::new(open()?), show)?;
    }
    output::text(&summary.to_string())?;
    Ok(if summary.different == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

/// Whether the file is compressed by gzip, as support bundles are.
fn is_compressed(mut file: File) -> Result<bool> {
    let mut start = Vec::new();
    file.by_ref().take(2).read_to_end(&mut start)?;
    Ok(start == [0x1f, 0x8b])
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
    fn replay_lines(&mut self, name: &str, from: impl BufRead, show: bool) -> Result<()> {
        let mut lines = from.lines().enumerate().peekable();
        let mut replay = Replay::default();
        while let Some((number, line)) = lines.next() {
            let line = line.with_context(|| format!("cannot read {name}"))?;
            let entry = match serde_json::from_str::<Entry>(&line) {
                Ok(entry) => entry,
                // The agent was killed, or is still writing, or the recording had reached its limit.
                Err(_) if lines.peek().is_none_or(|(_, next)| starts_recording(next)) => {
                    self.incomplete += 1;
                    continue;
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("{name}:{}", number + 1));
                }
            };
            self.replay(&mut replay, number + 1, entry, show)?;
        }
        Ok(())
    }

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
            writeln!(
                out,
                "Incomplete lines, where an agent was killed or the recording reached its limit: {}",
                self.incomplete
            )?;
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
