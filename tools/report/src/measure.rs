//! Time measurements and their quantiles.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Rounds that are run and discarded before the first that counts.
pub const WARM_UP: usize = 20;

/// Durations of many rounds of an operation.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    rounds: usize,
    times: Vec<Duration>,
}

impl Samples {
    /// No samples yet.
    pub const fn new() -> Self {
        Self { rounds: 0, times: Vec::new() }
    }

    /// Adds a duration; the first ones are the warm-up and do not count.
    pub fn add(&mut self, time: Duration) {
        self.rounds += 1;
        if self.rounds > WARM_UP {
            self.times.push(time);
        }
    }

    /// Adds a duration that needs no warm-up: one of many concurrent ones.
    pub fn add_warm(&mut self, time: Duration) {
        self.times.push(time);
    }

    /// Runs an operation and adds its duration if it succeeded.
    pub fn time<T, E>(&mut self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let outcome = work()?;
        self.add(start.elapsed());
        Ok(outcome)
    }

    /// The nearest-rank quantile: 0.5 is the median.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }

    /// How many rounds count.
    pub fn count(&self) -> usize {
        self.times.len()
    }
}

/// The peak memory of this process in MiB.
pub fn peak_memory() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read this process's status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    Ok(kibibytes.context("no VmHWM in /proc/self/status")? / 1_024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_does_not_count() {
        let mut samples = Samples::new();
        for _ in 0..WARM_UP {
            samples.add(Duration::from_secs(9));
        }
        assert_eq!(samples.quantile(0.5), None);
        samples.add(Duration::from_secs(1));
        assert_eq!((samples.count(), samples.quantile(0.99)), (1, Some(Duration::from_secs(1))));
    }

    #[test]
    fn quantiles_use_the_nearest_rank() {
        let mut samples = Samples::new();
        for milliseconds in (1..=200).rev() {
            samples.add_warm(Duration::from_millis(milliseconds));
        }
        assert_eq!(samples.quantile(0.5), Some(Duration::from_millis(100)));
        assert_eq!(samples.quantile(0.99), Some(Duration::from_millis(198)));
        assert_eq!(samples.quantile(1.0), Some(Duration::from_millis(200)));
    }

    #[test]
    fn a_failed_round_is_not_a_sample() {
        let mut samples = Samples::new();
        assert!(samples.time(|| Err::<(), _>("no")).is_err());
        assert_eq!((samples.rounds, samples.count()), (0, 0));
    }
}
