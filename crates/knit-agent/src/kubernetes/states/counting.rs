//! What went through pods' interfaces: read whenever something is written about a pod anyway, and every few minutes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use knit_crds::states::{InterfaceCounters, PodCounters, WayCounters};
use knit_kernel::Netns;
use knit_kernel::counters::{Counters, Way, counters};
use knit_model::Sandbox;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Name;

/// Without anything else to write, counters are read this often. They are written if they moved enough.
const EVERY: Duration = Duration::from_secs(300);

/// What was counted, as it was written last.
pub(super) struct Counting {
    written: BTreeMap<Name, PodCounters>,
    at: Instant,
}

impl Counting {
    /// Nothing was counted yet.
    pub(super) fn new() -> Self {
        Self { written: BTreeMap::new(), at: Instant::now() }
    }

    /// When all counters are to be read.
    pub(super) fn due(&self) -> Instant {
        self.at + EVERY
    }

    /// Whether all counters are to be read now; the next time is as far away as ever.
    pub(super) fn take_turn(&mut self) -> bool {
        let is_due = self.due() <= Instant::now();
        if is_due {
            self.at = Instant::now();
        }
        is_due
    }

    /// What was counted was written.
    pub(super) fn wrote(&mut self, name: &Name, counted: Option<PodCounters>) {
        match counted {
            Some(counted) => self.written.insert(name.clone(), counted),
            None => self.written.remove(name),
        };
    }

    /// Whether a pod's counters have moved enough to be written for their own sake.
    pub(super) fn is_worth_it(&self, name: &Name, counted: &PodCounters) -> bool {
        let before = self.written.get(name);
        counted.iter().any(|(interface, now)| {
            let then = before.and_then(|before| before.get(interface)).copied().unwrap_or_default();
            now.has_moved_since(&then)
        })
    }
}

/// Reads the counters of these pods. One that is gone, or is another by now, has none.
pub(super) async fn read(pods: Vec<(Name, Sandbox)>) -> BTreeMap<Name, PodCounters> {
    if pods.is_empty() {
        return BTreeMap::new();
    }
    let read = move || pods.into_iter().filter_map(|(name, sandbox)| Some((name, read_one(&sandbox)?)));
    spawn_blocking(move || read().collect()).await.unwrap_or_default()
}

fn read_one(sandbox: &Sandbox) -> Option<PodCounters> {
    // A virtual machine has no namespace to look into.
    let netns = Netns::open(Path::new(&sandbox.netns)).ok()?;
    let found = counters(&netns, sandbox.instance.cookie).ok()??;
    Some(found.into_iter().map(|(name, counters)| (name.to_string(), words(counters))).collect())
}

fn words(Counters { rx, tx }: Counters) -> InterfaceCounters {
    // The API has no larger numbers.
    let number = |count: u64| count.min(i64::MAX.unsigned_abs());
    let way = |way: Way| WayCounters {
        bytes: number(way.bytes),
        packets: number(way.packets),
        errors: number(way.errors),
        dropped: number(way.dropped),
    };
    InterfaceCounters { rx: way(rx), tx: way(tx) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bytes: u64) -> PodCounters {
        let rx = WayCounters { bytes, ..WayCounters::default() };
        PodCounters::from([("net1".to_owned(), InterfaceCounters { rx, ..InterfaceCounters::default() })])
    }

    #[test]
    fn counters_alone_are_written_only_after_they_moved_from_what_was_written() {
        let name = ("shop".to_owned(), "a".to_owned());
        let mut counting = Counting::new();
        assert!(!counting.take_turn(), "nothing is due at the start");
        assert!(!counting.is_worth_it(&name, &counted(5)));
        assert!(counting.is_worth_it(&name, &counted(5 << 20)));
        counting.wrote(&name, Some(counted(5 << 20)));
        assert!(!counting.is_worth_it(&name, &counted((5 << 20) + 9)));
        counting.wrote(&name, None);
        assert!(counting.is_worth_it(&name, &counted(5 << 20)), "another pod of the same name");
    }
}
