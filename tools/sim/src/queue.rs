//! Scheduled events in order, on a clock that jumps from one event to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A time, in microseconds since the simulation began.
pub(crate) type SimTime = u64;

/// A millisecond.
pub(crate) const MILLIS: SimTime = 1_000;
/// A second.
pub(crate) const SECOND: SimTime = 1_000 * MILLIS;
/// A minute.
pub(crate) const MINUTE: SimTime = 60 * SECOND;

/// Events by time; events of the same time in the order of scheduling.
pub(crate) struct Queue<T> {
    now: SimTime,
    sequence: u64,
    heap: BinaryHeap<Reverse<Entry<T>>>,
    max_len: usize,
}

struct Entry<T> {
    at: (SimTime, u64),
    event: T,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { now: 0, sequence: 0, heap: BinaryHeap::new(), max_len: 0 }
    }

    /// The current time.
    pub(crate) fn now(&self) -> SimTime {
        self.now
    }

    /// Schedules an event after a delay.
    pub(crate) fn schedule(&mut self, delay: SimTime, event: T) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at: (self.now + delay, self.sequence), event }));
        self.max_len = self.max_len.max(self.heap.len());
    }

    /// The next event; the clock advances to its time.
    pub(crate) fn next(&mut self) -> Option<T> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at.0;
        Some(entry.event)
    }

    /// Number of scheduled events.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Maximum number of scheduled events so far.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_by_scheduling() {
        let mut queue = Queue::new();
        for (delay, event) in [(5, "c"), (1, "a"), (5, "d"), (3, "b")] {
            queue.schedule(delay, event);
        }
        let mut order = Vec::new();
        while let Some(event) = queue.next() {
            order.push((queue.now(), event));
        }
        assert_eq!(order, [(1, "a"), (3, "b"), (5, "c"), (5, "d")]);
        assert_eq!((queue.len(), queue.max_len()), (0, 4));
    }
}
