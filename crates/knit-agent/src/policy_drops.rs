//! Packets that network policies dropped on this node: the kernel's counters with the policies that they belong to, read on
//! demand.

use std::collections::{BTreeMap, BTreeSet};

use knit_kernel::nft::ChainCounters;
use knit_policy::{DropReason, DropRule, PolicyId, Segment};

use crate::error::Result;
use crate::host;

/// The chains whose counters are read at once, each in a request of its own. Those of the node's own pods come first.
const MAX_CHAINS: usize = 1_024;

/// What rules dropped since they were written.
#[derive(Debug, Default)]
pub(crate) struct PolicyDrops {
    /// Each rule with its number of packets.
    pub(crate) rules: Vec<(DropRule, u64)>,
    /// The number of chains whose counters were not read, because there are too many.
    pub(crate) unread: usize,
}

impl PolicyDrops {
    /// Reads the counters of these rules.
    pub(crate) async fn read(rules: Vec<DropRule>) -> Result<Self> {
        if rules.is_empty() {
            return Ok(Self::default());
        }
        let (chains, unread) = chains_of(&rules, MAX_CHAINS);
        Ok(Self::new(rules, &host::chain_counters(chains).await?, unread))
    }

    fn new(rules: Vec<DropRule>, counters: &BTreeMap<String, ChainCounters>, unread: usize) -> Self {
        let packets = |rule: &DropRule| Some(counters.get(&rule.chain)?.get(&rule.comment)?.packets);
        let rules = rules.into_iter().filter_map(|rule| Some((packets(&rule)?, rule)));
        Self { rules: rules.map(|(packets, rule)| (rule, packets)).collect(), unread }
    }

    /// The packets that a policy dropped. Those that none of several NetworkPolicies allows count for each of them.
    pub(crate) fn of_policy(&self, id: &PolicyId) -> u64 {
        self.sum(|reason| match reason {
            DropReason::DeniedBy { policy, .. } => policy == id,
            DropReason::NotAllowed(policies) => policies.contains(id),
            DropReason::Isolated(_) => false,
        })
    }

    /// The packets that the isolation of a segment dropped.
    pub(crate) fn of_segment(&self, segment: &Segment) -> u64 {
        self.sum(|reason| matches!(reason, DropReason::Isolated(one) if one == segment))
    }

    /// The segments whose isolation dropped packets.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.rules.iter().filter(|(_, packets)| *packets > 0).filter_map(|(rule, _)| match &rule.reason {
            DropReason::Isolated(segment) => Some(segment),
            _ => None,
        })
    }

    fn sum(&self, is_match: impl Fn(&DropReason) -> bool) -> u64 {
        let matching = self.rules.iter().filter(|(rule, _)| is_match(&rule.reason));
        matching.fold(0, |sum: u64, (_, packets)| sum.saturating_add(*packets))
    }
}

/// The chains of these rules, at most `limit`, and the number of those that were left out.
fn chains_of(rules: &[DropRule], limit: usize) -> (Vec<String>, usize) {
    let mut seen = BTreeSet::new();
    let chains = rules.iter().map(|rule| &rule.chain).filter(|chain| seen.insert(*chain));
    let mut chains: Vec<String> = chains.cloned().collect();
    let unread = chains.len().saturating_sub(limit);
    chains.truncate(limit);
    (chains, unread)
}

#[cfg(test)]
mod tests {
    use knit_kernel::nft::RuleCounter;
    use knit_policy::Direction;

    use super::*;

    fn rule(chain: &str, comment: &str, reason: DropReason) -> DropRule {
        let (chain, comment) = (chain.to_owned(), comment.to_owned());
        DropRule { chain, comment, namespace: String::new(), direction: Direction::Ingress, reason }
    }

    #[test]
    fn drops_are_added_per_policy_and_segment() {
        let (a, b) = (PolicyId::namespaced("shop", "a"), PolicyId::namespaced("shop", "b"));
        let admin = PolicyId::of_cluster("admin");
        let shop = Segment::Namespace("shop".to_owned());
        let rules = vec![
            rule("c1", "end", DropReason::NotAllowed(vec![a.clone(), b.clone()])),
            rule("c1", "admin[0]", DropReason::DeniedBy { policy: admin.clone(), rule: 0 }),
            rule("c2", "end", DropReason::NotAllowed(vec![a.clone()])),
            rule("c3", "end", DropReason::NotAllowed(vec![b.clone()])),
            rule("s1", "shop", DropReason::Isolated(shop.clone())),
        ];
        assert_eq!(chains_of(&rules, 9), (["c1", "c2", "c3", "s1"].map(str::to_owned).to_vec(), 0));
        assert_eq!(chains_of(&rules, 1), (vec!["c1".to_owned()], 3));
        let of = |counters: &[(&str, u64)]| -> ChainCounters {
            let all = counters.iter().map(|(comment, packets)| {
                ((*comment).to_owned(), RuleCounter { packets: *packets, bytes: 0 })
            });
            all.collect()
        };
        let counters = [
            ("c1", of(&[("end", 3), ("admin[0]", 10)])),
            ("c2", of(&[("end", 4)])),
            ("s1", of(&[("shop", 7)])),
        ];
        let counters = counters.map(|(chain, counters)| (chain.to_owned(), counters)).into();
        let drops = PolicyDrops::new(rules, &counters, 0);
        assert_eq!(drops.rules.len(), 4, "chain c3 does not exist");
        assert_eq!([&a, &b, &admin].map(|id| drops.of_policy(id)), [7, 3, 10]);
        assert_eq!(drops.of_segment(&shop), 7);
        assert_eq!(drops.segments().collect::<Vec<_>>(), [&shop]);
    }
}
