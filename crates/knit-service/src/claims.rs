//! Which Service has what several may claim.
//!
//! The first claimant in the order of rank, creation and name has it; when it gives up its claim, the next one does. A cluster
//! IP outranks everything else at its address. Whoever may change a Service chooses its external IPs, but not its cluster IPs
//! and the IPs of its load balancer: at such an address of another namespace an external IP has nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::service::{Frontend, ServiceKey};

/// What only one Service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Claim {
    /// Connections to a frontend.
    Frontend(Frontend),
    /// An address as cluster IP; for all with a lower rank, that no claimant with a higher rank has it.
    Address(IpAddr),
    /// The element about connections of a local backend to itself.
    Hairpin(IpAddr),
    /// The element that closes all other ports of an announced address.
    Announced(IpAddr),
}

/// The weight of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Rank {
    /// Of a cluster IP.
    ClusterIp,
    /// Of the IP of a load balancer, and of what is no address.
    Assigned,
    /// Of an external IP.
    ExternalIp,
}

/// The claims of a Service.
pub(crate) type ServiceClaims = BTreeMap<Claim, Rank>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Claimant {
    rank: Rank,
    created: i64,
    service: ServiceKey,
}

/// All claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    #[serde(with = "knit_model::serde_pairs")]
    claimants: BTreeMap<Claim, BTreeSet<Claimant>>,
}

impl Claims {
    /// Replaces the claims of a Service, each with its time of creation. Returns the other Services that may have won or lost
    /// something.
    pub(crate) fn replace(
        &mut self,
        service: &ServiceKey,
        before: Option<(&ServiceClaims, i64)>,
        after: Option<(&ServiceClaims, i64)>,
    ) -> BTreeSet<ServiceKey> {
        let mut affected = BTreeSet::new();
        let all = before.into_iter().chain(after).flat_map(|(claims, _)| claims.keys());
        let claims: BTreeSet<Claim> = all.copied().collect();
        for claim in claims {
            let claimant = |(claims, created): (&ServiceClaims, i64)| {
                let service = service.clone();
                claims.get(&claim).map(|rank| Claimant { rank: *rank, created, service })
            };
            let (old, new) = (before.and_then(claimant), after.and_then(claimant));
            if old == new {
                continue;
            }
            let claimants = self.claimants.entry(claim).or_default();
            let before = Precedence::of(claimants);
            if let Some(old) = &old {
                claimants.remove(old);
            }
            claimants.extend(new);
            affected.extend(before.affected(claim, claimants));
            if claimants.is_empty() {
                self.claimants.remove(&claim);
            }
        }
        affected.remove(service);
        affected
    }

    /// Whether a Service has what it claims with a rank.
    pub(crate) fn has(&self, service: &ServiceKey, claim: Claim, rank: Rank) -> bool {
        let Some(claimants) = self.claimants.get(&claim) else { return false };
        let is_first =
            || claimants.first().is_some_and(|first| (&first.service, first.rank) == (service, rank));
        match (claim, rank) {
            (Claim::Address(_), Rank::Assigned) => !is_cluster_ip(claimants),
            (Claim::Address(_), Rank::ExternalIp) => {
                let is_foreign = |namespace: &str| namespace != service.namespace;
                !is_cluster_ip(claimants) && !balanced_namespaces(claimants).any(is_foreign)
            }
            _ => is_first(),
        }
    }

    /// The Service that has a frontend.
    pub(crate) fn owner(&self, frontend: Frontend) -> Option<&ServiceKey> {
        Some(&self.claimants.get(&Claim::Frontend(frontend))?.first()?.service)
    }

    /// The Service whose announced IP of a load balancer this is.
    pub(crate) fn of_announced(&self, address: IpAddr) -> Option<&ServiceKey> {
        Some(&self.claimants.get(&Claim::Announced(address))?.first()?.service)
    }

    /// The Service whose cluster IP this is.
    pub(crate) fn of_cluster_ip(&self, address: IpAddr) -> Option<&ServiceKey> {
        let first = self.claimants.get(&Claim::Address(address))?.first()?;
        (first.rank == Rank::ClusterIp).then_some(&first.service)
    }
}

fn is_cluster_ip(claimants: &BTreeSet<Claimant>) -> bool {
    claimants.first().is_some_and(|first| first.rank == Rank::ClusterIp)
}

/// The namespaces of the Services that have an address as the IP of their load balancer.
fn balanced_namespaces(claimants: &BTreeSet<Claimant>) -> impl Iterator<Item = &str> {
    let balanced = claimants.iter().filter(|one| one.rank == Rank::Assigned);
    balanced.map(|one| one.service.namespace.as_str())
}

/// What [`Claims::has`] depends on.
struct Precedence {
    first: Option<Claimant>,
    is_cluster_ip: bool,
    balanced: BTreeSet<String>,
}

impl Precedence {
    fn of(claimants: &BTreeSet<Claimant>) -> Self {
        Self {
            first: claimants.first().cloned(),
            is_cluster_ip: is_cluster_ip(claimants),
            balanced: balanced_namespaces(claimants).map(str::to_owned).collect(),
        }
    }

    /// The Services about which it changed. Which of several is the first one at an address matters to cluster IPs only.
    fn affected(self, claim: Claim, claimants: &BTreeSet<Claimant>) -> Vec<ServiceKey> {
        let now = Self::of(claimants);
        let is_shared_changed = (self.is_cluster_ip, self.balanced) != (now.is_cluster_ip, now.balanced);
        if matches!(claim, Claim::Address(_)) && is_shared_changed {
            return self.first.iter().chain(claimants).map(|one| one.service.clone()).collect();
        }
        if self.first == now.first {
            return Vec::new();
        }
        self.first.into_iter().chain(now.first).map(|one| one.service).collect()
    }
}
