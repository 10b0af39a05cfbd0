//! Which Service has what several may claim.
//!
//! The first claimant in the order of rank, creation and name has it; when it gives up its claim, the next one does. A cluster
//! IP outranks everything else at its address: a Service cannot take over another one's cluster IP as its external IP.

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
    /// An address as cluster IP; for all with a lower rank, that it is nobody's cluster IP.
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
    /// Of anything else.
    Other,
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
            let first = claimants.first().cloned();
            if let Some(old) = &old {
                claimants.remove(old);
            }
            claimants.extend(new);
            affected.extend(affected_by(claim, first.as_ref(), claimants));
            if claimants.is_empty() {
                self.claimants.remove(&claim);
            }
        }
        affected.remove(service);
        affected
    }

    /// Whether a Service has what it claims with a rank.
    pub(crate) fn has(&self, service: &ServiceKey, claim: Claim, rank: Rank) -> bool {
        let Some(first) = self.claimants.get(&claim).and_then(BTreeSet::first) else { return false };
        let is_shared = matches!(claim, Claim::Address(_)) && rank == Rank::Other;
        if is_shared { first.rank == Rank::Other } else { first.service == *service && first.rank == rank }
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

/// The Services about which [`Claims::has`] changed. Who only wants an address not to be a cluster IP does not care which of
/// several others is the first.
fn affected_by(claim: Claim, first: Option<&Claimant>, now: &BTreeSet<Claimant>) -> Vec<ServiceKey> {
    let next = now.first();
    if first == next {
        return Vec::new();
    }
    let is_cluster_ip = |one: Option<&Claimant>| one.is_some_and(|one| one.rank == Rank::ClusterIp);
    if matches!(claim, Claim::Address(_)) && is_cluster_ip(first) != is_cluster_ip(next) {
        return first.into_iter().chain(now).map(|one| one.service.clone()).collect();
    }
    first.into_iter().chain(next).map(|one| one.service.clone()).collect()
}
