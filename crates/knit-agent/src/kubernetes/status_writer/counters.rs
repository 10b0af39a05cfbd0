//! Traffic counters of pods' interfaces: read whenever a pod's status is written, and every few minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use knit_crds::states::{DirectionCounters, InterfaceCounters, PodCounters};
use knit_model::Sandbox;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Name;
use crate::host::{self, LinkCounters, TrafficCounters};

/// Interval of reading all counters. They are written if they changed enough.
const READ_INTERVAL: Duration = Duration::from_secs(300);

/// The counters as written last.
pub(super) struct WrittenCounters {
    written: BTreeMap<Name, PodCounters>,
    at: Instant,
}

impl WrittenCounters {
    /// No counters were written yet.
    pub(super) fn new() -> Self {
        Self { written: BTreeMap::new(), at: Instant::now() }
    }

    /// When all counters are to be read.
    pub(super) fn due(&self) -> Instant {
        self.at + READ_INTERVAL
    }

    /// Whether all counters are to be read now. Starts the next interval.
    pub(super) fn start_interval_if_due(&mut self) -> bool {
        let is_due = self.due() <= Instant::now();
        if is_due {
            self.at = Instant::now();
        }
        is_due
    }

    /// Records the written counters.
    pub(super) fn written(&mut self, name: &Name, counted: Option<PodCounters>) {
        match counted {
            Some(counted) => self.written.insert(name.clone(), counted),
            None => self.written.remove(name),
        };
    }

    /// Whether a pod's counters changed enough to be written alone.
    pub(super) fn has_changed(&self, name: &Name, counted: &PodCounters) -> bool {
        let before = self.written.get(name);
        counted.iter().any(|(interface, now)| {
            let then = before.and_then(|before| before.get(interface)).copied().unwrap_or_default();
            now.has_significant_change(&then)
        })
    }
}

/// Reads the counters of these pods. A sandbox that is gone or replaced has none.
pub(super) async fn read(pods: Vec<(Name, Sandbox)>) -> BTreeMap<Name, PodCounters> {
    if pods.is_empty() {
        return BTreeMap::new();
    }
    let read = move || pods.into_iter().filter_map(|(name, sandbox)| Some((name, read_one(&sandbox)?)));
    spawn_blocking(move || read().collect()).await.unwrap_or_default()
}

fn read_one(sandbox: &Sandbox) -> Option<PodCounters> {
    let found = host::interface_counters(sandbox)?;
    Some(found.into_iter().map(|(name, counters)| (name.to_string(), render(counters))).collect())
}

fn render(LinkCounters { rx, tx }: LinkCounters) -> InterfaceCounters {
    // Numbers of the API are signed.
    let number = |count: u64| count.min(i64::MAX.unsigned_abs());
    let direction = |direction: TrafficCounters| DirectionCounters {
        bytes: number(direction.bytes),
        packets: number(direction.packets),
        errors: number(direction.errors),
        dropped: number(direction.dropped),
    };
    InterfaceCounters { rx: direction(rx), tx: direction(tx) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bytes: u64) -> PodCounters {
        let rx = DirectionCounters { bytes, ..DirectionCounters::default() };
        PodCounters::from([("net1".to_owned(), InterfaceCounters { rx, ..InterfaceCounters::default() })])
    }

    #[test]
    fn counters_alone_are_written_only_after_a_significant_change() {
        let name = ("shop".to_owned(), "a".to_owned());
        let mut counters = WrittenCounters::new();
        assert!(!counters.start_interval_if_due(), "nothing is due at the start");
        assert!(!counters.has_changed(&name, &counted(5)));
        assert!(counters.has_changed(&name, &counted(5 << 20)));
        counters.written(&name, Some(counted(5 << 20)));
        assert!(!counters.has_changed(&name, &counted((5 << 20) + 9)));
        counters.written(&name, None);
        assert!(counters.has_changed(&name, &counted(5 << 20)), "another pod of the same name");
    }
}
