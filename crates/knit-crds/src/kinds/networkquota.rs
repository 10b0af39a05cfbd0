//! NetworkQuota: how many interfaces, addresses and bridges a namespace may have.

use std::collections::BTreeMap;

use jiff::Timestamp;
use knit_model::intent::IntentSpec;
use knit_model::quota::{Counts, QuotaIntent};
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::status::{Overview, Status};
use crate::translate::Translator;

/// At most so many; what is left out has no limit. Several objects of a namespace all hold.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "NetworkQuota",
    namespaced,
    status = "NetworkQuotaStatus",
    derive = "PartialEq",
    doc = "How many interfaces, addresses and bridges the objects of a namespace may have on all nodes together. The admin's to write. What is there already stays when it is lowered.",
    shortname = "knq"
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkQuotaSpec {
    /// Interfaces in pods that Knit adds. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub interfaces: Option<u64>,
    /// Addresses of those interfaces, of both families. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub addresses: Option<u64>,
    /// Bridges on nodes; one bridge on two nodes counts twice. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000_000))]
    pub bridges: Option<u64>,
}

/// What is used of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkQuotaStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    /// What nodes have claimed together. No node uses more than its claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<UsedCounts>,
    /// What each node has claimed. An agent changes its own claim, and only if nobody has changed anything since it looked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, UsedCounts>,
}

/// Interfaces, addresses and bridges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UsedCounts {
    /// Interfaces in pods.
    pub interfaces: u64,
    /// Addresses of those.
    pub addresses: u64,
    /// Bridges on nodes.
    pub bridges: u64,
}

impl From<Counts> for UsedCounts {
    fn from(Counts { interfaces, addresses, bridges }: Counts) -> Self {
        Self { interfaces, addresses, bridges }
    }
}

impl From<UsedCounts> for Counts {
    fn from(UsedCounts { interfaces, addresses, bridges }: UsedCounts) -> Self {
        Self { interfaces, addresses, bridges }
    }
}

impl NetworkQuotaSpec {
    /// The limits, in the model's words.
    pub fn hard(&self) -> QuotaIntent {
        QuotaIntent { interfaces: self.interfaces, addresses: self.addresses, bridges: self.bridges }
    }
}

impl Status for NetworkQuotaStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, _report: &Report) -> Self {
        Self { overview, ..Self::default() }
    }

    /// What agents wrote stays as it is.
    fn from_report(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let overview = Overview::of(report, label, previous.map(Self::overview), now);
        Self { overview, ..previous.cloned().unwrap_or_default() }
    }
}

const fn column(name: &'static str, path: &'static str) -> Column {
    Column { name, type_: "integer", path, wide: false }
}

impl Kind for NetworkQuota {
    const FOR_ADMINS: bool = true;
    const COLUMNS: &'static [Column] = &[
        column("Interfaces", ".status.used.interfaces"),
        column("Max-Interfaces", ".spec.interfaces"),
        column("Addresses", ".status.used.addresses"),
        column("Max-Addresses", ".spec.addresses"),
        column("Bridges", ".status.used.bridges"),
        column("Max-Bridges", ".spec.bridges"),
    ];

    fn declare(&self, to: &mut Translator) {
        to.want("spec", IntentSpec::Quota(self.spec.hard()));
    }
}
