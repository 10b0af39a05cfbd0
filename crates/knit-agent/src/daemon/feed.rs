//! What changes, for those who watch.

use std::path::Path;
use std::sync::Arc;

use knit_engine::{Event, Record, Unit};
use knit_ipam::Time;
use knit_model::{Sandbox, SandboxId};
use knit_store::Seq;
use tokio::sync::broadcast;

use crate::error::{Error, Result};
use crate::node::{Node, now};

/// So many changes wait for a slow reader; a slower one goes on from the journal.
pub(super) const KEPT: usize = 1_024;

/// One change that was written down.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its place in the history.
    pub seq: Seq,
    /// When.
    pub at: Time,
    /// The pod that it is about.
    pub sandbox: SandboxId,
    /// The pod as it was, if it is gone now.
    pub gone: Option<Box<Sandbox>>,
    /// The call that asked for it.
    pub call: Option<String>,
}

/// Something that someone changed by hand, and that is as asked for again.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// What it belongs to.
    pub unit: Unit,
    /// What was done, in words.
    pub what: String,
}

/// The pods that an event may end: as they are before it is heard.
pub(super) fn before(event: &Event, node: &Node, watchers: usize) -> Vec<Sandbox> {
    if watchers == 0 {
        return Vec::new();
    }
    let state = node.state();
    let id = match event {
        Event::SandboxGone(id) => Some(id.clone()),
        Event::Observed { unit: Unit::Sandbox(id), .. } => Some(id.clone()),
        Event::Applied(applied) => match &applied.unit {
            Unit::Sandbox(id) => Some(id.clone()),
            Unit::Bridge(_) | Unit::NodeRoutes => None,
        },
        _ => None,
    };
    id.and_then(|id| state.sandboxes.get(&id).cloned()).into_iter().collect()
}

/// Tells those who watch about what was written down.
pub(super) fn tell(
    to: &broadcast::Sender<Arc<Change>>,
    node: &Node,
    records: &[(Seq, Record)],
    before: Vec<Sandbox>,
) {
    if to.receiver_count() == 0 {
        return;
    }
    for (seq, record) in records {
        let Some((sandbox, call)) = about(record) else { continue };
        let is_gone = !node.state().sandboxes.contains_key(&sandbox);
        let gone = before.iter().find(|was| is_gone && was.id == sandbox).cloned().map(Box::new);
        // Nobody listens any more: then nobody misses it.
        let _ = to.send(Arc::new(Change { seq: *seq, at: now(), sandbox, gone, call }));
    }
}

/// The pod that a record is about, and the call that asked for it.
pub fn about(record: &Record) -> Option<(SandboxId, Option<String>)> {
    match record {
        Record::SandboxSeen(sandbox) => Some((sandbox.id.clone(), None)),
        Record::SandboxGone { id, .. } => Some((id.clone(), None)),
        Record::Attached(attachment) => Some((attachment.sandbox.clone(), attachment.why.call.clone())),
        Record::Detached { sandbox, call, .. } => Some((sandbox.clone(), Some(call.0.clone()))),
        Record::ExtensionAnswered { sandbox, .. } => Some((sandbox.clone(), None)),
        Record::Ended(ended) => match &ended.unit {
            Unit::Sandbox(id) => Some((id.clone(), None)),
            Unit::Bridge(_) | Unit::NodeRoutes => None,
        },
        _ => None,
    }
}

/// Which history this state folder holds. It is made with the folder and lost with it.
pub(super) fn epoch(folder: &Path) -> Result<String> {
    let path = folder.join("epoch");
    let failed = |source| Error::File { path: path.display().to_string(), source };
    match std::fs::read_to_string(&path) {
        Ok(epoch) if !epoch.trim().is_empty() => Ok(epoch.trim().to_owned()),
        _ => {
            let boot = crate::sandboxes::boot_id()?;
            let epoch = format!("{}-{:x}", boot.split('-').next().unwrap_or_default(), now().0);
            std::fs::write(&path, &epoch).map_err(failed)?;
            Ok(epoch)
        }
    }
}
