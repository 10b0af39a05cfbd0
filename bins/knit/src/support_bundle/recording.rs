//! The recording of the last minutes in a support bundle: without annotations, and still replayable.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use knit_engine::recording::{Entry, Replay, Replayed, digest};
use serde_json::Value;

use super::{Bundle, REDACTED};

/// The segments in the agent's state directory and in the bundle, the older one first.
pub const SEGMENTS: [&str; 2] = ["recording/previous.jsonl", "recording/current.jsonl"];

/// Replaces a line that is not complete: an agent was killed, or still writes it.
const INCOMPLETE: &str = "{";

/// Adds the segments that exist.
pub(super) fn add(bundle: &mut Bundle, state_dir: &Path) -> Result<()> {
    // The agent may start the next segment at any time: in this order nothing is lost.
    let segments = SEGMENTS.map(|name| fs::read(state_dir.join(name)));
    for (name, segment) in SEGMENTS.iter().zip(segments) {
        if let Ok(segment) = segment {
            let redacted = redacted(&String::from_utf8_lossy(&segment))
                .unwrap_or_else(|error| format!("{state_dir:?}/{name}: {error:#}\n"));
            bundle.add_unchanged(name, redacted.as_bytes())?;
        }
    }
    Ok(())
}

/// A segment without the values of annotations, which can contain anything and on which no decision depends.
///
/// Records contain annotations, so that digests of decisions change. They are computed again: an entry that replays to the recorded
/// decision does so afterwards, and one that does not still differs.
fn redacted(segment: &str) -> Result<String> {
    let mut lines = Vec::new();
    let (mut original, mut without) = (Replay::default(), Replay::default());
    for (number, line) in segment.lines().enumerate() {
        let Ok(entry) = serde_json::from_str::<Entry>(line) else {
            lines.push(INCOMPLETE.to_owned());
            continue;
        };
        let mut value: Value = serde_json::from_str(line)?;
        redact_annotations(&mut value);
        let redacted =
            serde_json::from_value(value.clone()).with_context(|| format!("line {}", number + 1))?;
        let is_same = !matches!(original.next(entry), Replayed::Different(_));
        if let Replayed::Same(effects) | Replayed::Different(effects) = without.next(redacted) {
            let digest = digest(&effects);
            value["handled"]["digest"] = if is_same { digest } else { !digest }.into();
        }
        lines.push(value.to_string());
    }
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn redact_annotations(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::Object(annotations) if key == "annotations" => {
                        annotations.values_mut().for_each(|value| *value = REDACTED.into());
                    }
                    value => redact_annotations(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(redact_annotations),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use knit_engine::recording::{Digest, NewEntry, end_handled, start_handled};
    use knit_engine::{Effect, Event, State, StoredObject, step};
    use knit_model::provenance::ObjectRef;
    use serde_json::json;

    use super::*;

    /// A recording of two objects with annotations, which their records contain.
    fn recording() -> String {
        let mut state = State::default();
        let mut text = Vec::new();
        NewEntry::Opened { version: "1", state: &state }.write(&mut text).unwrap();
        for name in ["a", "b"] {
            let event = Event::ObjectApplied(StoredObject {
                object: ObjectRef {
                    kind: "Bridge".to_owned(),
                    namespace: "ns".to_owned(),
                    name: name.to_owned(),
                    uid: String::new(),
                    generation: 1,
                },
                intents: Vec::new(),
                warnings: Vec::new(),
                manifest: json!({ "metadata": { "annotations": { "note": "hush" }, "name": name } }),
                since: 0,
                file: None,
            });
            let at = serde_json::from_value(json!(1)).unwrap();
            start_handled(&mut text, at, &event).unwrap();
            let effects = step(&mut state, event, at);
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Journal(_))), "{effects:?}");
            let mut of_effects = Digest::default();
            of_effects.add(&effects);
            end_handled(&mut text, of_effects).unwrap();
        }
        String::from_utf8(text).unwrap()
    }

    fn replayed(segment: &str) -> Vec<bool> {
        let mut replay = Replay::default();
        let entries = segment.lines().map(|line| serde_json::from_str(line).unwrap());
        entries.map(|entry| !matches!(replay.next(entry), Replayed::Different(_))).collect()
    }

    #[test]
    fn a_redacted_recording_has_no_annotations_and_replays_as_before() {
        let recording = recording();
        assert_eq!(replayed(&recording), [true; 3]);
        let redacted_recording = redacted(&recording).unwrap();
        assert!(!redacted_recording.contains("hush") && redacted_recording.contains(REDACTED));
        assert_eq!(replayed(&redacted_recording), [true; 3]);
        // A decision that differs from the recorded one still does.
        let (line, of_line) = recording.lines().enumerate().last().unwrap();
        let (start, _) = of_line.rsplit_once(':').unwrap();
        let start = recording.lines().take(line).map(|line| format!("{line}\n")).collect::<String>() + start;
        assert_eq!(replayed(&redacted(&format!("{start}:7}}}}\n")).unwrap()), [true, true, false]);
    }

    #[test]
    fn nothing_of_an_incomplete_line_is_kept() {
        let recording = recording();
        let end = recording.rfind("hush").unwrap() + 4;
        let redacted = redacted(&recording[..end]).unwrap();
        assert!(redacted.ends_with("\n{\n") && !redacted.contains("hush"), "{redacted}");
    }
}
