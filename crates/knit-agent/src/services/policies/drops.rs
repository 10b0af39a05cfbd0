//! Dropped packets in responses.

use knit_kni::v1;
use knit_policy::DropRule;

use crate::host;
use crate::policy_drops::PolicyDrops;

/// What these rules dropped. If that is not known, the status has a warning.
pub(super) async fn count_policies(
    rules: Vec<DropRule>,
    status: &mut v1::PolicyStatus,
) -> Option<PolicyDrops> {
    match PolicyDrops::read(rules).await {
        Ok(drops) => {
            if drops.unread > 0 {
                let unread = drops.unread;
                status
                    .warnings
                    .push(format!("dropped packets of {unread} chains are not counted: there are too many"));
            }
            Some(drops)
        }
        Err(why) => {
            status.warnings.push(unknown(&why));
            None
        }
    }
}

/// Adds what the chains of a pod dropped. If that is not known, the status has a warning.
pub(super) async fn count_chains(mut pod: v1::GetPodPoliciesResponse) -> v1::GetPodPoliciesResponse {
    let names: Vec<String> = chains(&mut pod).map(|chain| chain.name.clone()).collect();
    if names.is_empty() {
        return pod;
    }
    match host::chain_counters(names).await {
        Ok(counters) => {
            for chain in chains(&mut pod) {
                // Only rules that drop packets have counters.
                let rules = counters.get(&chain.name).into_iter().flatten();
                chain.dropped_packets = Some(rules.map(|(_, counter)| counter.packets).sum());
            }
        }
        Err(why) => pod.status.get_or_insert_default().warnings.push(unknown(&why)),
    }
    pod
}

fn chains(pod: &mut v1::GetPodPoliciesResponse) -> impl Iterator<Item = &mut v1::PolicyChain> {
    pod.directions.iter_mut().flat_map(|direction| &mut direction.chains).chain(&mut pod.isolation_chain)
}

fn unknown(why: &crate::Error) -> String {
    format!("dropped packets are not known: {why}")
}
