//! What is going to happen, in order, on a clock that only moves from one happening to the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A moment, in microseconds since the simulation began.
pub(crate) type Moment = u64;

/// A millisecond.
pub(crate) const MILLIS: Moment = 1_000;
/// A second.
pub(crate) const SECOND: Moment = 1_000 * MILLIS;
/// A minute.
pub(crate) const MINUTE: Moment = 60 * SECOND;

/// Happenings by time; of two at the same time the one that was put in first comes first.
pub(crate) struct Queue<T> {
    now: Moment,
    put: u64,
    heap: BinaryHeap<Reverse<Entry<T>>>,
    most: usize,
}

struct Entry<T> {
    at: (Moment, u64),
    what: T,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { now: 0, put: 0, heap: BinaryHeap::new(), most: 0 }
    }

    /// Now.
    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    /// Puts something in for so much later.
    pub(crate) fn after(&mut self, delay: Moment, what: T) {
        self.put += 1;
        self.heap.push(Reverse(Entry { at: (self.now + delay, self.put), what }));
        self.most = self.most.max(self.heap.len());
    }

    /// The next happening; its time is now.
    pub(crate) fn next(&mut self) -> Option<T> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at.0;
        Some(entry.what)
    }

    /// How many happenings wait.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The most that ever waited at once.
    pub(crate) fn most(&self) -> usize {
        self.most
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
    fn what_is_due_first_comes_first_and_equals_come_in_their_order() {
        let mut queue = Queue::new();
        for (delay, what) in [(5, "c"), (1, "a"), (5, "d"), (3, "b")] {
            queue.after(delay, what);
        }
        let mut order = Vec::new();
        while let Some(what) = queue.next() {
            order.push((queue.now(), what));
        }
        assert_eq!(order, [(1, "a"), (3, "b"), (5, "c"), (5, "d")]);
        assert_eq!((queue.len(), queue.most()), (0, 4));
    }
}
