//! Waits for changes of the node's state, for tasks that compare all of it with what they have written.

use std::future::Future;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::watch::Receiver;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, sleep_until};

use crate::daemon::Handle;

/// Follows the state of a node. Changes come in bursts, so each wait ends only after the burst had time to settle.
pub(super) struct StateFollower {
    version: Receiver<u64>,
    settle_time: Duration,
    min_interval: Duration,
}

impl StateFollower {
    /// Follows the state from now on. Changes are collected for `settle_time` after the first one.
    pub(super) fn new(handle: &Handle, settle_time: Duration) -> Self {
        Self { version: handle.state_version(), settle_time, min_interval: Duration::ZERO }
    }

    /// Keeps at least `interval` between the begin and the end of a wait, for tasks that query all pods.
    pub(super) fn with_min_interval(self, interval: Duration) -> Self {
        Self { min_interval: interval, ..self }
    }

    /// Waits until the state changes, `other` completes or `deadline` has come, and then for the burst to settle. Fails when the event loop or
    /// the source of `other` has ended.
    pub(super) async fn changed(
        &mut self,
        other: impl Future<Output = Result<(), RecvError>>,
        deadline: Option<Instant>,
    ) -> Result<(), RecvError> {
        let earliest = Instant::now() + self.min_interval;
        tokio::select! {
            changed = self.version.changed() => changed?,
            other = other => other?,
            () = sleep_until(deadline.unwrap_or(earliest)), if deadline.is_some() => {}
        }
        sleep_until(earliest.max(Instant::now() + self.settle_time)).await;
        self.version.mark_unchanged();
        Ok(())
    }
}

/// Waits for a notification, as a source for [`StateFollower::changed`].
pub(super) async fn notified(notify: &Notify) -> Result<(), RecvError> {
    notify.notified().await;
    Ok(())
}
