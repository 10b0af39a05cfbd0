//! The highest numbers of threads and bytes of a process while a load is on it.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The pause between two samples: a thread that serves one call lives longer.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);
/// Fewer samples prove nothing.
const MIN_SAMPLES: usize = 10;

/// What a process uses, or the highest of several samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub threads: usize,
    pub descriptors: usize,
    /// Anonymous memory.
    pub kilobytes: u64,
}

impl Usage {
    /// What a process uses now.
    pub fn of(pid: u32) -> Self {
        let count = |entries: &str| fs::read_dir(format!("/proc/{pid}/{entries}")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        Self { threads: count("task"), descriptors: count("fd"), kilobytes }
    }

    fn max(self, other: Self) -> Self {
        Self {
            threads: self.threads.max(other.threads),
            descriptors: self.descriptors.max(other.descriptors),
            kilobytes: self.kilobytes.max(other.kilobytes),
        }
    }
}

/// Runs `load`, and returns its result with the peaks of the process meanwhile.
pub fn peaks_during<T>(pid: u32, load: impl FnOnce() -> T) -> (T, Usage) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut peaks, mut samples) = (Usage::of(pid), 1);
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(SAMPLE_INTERVAL);
                peaks = peaks.max(Usage::of(pid));
                samples += 1;
            }
            (peaks, samples)
        });
        // Also if the load fails, so that the sampler ends.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
        is_over.store(true, Ordering::Relaxed);
        let (peaks, samples) = sampler.join().unwrap();
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(samples >= MIN_SAMPLES, "only {samples} samples: the load was too short");
        (result, peaks)
    })
}
