//! Records everything that enters the engine, for `knit replay`: the last minutes in the state directory, and on request all of it in a
//! file (`knit agent --record`).
//!
//! Recording must not slow the node down: an entry is serialised into a buffer, which is written once the node is idle, and never synced.
//! A recording that cannot be written ends; the node goes on.

mod output;
mod segments;

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use knit_engine::recording::{self, Digest, NewEntry};
use knit_engine::{Event, State};
use knit_ipam::Time;

use crate::error::{Error, Result};
use output::Output;
pub(crate) use segments::RecentLimits;
use segments::Segments;

/// How many bytes are buffered. A larger entry, such as a list of all objects, is written in parts.
const BUFFER_SIZE: usize = 64 << 10;

/// Writes entries, one JSON object per line, to all recordings of a node.
pub(crate) struct Recorder {
    buffer: Vec<u8>,
    /// Without a limit, as requested by a user.
    complete: Option<Output>,
    /// The last minutes.
    recent: Option<Segments>,
}

impl Recorder {
    /// Starts or continues the recordings: all of it in the file `complete`, and the last minutes in the state directory. Without limits
    /// an earlier recording of the last minutes is removed. `None` if there is nothing to record.
    pub(crate) fn open(
        complete: Option<&Path>,
        state_dir: &Path,
        limits: Option<RecentLimits>,
    ) -> Result<Option<Self>> {
        let failed = |path: &Path, source| Error::File { path: path.display().to_string(), source };
        let open = |path| Output::open(path, u64::MAX).map_err(|error| failed(path, error));
        let complete = complete.map(open).transpose()?;
        let directory = state_dir.join(segments::DIRECTORY);
        let recent = match limits {
            Some(limits) => Segments::open(&directory, limits).map(Some),
            None => segments::remove(&directory).map(|()| None),
        };
        // The user did not ask for this recording: it is no reason not to start.
        let recent = recent.unwrap_or_else(|error| {
            tracing::error!(directory = %directory.display(), %error, "cannot record the last minutes");
            None
        });
        let is_used = complete.is_some() || recent.is_some();
        Ok(is_used.then_some(Self { buffer: Vec::new(), complete, recent }))
    }

    /// Appends an entry.
    pub(crate) fn write(&mut self, entry: &NewEntry<'_>) {
        self.finish(|to| entry.write(to));
    }

    /// Starts the entry of an event.
    pub(crate) fn start_handled(&mut self, at: Time, event: &Event) {
        self.finish(|to| recording::start_handled(to, at, event));
    }

    /// Completes the entry of an event.
    pub(crate) fn end_handled(&mut self, digest: Digest) {
        self.finish(|to| recording::end_handled(to, digest));
    }

    /// Writes buffered entries.
    pub(crate) fn flush_buffer(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let recent = self.recent.as_mut().map(Segments::output);
        for output in self.complete.iter_mut().chain(recent) {
            output.append_bytes(&self.buffer);
        }
        self.buffer.clear();
    }

    /// Starts the next segment of the last minutes with this state, if it is time for it. Between two entries only.
    pub(crate) fn rotate(&mut self, state: &State, now: Instant) {
        if self.recent.as_ref().is_some_and(|recent| recent.is_rotation_due(now)) && state.is_quiescent() {
            self.flush_buffer();
            let version = env!("CARGO_PKG_VERSION");
            self.recent = self.recent.take().and_then(|recent| recent.rotate(version, state, now));
        }
    }

    fn finish(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) {
        if let Err(error) = write(self) {
            // Entries are plain data, and outputs handle their own errors.
            tracing::error!(%error, "cannot serialise an entry of the recording");
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush_buffer();
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_SIZE {
            self.flush_buffer();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_buffer();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
