//! The metric of packets that network policies dropped.
//!
//! The kernel's counters start again when a chain is written. So the metric adds up what they have counted since the last scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use knit_policy::{DropReason, DropRule, PolicyId, Segment};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::policy_drops::PolicyDrops;

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct DropLabels {
    kind: &'static str,
    namespace: String,
    /// Empty for an isolated namespace, and where several policies together allow nothing.
    name: String,
    direction: &'static str,
}

/// The metrics.
#[derive(Default)]
pub(super) struct DropMetrics {
    dropped: Family<DropLabels, Counter>,
    uncounted: Gauge,
    last: Mutex<LastScrape>,
}

/// What the last scrape found.
#[derive(Default)]
struct LastScrape {
    /// The packets of each rule, by chain and comment.
    packets: BTreeMap<(String, String), u64>,
    labels: BTreeSet<DropLabels>,
}

impl DropMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Packets dropped by network policies and isolation";
        registry.register("policy_dropped_packets", help, self.dropped.clone());
        let help =
            "Chains of network policies whose dropped packets are not counted, because there are too many";
        registry.register("policy_uncounted_chains", help, self.uncounted.clone());
    }

    /// Adds what was dropped since the last scrape. Policies that no longer drop packets on this node lose their series.
    pub(super) fn observe(&self, drops: &PolicyDrops) {
        self.uncounted.set(i64::try_from(drops.unread).unwrap_or(i64::MAX));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *last);
        for (rule, packets) in &drops.rules {
            let key = (rule.chain.clone(), rule.comment.clone());
            let counted = before.packets.get(&key).copied().filter(|counted| counted <= packets);
            last.packets.insert(key, *packets);
            let labels = DropLabels::of(rule);
            // Every node has the segments of the whole cluster: they have a series once they dropped a packet.
            let is_listed = *packets > 0 || !matches!(rule.reason, DropReason::Isolated(_));
            if is_listed || before.labels.contains(&labels) {
                self.dropped.get_or_create(&labels).inc_by(packets - counted.unwrap_or_default());
                last.labels.insert(labels);
            }
        }
        for unused in before.labels.difference(&last.labels) {
            self.dropped.remove(unused);
        }
    }
}

impl DropLabels {
    fn of(rule: &DropRule) -> Self {
        let id = |id: &PolicyId| (id.kind.name(), id.namespace.clone(), id.name.clone());
        let (kind, namespace, name) = match &rule.reason {
            DropReason::DeniedBy { policy, .. } => id(policy),
            DropReason::NotAllowed(policies) => match &policies[..] {
                [] => ("", String::new(), String::new()),
                [policy] => id(policy),
                [first, ..] => (first.kind.name(), first.namespace.clone(), String::new()),
            },
            DropReason::Isolated(Segment::Namespace(namespace)) => {
                ("IsolatedNamespace", namespace.clone(), String::new())
            }
            DropReason::Isolated(Segment::App { namespace, name }) => {
                ("App", namespace.clone(), name.clone())
            }
        };
        Self { kind, namespace, name, direction: rule.direction.name() }
    }
}

#[cfg(test)]
mod tests {
    use knit_policy::Direction;
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn rule(chain: &str, reason: DropReason) -> DropRule {
        let (chain, comment) = (chain.to_owned(), "end".to_owned());
        DropRule { chain, comment, namespace: String::new(), direction: Direction::Ingress, reason }
    }

    fn by(name: &str) -> DropReason {
        DropReason::DeniedBy { policy: PolicyId::of_cluster(name), rule: 0 }
    }

    /// The series after a scrape of these rules.
    fn scrape(metrics: &DropMetrics, rules: Vec<(DropRule, u64)>) -> Vec<String> {
        metrics.observe(&PolicyDrops { rules, unread: 2 });
        let (mut registry, mut text) = (Registry::with_prefix("knit"), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("knit_policy_uncounted_chains 2"), "{text}");
        let series = text.lines().filter_map(|line| line.strip_prefix("knit_policy_dropped_packets_total"));
        let mut series: Vec<String> = series.map(str::to_owned).collect();
        series.sort();
        series
    }

    fn series(kind: &str, namespace: &str, name: &str, packets: u64) -> String {
        format!(
            "{{kind=\"{kind}\",namespace=\"{namespace}\",name=\"{name}\",direction=\"ingress\"}} {packets}"
        )
    }

    #[test]
    fn packets_are_added_up_also_when_a_chain_is_written_again() {
        let metrics = DropMetrics::default();
        let admin = |packets: u64| series("ClusterNetworkPolicy", "", "a", packets);
        let both = |one: u64, other: u64| vec![(rule("c1", by("a")), one), (rule("c2", by("a")), other)];
        assert_eq!(scrape(&metrics, both(0, 0)), [admin(0)]);
        assert_eq!(scrape(&metrics, both(5, 2)), [admin(7)]);
        // Chain c1 was written again; then c2 is unused.
        assert_eq!(scrape(&metrics, both(1, 2)), [admin(8)]);
        assert_eq!(scrape(&metrics, vec![(rule("c1", by("a")), 4)]), [admin(11)]);
        assert_eq!(scrape(&metrics, Vec::new()), [""; 0]);
    }

    #[test]
    fn series_are_limited_to_policies_and_namespaces() {
        let metrics = DropMetrics::default();
        let policy = |name: &str| PolicyId::namespaced("shop", name);
        let app = |name: &str| {
            DropReason::Isolated(Segment::App { namespace: "shop".to_owned(), name: name.to_owned() })
        };
        let found = scrape(
            &metrics,
            vec![
                (rule("c1", DropReason::NotAllowed(vec![policy("a")])), 1),
                (rule("c2", DropReason::NotAllowed(vec![policy("a"), policy("b")])), 2),
                (rule("c3", DropReason::NotAllowed(vec![policy("b"), policy("c")])), 3),
                (rule("s1", app("used")), 4),
                (rule("s2", app("unused")), 0),
                (rule("s3", DropReason::Isolated(Segment::Namespace("lab".to_owned()))), 6),
            ],
        );
        let mut expected = [
            series("App", "shop", "used", 4),
            series("IsolatedNamespace", "lab", "", 6),
            series("NetworkPolicy", "shop", "", 5),
            series("NetworkPolicy", "shop", "a", 1),
        ];
        expected.sort();
        assert_eq!(found, expected);
    }
}
