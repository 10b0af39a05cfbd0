//! Quotas with the claims of all nodes. A write has to name the version that it is based on.

use std::collections::BTreeMap;
use std::sync::Arc;

use knit_engine::quota::{ClaimRequest, QuotaClaims};
use knit_model::quota::{QuotaIntent, ResourceCounts};
use serde_json::{Value, json};

use super::{ApiServer, PlantedFault, QUOTAS};
use crate::scenario::{Tenant, node_name};

/// One version of a quota.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaVersion {
    pub(crate) version: u64,
    /// Claims by node.
    pub(crate) claims: BTreeMap<usize, ResourceCounts>,
    /// What the controller has written.
    status: Value,
}

/// All quotas, by tenant.
#[derive(Default)]
pub(crate) struct Quotas {
    all: BTreeMap<usize, Arc<QuotaVersion>>,
    /// Claims that were written, and those that another write preceded.
    pub(crate) written: u64,
    pub(crate) conflicts: u64,
}

impl Quotas {
    pub(crate) fn get(&self, tenant: usize) -> Option<Arc<QuotaVersion>> {
        self.all.get(&tenant).cloned()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, Arc<QuotaVersion>)> {
        self.all.iter().map(|(tenant, quota)| (*tenant, Arc::clone(quota)))
    }
}

impl QuotaVersion {
    /// The sum of all claims.
    pub(crate) fn claimed(&self) -> ResourceCounts {
        self.claims.values().fold(ResourceCounts::default(), |all, one| all + *one)
    }

    /// The quota as a node reads it.
    pub(crate) fn read(&self, tenant: &Tenant, node: usize) -> Option<QuotaClaims> {
        let quota = tenant.quota.as_ref()?;
        let others = self.claims.iter().filter(|(other, _)| **other != node);
        let hard = QuotaIntent { interfaces: Some(quota.interfaces), ..QuotaIntent::default() };
        Some(QuotaClaims {
            key: quota.key.clone(),
            uid: quota.uid.clone(),
            version: self.version,
            hard: hard.counts(),
            own: self.claims.get(&node).copied().unwrap_or_default(),
            others: others.fold(ResourceCounts::default(), |all, (_, one)| all + *one),
        })
    }

    /// The quota as the controller reads it.
    pub(crate) fn manifest(&self, tenant: &Tenant) -> Option<Value> {
        let mut manifest = tenant.quota.as_ref()?.manifest.clone();
        manifest["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let claim = |(node, claim): (&usize, &ResourceCounts)| {
            let ResourceCounts { interfaces, addresses, bridges } = claim;
            let claim = json!({"interfaces": interfaces, "addresses": addresses, "bridges": bridges});
            (node_name(*node), claim)
        };
        let mut status = self.status.clone();
        if !status.is_object() {
            status = json!({});
        }
        status["claims"] = self.claims.iter().map(claim).collect();
        manifest["status"] = status;
        Some(manifest)
    }
}

impl ApiServer {
    /// Creates the quota of a tenant.
    pub(crate) fn create_quota(&mut self, tenant: usize) {
        self.write_quota(tenant, |_| {});
    }

    /// Writes a node's claim unless the quota has changed since it was read. Returns the quota if it was written.
    pub(crate) fn claim_quota(
        &mut self,
        tenant: usize,
        node: usize,
        request: &ClaimRequest,
    ) -> Option<Arc<QuotaVersion>> {
        self.count("patch", QUOTAS);
        let is_unchecked = self.fault == Some(PlantedFault::UncheckedClaims);
        let current = self.quotas.get(tenant)?;
        if current.version != request.version && !is_unchecked {
            self.quotas.conflicts += 1;
            return None;
        }
        self.quotas.written += 1;
        self.write_quota(tenant, |quota| {
            match request.claim.is_zero() {
                true => quota.claims.remove(&node),
                false => quota.claims.insert(node, request.claim),
            };
        });
        self.quotas.get(tenant)
    }

    /// The controller releases the claims of deleted nodes, unless the quota has changed since.
    pub(crate) fn release_claims(&mut self, tenant: usize, nodes: &[usize], version: &str) {
        self.count("patch", QUOTAS);
        let is_current = self.quotas.get(tenant).is_some_and(|quota| quota.version.to_string() == version);
        if is_current {
            self.write_quota(tenant, |quota| quota.claims.retain(|node, _| !nodes.contains(node)));
        }
    }

    /// The controller writes its part of the status.
    pub(crate) fn write_quota_status(&mut self, tenant: usize, status: Value) {
        self.write_quota(tenant, |quota| quota.status = status);
    }

    fn write_quota(&mut self, tenant: usize, change: impl FnOnce(&mut QuotaVersion)) {
        let quota = Arc::make_mut(self.quotas.all.entry(tenant).or_default());
        quota.version = self.log.len() as u64 + 1;
        change(quota);
        self.quota_changed(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_written_once_for_each_version() {
        let tenants = Tenant::all(1, 4);
        let mut api = ApiServer::default();
        api.create_quota(0);
        let read = |api: &ApiServer, node| api.quotas.get(0).unwrap().read(&tenants[0], node).unwrap();
        let claim = ResourceCounts { interfaces: 2, ..ResourceCounts::default() };
        let request = |api: &ApiServer, node| {
            let QuotaClaims { key, version, others, .. } = read(api, node);
            ClaimRequest { key, version, claim, used: others + claim }
        };
        let (first, second) = (request(&api, 1), request(&api, 2));
        assert!(api.claim_quota(0, 1, &first).is_some());
        assert!(api.claim_quota(0, 2, &second).is_none());
        assert_eq!((read(&api, 1).own, read(&api, 2).others), (claim, claim));
        let version = api.quotas.get(0).unwrap().version.to_string();
        api.release_claims(0, &[1], "1");
        assert!(!api.quotas.get(0).unwrap().claims.is_empty(), "an old version is rejected");
        api.release_claims(0, &[1], &version);
        assert!(api.quotas.get(0).unwrap().claims.is_empty());
    }
}
