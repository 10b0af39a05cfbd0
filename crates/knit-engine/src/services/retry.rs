//! When something that failed is tried again: after a while that doubles with every attempt.

use knit_ipam::Time;
use serde::{Deserialize, Serialize};

use crate::event::Unit;
use crate::state::State;

/// The backoff after the first failure, in milliseconds; it doubles with every attempt.
const INITIAL_BACKOFF_MS: u64 = 1_000;
/// The upper bound of the backoff.
const MAX_BACKOFF_MS: u64 = 30_000;

/// When it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retry {
    at: Time,
}

impl Retry {
    /// After this many failures before this one.
    pub(super) fn after(failures: u32, now: Time) -> Self {
        let wait = (INITIAL_BACKOFF_MS << failures.min(16)).min(MAX_BACKOFF_MS);
        Self { at: Time(now.0 + wait) }
    }

    /// The milliseconds that are left.
    fn left(self, now: Time) -> u64 {
        let left = self.at.0.saturating_sub(now.0);
        // A clock that was set back must not prolong the wait.
        if left > MAX_BACKOFF_MS { 0 } else { left }
    }
}

impl State {
    /// The milliseconds until something about Services that failed is to be tried again; `None` if nothing failed.
    pub fn next_service_retry_in(&self, now: Time) -> Option<u64> {
        let retries = [self.services.change_retry, self.services.connection_retry];
        retries.into_iter().flatten().map(|retry| retry.left(now)).min()
    }
}

/// Queues the change that failed, if one did.
pub(super) fn repeat_change(state: &mut State) {
    if state.services.change_retry.take().is_some() {
        state.dirty.insert(Unit::Services);
    }
}
