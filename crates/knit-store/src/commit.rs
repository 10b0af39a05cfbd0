//! Group commit: one thread syncs for all threads whose records were written before.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tracks which records are durable.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// All records up to this sequence number are durable.
    durable: u64,
    /// Whether a sync is running.
    running: bool,
    /// After a failed fsync the kernel may mark lost pages clean, so a later sync proves nothing.
    failed: Option<String>,
}

impl Commit {
    /// Returns once the record is durable. `sync` makes all written records durable and returns the last one; it runs in one
    /// thread at a time, and not at all if the sync of another thread covers this record.
    pub(crate) fn wait<E: ToString>(
        &self,
        seq: u64,
        sync: impl Fn() -> Result<u64, E>,
        failed_before: impl Fn(String) -> E,
    ) -> Result<(), E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.durable >= seq {
                return Ok(());
            }
            if let Some(cause) = &state.failed {
                return Err(failed_before(cause.clone()));
            }
            if state.running {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.running = true;
            drop(state);
            let synced = sync();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.running = false;
            match &synced {
                Ok(up_to) => state.durable = state.durable.max(*up_to),
                Err(error) => state.failed = Some(error.to_string()),
            }
            self.changed.notify_all();
            synced?;
        }
    }

    /// Marks everything up to this record as durable.
    pub(crate) fn mark_durable(&self, seq: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.durable = state.durable.max(seq);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn concurrent_waiters_share_one_sync() {
        let (commit, written, syncs) = (Commit::default(), AtomicU64::new(1), AtomicU64::new(0));
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let sync = || {
            let up_to = written.load(SeqCst);
            syncs.fetch_add(1, SeqCst);
            begun.send(()).unwrap();
            // Once the sender is dropped every sync passes: an extra one is counted, not blocked.
            let _ = wait.lock().unwrap().recv();
            Ok::<_, String>(up_to)
        };
        thread::scope(|scope| {
            scope.spawn(|| commit.wait(1, sync, |cause| cause).unwrap());
            begins.recv().unwrap();
            // Written during the first sync, which does not cover them; one more sync covers them all.
            written.store(9, SeqCst);
            for seq in 2..=9 {
                let (commit, sync) = (&commit, &sync);
                scope.spawn(move || commit.wait(seq, sync, |cause| cause).unwrap());
            }
            go.send(()).unwrap();
            begins.recv().unwrap();
            drop(go);
        });
        assert_eq!(syncs.load(SeqCst), 2);
    }

    #[test]
    fn after_a_failed_sync_nothing_is_durable() {
        let commit = Commit::default();
        let failure = || Err::<u64, _>("input/output error".to_owned());
        assert_eq!(commit.wait(1, failure, |cause| cause), Err("input/output error".to_owned()));
        let success = || Ok::<_, String>(2);
        assert_eq!(
            commit.wait(2, success, |cause| format!("before: {cause}")).unwrap_err(),
            "before: input/output error"
        );
    }
}
