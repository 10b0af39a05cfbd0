//! A set of integers as disjoint intervals: finding the next gap costs one lookup, however full the set is.

use std::collections::BTreeMap;

/// Maximal intervals, first to last (inclusive); no two are adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet(BTreeMap<u128, u128>);

#[cfg(test)]
thread_local! {
    /// Number of lookups of this thread, to test the cost of an allocation without timing.
    pub(crate) static LOOKUPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl IntervalSet {
    /// The interval that contains the value.
    fn around(&self, value: u128) -> Option<(u128, u128)> {
        #[cfg(test)]
        LOOKUPS.set(LOOKUPS.get() + 1);
        let (&first, &last) = self.0.range(..=value).next_back()?;
        (value <= last).then_some((first, last))
    }

    /// The last value of the interval that contains this one.
    pub(crate) fn end_of(&self, value: u128) -> Option<u128> {
        self.around(value).map(|(_, last)| last)
    }

    pub(crate) fn insert(&mut self, value: u128) {
        self.insert_all(value, value);
    }

    /// Inserts all values from first to last.
    pub(crate) fn insert_all(&mut self, first: u128, last: u128) {
        let start =
            first.checked_sub(1).and_then(|before| self.around(before)).map_or(first, |interval| interval.0);
        let mut end = last;
        let upper = last.saturating_add(1);
        // Merges intervals that begin inside or right behind; for a single value that is at most one.
        while let Some((&other, &other_last)) = self.0.range(start..=upper).next_back() {
            end = end.max(other_last);
            self.0.remove(&other);
        }
        self.0.insert(start, end);
    }

    pub(crate) fn remove(&mut self, value: u128) {
        let Some((first, last)) = self.around(value) else { return };
        self.0.remove(&first);
        if first < value {
            self.0.insert(first, value - 1);
        }
        if value < last {
            self.0.insert(value + 1, last);
        }
    }

    /// The lowest missing value from `from` to `last`.
    pub(crate) fn first_gap(&self, from: u128, last: u128) -> Option<u128> {
        let gap = match self.end_of(from) {
            Some(end) => end.checked_add(1)?,
            None => from,
        };
        (gap <= last).then_some(gap)
    }

    /// Number of values from `first` to `last`. Costs a step for each interval among them.
    pub(crate) fn count(&self, first: u128, last: u128) -> u128 {
        let start = self.around(first).map_or(first, |interval| interval.0);
        let intervals = self.0.range(start..=last);
        intervals
            .map(|(interval_first, interval_last)| {
                (*interval_last).min(last) - (*interval_first).max(first) + 1
            })
            .sum()
    }

    /// The intervals in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().map(|(&first, &last)| (first, last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Equivalent to a plain set, also at the upper end of the number space.
        #[test]
        fn behaves_like_a_set(
            steps in prop::collection::vec((any::<bool>(), 0_u128..40, 0_u128..4), 1..120),
            top in any::<bool>(),
        ) {
            let base = if top { u128::MAX - 43 } else { 0 };
            let mut intervals = IntervalSet::default();
            let mut set = BTreeSet::new();
            for (add, value, more) in steps {
                if add {
                    intervals.insert_all(base + value, base + value + more);
                    set.extend(base + value..=base + value + more);
                } else {
                    intervals.remove(base + value);
                    set.remove(&(base + value));
                }
                let listed: Vec<u128> = intervals.iter().flat_map(|(first, last)| first..=last).collect();
                prop_assert_eq!(listed, set.iter().copied().collect::<Vec<_>>());
                let touching = intervals.iter().zip(intervals.iter().skip(1)).any(|(one, next)| one.1 + 1 >= next.0);
                prop_assert!(!touching, "{:?}", intervals);
                let gap = (base + value..=base + 43).find(|value| !set.contains(value));
                prop_assert_eq!(intervals.first_gap(base + value, base + 43), gap);
                let count = set.range(base + value..=base + value + more).count() as u128;
                prop_assert_eq!(intervals.count(base + value, base + value + more), count);
            }
        }
    }
}
