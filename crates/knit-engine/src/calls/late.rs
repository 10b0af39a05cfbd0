//! Attaches that come after the detach that was to end them.
//!
//! A runtime that gives up on an attach asks for a detach. The attach may still be on its way: it began before the detach,
//! and is heard after it. Callers that say when they began are told apart from those that attach anew.

use std::collections::VecDeque;

use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};

use super::{What, problem};
use crate::call::{CallId, Detach, Which};
use crate::state::State;

/// So many detaches are remembered. An attach that is later than all of these has long been given up.
const MOST: usize = 1_024;

/// Detaches whose callers said when they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended(VecDeque<(SandboxId, Which, u64)>);

impl Ended {
    /// A detach was heard.
    pub(super) fn note(&mut self, detach: &Detach) {
        if detach.began == 0 {
            return;
        }
        self.0.push_back((detach.sandbox.clone(), detach.which.clone(), detach.began));
        let surplus = self.0.len().saturating_sub(MOST);
        self.0.drain(..surplus);
    }
}

/// Why an attach comes too late, if it does.
pub(super) fn refusal(state: &State, call: &CallId) -> Option<Problem> {
    let What::Attach(attaching) = &state.calls.waiting.get(call)?.what else { return None };
    let attach = &attaching.attach;
    let ends = |(id, which, began): &&(SandboxId, Which, u64)| {
        let mut names = attach.interfaces.iter().map(|(name, ..)| name);
        attach.began > 0
            && *began > attach.began
            && id.0 == attach.sandbox.id
            && names.any(|name| which.means(name))
    };
    state.calls.ended.0.iter().find(ends).map(|(id, ..)| {
        let message = format!("sandbox {id} was detached after this call began: it comes too late");
        problem("id", Reason::Superseded, message)
    })
}
