//! The last minutes of a recording: two files of limited size, of which each can be replayed alone.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use knit_engine::State;
use knit_engine::recording::NewEntry;

use super::BUFFER_SIZE;
use super::output::Output;

/// The directory of the segments in the state directory.
pub(super) const DIRECTORY: &str = "recording";
/// The segment that is being written.
const CURRENT: &str = "current.jsonl";
/// The segment before.
const PREVIOUS: &str = "previous.jsonl";
/// The shortest time between two rotations: serialising the state of a large node takes some milliseconds.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Limits of the recording of the last minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecentLimits {
    /// The size of both segments together.
    pub(crate) bytes: u64,
    /// The age at which a segment is rotated.
    pub(crate) age: Duration,
}

impl RecentLimits {
    fn segment_bytes(self) -> u64 {
        self.bytes / 2
    }
}

/// The two segments.
pub(super) struct Segments {
    directory: PathBuf,
    current: Output,
    since: Instant,
    limits: RecentLimits,
}

impl Segments {
    /// Continues the current segment. A restart keeps what was recorded before it, unless the segment is already half full: the state
    /// follows.
    pub(super) fn open(directory: &Path, limits: RecentLimits) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = directory.join(CURRENT);
        if path.metadata().is_ok_and(|current| current.len() > limits.segment_bytes() / 2) {
            fs::rename(&path, directory.join(PREVIOUS))?;
        }
        let current = Output::open(&path, limits.segment_bytes())?;
        Ok(Self { directory: directory.to_owned(), current, since: Instant::now(), limits })
    }

    /// The current segment.
    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.current
    }

    /// Whether the current segment is old or nearly full. The rest of it is for the time until the node is quiescent.
    pub(super) fn is_rotation_due(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        let is_nearly_full = self.current.size() > self.limits.segment_bytes() / 4 * 3;
        age >= self.limits.age || (is_nearly_full && age >= MIN_AGE)
    }

    /// Starts the next segment with this state; `None` if that fails.
    pub(super) fn rotate(mut self, version: &str, state: &State, now: Instant) -> Option<Self> {
        let path = self.directory.join(CURRENT);
        let next = fs::rename(&path, self.directory.join(PREVIOUS))
            .and_then(|()| Output::open(&path, self.limits.segment_bytes()));
        match next {
            Ok(next) => self.current = next,
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot record the last minutes; the recording ends here");
                return None;
            }
        }
        self.since = now;
        let mut buffered = BufWriter::with_capacity(BUFFER_SIZE, &mut self.current);
        // An output handles its own errors.
        let _ = NewEntry::Opened { version, state }.write(&mut buffered).and_then(|()| buffered.flush());
        drop(buffered);
        if self.current.size() > self.limits.segment_bytes() {
            let megabytes = self.limits.bytes >> 20;
            tracing::warn!(
                megabytes,
                "recentRecording.megabytes is too small for the node's state: the last minutes are not recorded"
            );
            return None;
        }
        Some(self)
    }
}

/// Removes the segments.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
