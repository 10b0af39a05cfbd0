//! Attaches that arrive after the detach that cancels them.
//!
//! A runtime that gives up on an attach requests a detach. The attach may still be on its way and arrive later,
//! although it started earlier. The start times of callers distinguish it from a new attach.

use std::collections::VecDeque;

use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use serde::{Deserialize, Serialize};

use super::{CallKind, problem};
use crate::call::{CallId, DetachRequest, DetachScope};
use crate::state::State;

/// How many detaches are remembered. The runtime has long given up on older attaches.
const MAX_DETACHES: usize = 1_024;

/// Detaches with a known start time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecentDetaches(VecDeque<(SandboxId, DetachScope, u64)>);

impl RecentDetaches {
    /// Remembers a detach.
    pub(super) fn note(&mut self, detach: &DetachRequest) {
        if detach.started_at == 0 {
            return;
        }
        self.0.push_back((detach.sandbox.clone(), detach.scope.clone(), detach.started_at));
        let surplus = self.0.len().saturating_sub(MAX_DETACHES);
        self.0.drain(..surplus);
    }
}

/// Rejects an attach that a later detach cancelled.
pub(super) fn rejection(state: &State, call: &CallId) -> Option<Problem> {
    let CallKind::Attach(attaching) = &state.pending_calls.waiting.get(call)?.kind else { return None };
    let attach = &attaching.attach;
    let ends = |(id, scope, started_at): &&(SandboxId, DetachScope, u64)| {
        let mut names = attach.interfaces.iter().map(|(name, ..)| name);
        attach.started_at > 0
            && *started_at > attach.started_at
            && id.0 == attach.sandbox.id
            && names.any(|name| scope.covers(name))
    };
    state.pending_calls.recent_detaches.0.iter().find(ends).map(|(id, ..)| {
        let message = format!("sandbox {id} was detached after this call started: the call is too late");
        problem("id", Reason::Superseded, message)
    })
}
