//! The feed of pod changes and repairs for watchers.

use std::path::Path;
use std::sync::Arc;

use knit_engine::{Event, Record, Unit};
use knit_ipam::Time;
use knit_model::{Sandbox, SandboxId};
use knit_store::Seq;
use tokio::sync::broadcast;

use crate::error::{Error, Result};
use crate::node::{Node, now};

/// Buffered changes of a slow reader; a slower one continues from the journal.
pub(super) const FEED_CAPACITY: usize = 1_024;

/// A journalled change of a pod.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// Its position in the journal.
    pub seq: Seq,
    /// When it happened.
    pub at: Time,
    /// The pod's sandbox.
    pub sandbox: SandboxId,
    /// The last state of the sandbox, if it is gone.
    pub gone: Option<Box<Sandbox>>,
    /// The id of the call that requested the change.
    pub call: Option<String>,
}

/// A repaired drift.
#[derive(Clone, Debug)]
pub struct RepairNotice {
    /// The unit that was repaired.
    pub unit: Unit,
    /// A summary of the repair.
    pub what: String,
}

/// The sandboxes that an event may remove, before it is handled.
pub(super) fn sandboxes_before(event: &Event, node: &Node, watchers: usize) -> Vec<Sandbox> {
    if watchers == 0 {
        return Vec::new();
    }
    let state = node.state();
    let id = match event {
        Event::SandboxRemoved(id) => Some(id.clone()),
        Event::Observed { unit: Unit::Sandbox(id), .. } => Some(id.clone()),
        Event::PlanApplied(applied) => match &applied.unit {
            Unit::Sandbox(id) => Some(id.clone()),
            Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => None,
        },
        _ => None,
    };
    id.and_then(|id| state.sandboxes.get(&id).cloned()).into_iter().collect()
}

/// Publishes journalled changes to watchers.
pub(super) fn publish(
    to: &broadcast::Sender<Arc<PodChange>>,
    node: &Node,
    records: &[(Seq, Record)],
    before: Vec<Sandbox>,
) {
    if to.receiver_count() == 0 {
        return;
    }
    for (seq, record) in records {
        let Some((sandbox, call)) = sandbox_of(record) else { continue };
        let is_gone = !node.state().sandboxes.contains_key(&sandbox);
        let gone = before.iter().find(|was| is_gone && was.id == sandbox).cloned().map(Box::new);
        // There may be no receiver.
        let _ = to.send(Arc::new(PodChange { seq: *seq, at: now(), sandbox, gone, call }));
    }
}

/// The sandbox that a record is about, and the call that requested the change.
pub fn sandbox_of(record: &Record) -> Option<(SandboxId, Option<String>)> {
    match record {
        Record::SandboxUpdated(sandbox) => Some((sandbox.id.clone(), None)),
        Record::SandboxRemoved { id, .. } => Some((id.clone(), None)),
        Record::Attached(attachment) => Some((attachment.sandbox.clone(), attachment.origin.call.clone())),
        Record::Detached { sandbox, call, .. } => Some((sandbox.clone(), Some(call.0.clone()))),
        Record::ExtensionAnswered { sandbox, .. } => Some((sandbox.clone(), None)),
        Record::ChangeEnded(ended) => match &ended.unit {
            Unit::Sandbox(id) => Some((id.clone(), None)),
            Unit::Bridge(_) | Unit::NodeRoutes | Unit::PacketFilter | Unit::Services | Unit::Policies => None,
        },
        _ => None,
    }
}

/// Identifies the history of a state directory. Created with the directory and lost with it.
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
