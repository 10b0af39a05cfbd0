//! ServiceAddressPool: addresses for Services of type LoadBalancer, where Knit is the cluster network and translates Services.

use ipnet::IpNet;
use jiff::Timestamp;
use knit_model::Problems;
use knit_model::intent::{IntentSpec, ServiceAddressIntent};
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{NamespaceName, PoolRange, Rule, rule_list};
use crate::interface::each;
use crate::selector::PodSelector;
use crate::status::{CommonStatus, Status};
use crate::translate::Translator;

/// The maximum number of announced addresses that a status lists; the counts are of all.
const MAX_LISTED: usize = 100;

const DISJOINT: Rule<'_> = (
    "self.all(a, self.filter(b, isCIDR(a) && isCIDR(b) && cidr(a).containsCIDR(b)).size() <= 1)",
    "cidrs must not overlap",
);

/// ServiceAddressPoolSpec describes the addresses and the Services that may have them.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "ServiceAddressPool",
    status = "ServiceAddressPoolStatus",
    derive = "PartialEq",
    doc = "ServiceAddressPool is a pool of addresses for Services of type LoadBalancer, where Knit is the cluster network and translates Services (clusterNetwork.serviceProxy: knit). Each address is announced on the nodes' network by one Ready node, and by another one when that node is not Ready.",
    shortname = "ksap"
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddressPoolSpec {
    /// cidrs lists the ranges of the pool, such as `192.0.2.128/26`. They must not overlap each other, other pools, or
    /// addresses of pods and Services, and must be routed to the network of the nodes. The network and the broadcast
    /// address of an IPv4 range, and the first address of an IPv6 range, are not assigned: list them as `/32` or `/128`
    /// to use them.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "set", "x-kubernetes-validations" = rule_list(&[DISJOINT])))]
    pub cidrs: Vec<PoolRange>,
    /// namespaces lists the namespaces whose Services use this pool, and no pool of the same family that does not list
    /// them. Defaults to all namespaces that no pool lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 1024, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<NamespaceName>,
    /// serviceSelector selects the Services that may use this pool, by their labels. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_selector: Option<PodSelector>,
    /// servicesWithoutClass lets Services without `spec.loadBalancerClass` use this pool. Set it only if no other
    /// controller of the cluster assigns addresses to them. Defaults to false: only Services of the class
    /// `knit.opdev.io/load-balancer` have addresses of this pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services_without_class: bool,
}

/// ServiceAddressPoolStatus is the observed state of the pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceAddressPoolStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    /// addresses counts the addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCounts>,
    /// announced lists which node announces which address, at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub announced: Vec<String>,
}

/// AddressCounts counts the addresses of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressCounts {
    /// total is the number of addresses that Services may have.
    pub total: i64,
    /// used is the number of addresses that Services have from this pool.
    pub used: i64,
    /// free is the number of addresses that are not in use, as far as is known.
    pub free: i64,
}

impl Status for ServiceAddressPoolStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let items = report.nodes.iter().flat_map(|one| one.items.iter().map(move |item| (&one.node, item)));
        let announced = items.filter(|(_, item)| item.ready);
        let announced = announced.map(|(node, item)| format!("{} of {node}", item.description));
        Self { common, addresses: None, announced: announced.take(MAX_LISTED).collect() }
    }

    /// Reports of agents do not change the counts, which the controller sets.
    fn from_report(report: &Report, label: Option<&str>, previous: Option<&Self>, now: Timestamp) -> Self {
        let common = CommonStatus::of(report, label, previous.map(Self::common), now);
        let addresses = previous.and_then(|previous| previous.addresses);
        Self { addresses, ..Self::new(common, report) }
    }
}

impl ResourceKind for ServiceAddressPool {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] = &[
        Column { name: "Cidrs", type_: "string", path: ".spec.cidrs", wide: false },
        Column { name: "Total", type_: "integer", path: ".status.addresses.total", wide: false },
        Column { name: "Used", type_: "integer", path: ".status.addresses.used", wide: false },
        Column { name: "Free", type_: "integer", path: ".status.addresses.free", wide: false },
        Column { name: "Namespaces", type_: "string", path: ".spec.namespaces", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let name = to.object_name().to_owned();
        let problems = &mut to.problems;
        let ranges = ranges(&spec.cidrs, problems);
        let namespaces = each(&spec.namespaces, "spec.namespaces", |name, at| name.read(at, problems));
        let services = spec.service_selector.as_ref();
        let services = services.map(|selector| selector.read("spec.serviceSelector", problems));
        let without_class = spec.services_without_class;
        to.intent(
            "spec",
            IntentSpec::ServiceAddresses(ServiceAddressIntent {
                name,
                ranges,
                namespaces,
                services,
                without_class,
            }),
        );
    }
}

fn ranges(cidrs: &[PoolRange], problems: &mut Problems) -> Vec<IpNet> {
    if cidrs.is_empty() {
        problems.invalid("spec.cidrs", "must list at least one range");
    }
    let mut ranges: Vec<IpNet> = Vec::new();
    for (index, text) in cidrs.iter().enumerate() {
        let field = format!("spec.cidrs[{index}]");
        let Some(range) = text.read(field.clone(), problems) else { continue };
        match ranges.iter().find(|other| other.contains(&range) || range.contains(*other)) {
            Some(other) => {
                problems.invalid(field, format!("cidrs must not overlap: {range} overlaps {other}"))
            }
            None => ranges.push(range),
        }
    }
    ranges
}
