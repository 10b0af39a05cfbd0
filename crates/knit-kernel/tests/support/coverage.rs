//! Records what was applied to links, for the table in `docs/link-kinds.md`.
//!
//! `KNIT_KINDS_SEEN` names a file that gets one line for each: `seen KIND made`, `seen KIND live FIELD`, `seen KIND
//! again FIELD`. `stderr` is standard error, for a guest without a shared file. Without the variable nothing is
//! recorded.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

use knit_model::{Plan, Step};

/// The lines recorded so far.
static RECORDED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Records a plan that was applied and verified.
pub fn record(plan: &Plan) {
    let Some(path) = std::env::var_os("KNIT_KINDS_SEEN") else { return };
    let mut lines = Vec::new();
    for planned in plan.steps.iter().filter(|planned| !planned.implied) {
        match &planned.step {
            Step::CreateLink { link, .. } => lines.push(format!("seen {} made", link.kind.name())),
            Step::ChangeLink { kind, changes, .. } => {
                for change in changes {
                    lines.push(format!("seen {kind} live {}", field(&change.field)));
                }
            }
            Step::DeleteLink { link, .. } => {
                let note = planned.note.as_deref().unwrap_or_default();
                for changed in note.split('`').skip(1).step_by(2) {
                    lines.push(format!("seen {} again {}", link.kind.name(), field(changed)));
                }
            }
            _ => {}
        }
    }
    let mut recorded = RECORDED.lock().unwrap();
    let new: String =
        lines.into_iter().filter(|line| recorded.insert(line.clone())).map(|line| line + "\n").collect();
    if path == "stderr" {
        // Not with `eprint!`: its output is captured while a test runs.
        std::io::stderr().write_all(new.as_bytes()).unwrap();
        return;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(new.as_bytes()).unwrap();
}

/// A field of a list entry stands for that field of any entry.
fn field(name: &str) -> String {
    match name.split_once('.') {
        Some((list, entry)) => match entry.rsplit_once('.') {
            Some((_, field)) => format!("{list}[].{field}"),
            None => format!("{list}[]"),
        },
        None => name.to_owned(),
    }
}
