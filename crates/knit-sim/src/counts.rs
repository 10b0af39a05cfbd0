//! What was counted: the numbers that a simulation ends with.

use std::collections::BTreeMap;

/// Numbers of one kind, of which the middle and the ends are of interest.
#[derive(Clone, Debug, Default)]
pub struct Spread(Vec<u64>);

impl Spread {
    pub(crate) fn add(&mut self, value: u64) {
        self.0.push(value);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number that this share of all does not exceed; zero if there is none.
    pub fn quantile(&self, share: f64) -> u64 {
        let mut all = self.0.clone();
        all.sort_unstable();
        let last = all.len().saturating_sub(1);
        all.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
    }
}

/// What a simulation counted. Times are of the simulated clock, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Events of the queue.
    pub happenings: u64,
    /// Events that engines heard.
    pub steps: u64,
    /// Pods that ever were.
    pub pods: u64,
    /// Pods of a tenant among them.
    pub tenant_pods: u64,
    /// Attaches that failed and were told why.
    pub refused: u64,
    /// Interfaces of tenants that could not be had at the end, and were told why.
    pub told: u64,
    /// Requests to the API server, by verb and kind.
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// Blocks that were claimed.
    pub claimed: u64,
    /// Claims that another node was faster for.
    pub conflicts: u64,
    /// Blocks that were given back, or deleted for a node that was gone.
    pub given_back: u64,
    /// The most blocks that were held at once.
    pub most_blocks: u64,
    /// From a pod to its first interface.
    pub attach: Spread,
    /// From a tenant's pod to its second interface.
    pub second: Spread,
    /// From the end of all faults to rest.
    pub to_rest: u64,
    /// From the end of all pods until nothing was left of them.
    pub to_nothing: u64,
    /// Agents that began anew.
    pub restarts: u64,
    /// Times that a node could not reach the API server.
    pub partitions: u64,
    /// Times that a clock jumped.
    pub jumps: u64,
    /// Nodes that left.
    pub left: u64,
    /// Plans that the kernel refused.
    pub kernel_failures: u64,
    /// States that were compared with what their journals give.
    pub replays: u64,
    /// The most that waited in the queue at once.
    pub most_waiting: u64,
    /// The most that one node worked on or had to work on at once.
    pub most_units: u64,
    /// The simulated clock at the end.
    pub clock: u64,
}

impl Counts {
    /// Requests for each pod that ever was, by verb.
    pub fn requests_by_verb(&self) -> BTreeMap<&'static str, u64> {
        let mut verbs = BTreeMap::new();
        for ((verb, _), count) in &self.requests {
            *verbs.entry(*verb).or_default() += count;
        }
        verbs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_a_middle_and_ends() {
        let mut spread = Spread::default();
        assert_eq!(spread.quantile(0.5), 0);
        (1..=101).rev().for_each(|value| spread.add(value));
        assert_eq!((spread.quantile(0.0), spread.quantile(0.5), spread.quantile(1.0)), (1, 51, 101));
    }
}
