//! NetworkQuota: limits on interfaces, addresses and bridges of a namespace.

use std::collections::BTreeMap;

use jiff::Timestamp;
use knit_model::intent::IntentSpec;
use knit_model::quota::{QuotaIntent, ResourceCounts};
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::status::{CommonStatus, Status};
use crate::translate::Translator;

/// NetworkQuotaSpec sets the limits. A limit that is not set is unlimited. If a namespace has several quotas, all of
/// them apply.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "NetworkQuota",
    namespaced,
    status = "NetworkQuotaStatus",
    derive = "PartialEq",
    doc = "NetworkQuota limits the interfaces, addresses and bridges that the objects of a namespace may use on all nodes together. It is written by administrators. Lowering a limit does not affect existing interfaces.",
    shortname = "knq"
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkQuotaSpec {
    /// interfaces is the maximum number of pod interfaces that Knit adds. Defaults to unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub interfaces: Option<u64>,
    /// addresses is the maximum number of addresses of those interfaces, IPv4 and IPv6 together. Defaults to unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub addresses: Option<u64>,
    /// bridges is the maximum number of bridges on nodes; one bridge on two nodes counts twice. Defaults to unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub bridges: Option<u64>,
}

/// NetworkQuotaStatus is the observed usage of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkQuotaStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    /// used is the sum of the claims of all nodes. No node uses more than its claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<UsedCounts>,
    /// claims is the claim of each node by node name. An agent updates its own claim with optimistic concurrency.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, UsedCounts>,
}

/// UsedCounts is a number of interfaces, addresses and bridges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UsedCounts {
    /// interfaces is the number of pod interfaces.
    pub interfaces: u64,
    /// addresses is the number of their addresses.
    pub addresses: u64,
    /// bridges is the number of bridges on nodes.
    pub bridges: u64,
}

impl From<ResourceCounts> for UsedCounts {
    fn from(ResourceCounts { interfaces, addresses, bridges }: ResourceCounts) -> Self {
        Self { interfaces, addresses, bridges }
    }
}

impl From<UsedCounts> for ResourceCounts {
    fn from(UsedCounts { interfaces, addresses, bridges }: UsedCounts) -> Self {
        Self { interfaces, addresses, bridges }
    }
}

impl NetworkQuotaSpec {
    /// The limits as the model's intent.
    pub fn hard(&self) -> QuotaIntent {
        QuotaIntent { interfaces: self.interfaces, addresses: self.addresses, bridges: self.bridges }
    }
}

impl Status for NetworkQuotaStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, _report: &Report) -> Self {
        Self { common, ..Self::default() }
    }

    /// The fields that agents write are kept.
    fn from_report(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let common = CommonStatus::of(report, label, previous.map(Self::common), now);
        Self { common, ..previous.cloned().unwrap_or_default() }
    }
}

const fn column(name: &'static str, path: &'static str) -> Column {
    Column { name, type_: "integer", path, wide: false }
}

impl ResourceKind for NetworkQuota {
    const ADMIN_ONLY: bool = true;
    const COLUMNS: &'static [Column] = &[
        column("Interfaces", ".status.used.interfaces"),
        column("Max-Interfaces", ".spec.interfaces"),
        column("Addresses", ".status.used.addresses"),
        column("Max-Addresses", ".spec.addresses"),
        column("Bridges", ".status.used.bridges"),
        column("Max-Bridges", ".spec.bridges"),
    ];

    fn declare(&self, to: &mut Translator) {
        to.intent("spec", IntentSpec::Quota(self.spec.hard()));
    }
}
