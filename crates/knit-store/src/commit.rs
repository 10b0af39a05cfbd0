//! Group commit: many wait, one syncs for all that had written before it began.

use std::sync::{Condvar, Mutex, PoisonError};

/// Who waits for what to be on disk.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// All records up to here are on disk.
    durable: u64,
    /// Whether someone is syncing.
    running: bool,
    /// After a failed sync the kernel may call lost pages clean, so no later sync proves anything.
    failed: Option<String>,
}

impl Commit {
    /// Returns once the record is on disk. `sync` makes all that is written so far durable and says up to which record; it
    /// runs in one thread at a time, and not at all if another's sync covered this record.
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
            if let Some(why) = &state.failed {
                return Err(failed_before(why.clone()));
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

    /// Someone else made everything up to here durable.
    pub(crate) fn note(&self, seq: u64) {
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
    fn those_who_wait_together_share_one_sync() {
        let (commit, written, syncs) = (Commit::default(), AtomicU64::new(1), AtomicU64::new(0));
        let (begun, begins) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let sync = || {
            let up_to = written.load(SeqCst);
            syncs.fetch_add(1, SeqCst);
            begun.send(()).unwrap();
            // Once the gate is gone everyone passes: a sync too many is counted, not waited for.
            let _ = gate.lock().unwrap().recv();
            Ok::<_, String>(up_to)
        };
        thread::scope(|scope| {
            scope.spawn(|| commit.wait(1, sync, |why| why).unwrap());
            begins.recv().unwrap();
            // These write while the first sync runs: it does not cover them, and one more covers them all.
            written.store(9, SeqCst);
            for seq in 2..=9 {
                let (commit, sync) = (&commit, &sync);
                scope.spawn(move || commit.wait(seq, sync, |why| why).unwrap());
            }
            go.send(()).unwrap();
            begins.recv().unwrap();
            drop(go);
        });
        assert_eq!(syncs.load(SeqCst), 2);
    }

    #[test]
    fn after_a_failed_sync_nothing_is_called_durable() {
        let commit = Commit::default();
        let failure = || Err::<u64, _>("input/output error".to_owned());
        assert_eq!(commit.wait(1, failure, |why| why), Err("input/output error".to_owned()));
        let success = || Ok::<_, String>(2);
        assert_eq!(
            commit.wait(2, success, |why| format!("before: {why}")).unwrap_err(),
            "before: input/output error"
        );
    }
}
