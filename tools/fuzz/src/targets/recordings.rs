//! Recordings.

use knit_engine::recording::{Entry, Replay};

/// An entry in each line, as `knit replay` reads them.
pub(super) fn recordings(data: &[u8]) {
    let mut replay = Replay::default();
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(entry) = serde_json::from_slice::<Entry>(line) else { continue };
        let _ = replay.next(entry);
    }
    let _ = replay.state().persistent();
}
