//! Quotas: what nodes use is within their claims, and the claims are within the quota.

use std::collections::BTreeMap;

use knit_engine::Unit;
use knit_model::problem::Reason;
use knit_model::quota::ResourceCounts;

use super::interfaces::interfaces;
use crate::api_server::QuotaVersion;
use crate::cluster::Cluster;

impl Cluster {
    /// The claims of all nodes are within the quota, and their sum is what the writer stated. Checked with each write.
    pub(crate) fn check_claims(&mut self, tenant: usize, written: &QuotaVersion, used: ResourceCounts) {
        let Some(quota) = &self.tenants[tenant].quota else { return };
        let claimed = written.claimed();
        let what = if claimed.interfaces > quota.interfaces {
            format!("nodes claim {} interfaces of {}", claimed.interfaces, quota.key)
        } else if claimed != used {
            format!("nodes claim {claimed:?} of {}, and its status states {used:?}", quota.key)
        } else {
            return;
        };
        let nodes: Vec<usize> = written.claims.keys().copied().collect();
        self.fail(&nodes, what);
    }

    /// What each node uses is within its claim.
    pub(crate) fn check_quotas(&mut self) {
        for (tenant, quota) in self.api.quotas.all().collect::<Vec<_>>() {
            let namespace = &self.tenants[tenant].namespace;
            for node in self.tenants[tenant].nodes(self.nodes.len()) {
                let here = &self.nodes[node];
                let used = here.state.used_by(namespace).interfaces;
                let claimed = quota.claims.get(&node).map_or(0, |claim| claim.interfaces);
                if !here.is_removed && used > claimed {
                    let what = format!(
                        "{} uses {used} interfaces of the quota of {namespace} and has claimed {claimed}",
                        here.name
                    );
                    return self.fail(&[node], what);
                }
            }
        }
    }

    /// A quota that is exceeded in kernels, or one that denies a pod although something of it is unclaimed.
    pub(crate) fn wrong_quota(&self) -> Option<(usize, String)> {
        let mut used: BTreeMap<usize, u64> = BTreeMap::new();
        for number in &self.live {
            let pod = &self.pods[*number as usize];
            let (Some(tenant), Some(id)) = (pod.tenant, &pod.sandbox) else { continue };
            let Some(quota) = &self.tenants[tenant].quota else { continue };
            let sum = used.entry(tenant).or_default();
            *sum +=
                interfaces(&self.nodes[pod.node], id).keys().filter(|name| *name != "eth0").count() as u64;
            if *sum > quota.interfaces {
                let what = format!(
                    "pods have {sum} interfaces, more than the {} of {}",
                    quota.interfaces, quota.key
                );
                return Some((pod.node, what));
            }
            let claimed = self.api.quotas.get(tenant).map_or(0, |quota| quota.claimed().interfaces);
            if self.is_beyond_quota(*number) && claimed < quota.interfaces {
                let what = format!(
                    "pod-{number} is denied an interface, but {} of {} is unclaimed",
                    quota.interfaces - claimed,
                    quota.key
                );
                return Some((pod.node, what));
            }
        }
        None
    }

    /// Whether a quota denies an interface of a pod.
    pub(crate) fn is_beyond_quota(&self, number: u32) -> bool {
        let pod = &self.pods[number as usize];
        let Some(id) = &pod.sandbox else { return false };
        let problems = self.nodes[pod.node].state.problems.get(&Unit::Sandbox(id.clone()));
        problems.into_iter().flatten().any(|(_, problem)| problem.reason == Reason::QuotaExceeded)
    }

    /// A claim that is left without pods.
    pub(crate) fn quota_leftovers(&self) -> Option<(usize, String)> {
        self.api.quotas.all().find_map(|(tenant, quota)| {
            let (node, claim) = quota.claims.iter().next()?;
            let namespace = &self.tenants[tenant].namespace;
            Some((
                *node,
                format!("a claim of {} interfaces of the quota of {namespace} is left", claim.interfaces),
            ))
        })
    }
}
