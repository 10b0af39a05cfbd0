//! EgressGateway: the SNAT address of the pods of some namespaces outside the cluster, and the nodes that may hold it.

use std::net::IpAddr;

use knit_model::intent::{EgressGatewayIntent, IntentSpec};
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{IpText, NamespaceName, ObjectName, Rule, rule_list};
use crate::interface::each;
use crate::status::{CommonStatus, Status};
use crate::translate::Translator;

const FAMILIES: Rule<'_> = (
    "self.size() < 2 || !self.all(a, isIP(a)) || ip(self[0]).family() != ip(self[1]).family()",
    "addresses must contain at most one address of each family",
);
const UNICAST: Rule<'_> = (
    "!isIP(self) || ip(self).isGlobalUnicast()",
    "must be a unicast address, not multicast, loopback or link-local",
);
const ADDRESS: Rule<'_> = ("isIP(self)", "must be an IP address such as 192.0.2.10 or 2001:db8::10");

/// EgressGatewaySpec lists the namespaces, the egress addresses and the candidate nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "EgressGateway",
    status = "EgressGatewayStatus",
    derive = "PartialEq",
    doc = "EgressGateway sets the source address (SNAT) that pods of some namespaces have outside the cluster, where Knit is the cluster network. One of the listed nodes holds the address, and egress traffic of those pods leaves through that node or is dropped. If the node is not Ready, the next one takes over.",
    shortname = "keg"
)]
#[serde(rename_all = "camelCase")]
pub struct EgressGatewaySpec {
    /// namespaces lists the namespaces whose pods use the gateway. If several gateways list a namespace, the first by
    /// name wins.
    #[schemars(extend("minItems" = 1, "maxItems" = 1024, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<NamespaceName>,
    /// addresses lists the egress addresses, at most one of each family. They must not be used by a node, pod, Service
    /// or other gateway, and must be routed to the network of the nodes. Traffic of a family without an address does
    /// not use the gateway.
    #[schemars(extend("minItems" = 1, "maxItems" = 2, "x-kubernetes-list-type" = "atomic", "items" = address_schema(), "x-kubernetes-validations" = rule_list(&[FAMILIES])))]
    pub addresses: Vec<IpText>,
    /// nodes lists the candidate nodes in order of preference. The first Ready node holds the addresses; while none is
    /// Ready, the last holder keeps them.
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<ObjectName>,
}

/// EgressGatewayStatus is the observed state of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressGatewayStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub common: CommonStatus,
    /// activeNode is the node that holds the addresses. During a failover it may briefly list two nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_node: Option<String>,
    /// held lists the addresses that the node holds, each with its link.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub held: Vec<String>,
}

impl Status for EgressGatewayStatus {
    fn common(&self) -> &CommonStatus {
        &self.common
    }

    fn new(common: CommonStatus, report: &Report) -> Self {
        let holders: Vec<&str> = report.nodes.iter().map(|one| one.node.as_str()).collect();
        let items = report.nodes.iter().flat_map(|one| &one.items).filter(|item| item.ready);
        let active_node = (!holders.is_empty()).then(|| holders.join(", "));
        Self { common, active_node, held: items.map(|item| item.description.clone()).collect() }
    }
}

fn address_schema() -> serde_json::Value {
    crate::fields::text(45, &[ADDRESS, UNICAST]).to_value()
}

impl ResourceKind for EgressGateway {
    const NAMESPACED: bool = false;
    const COLUMNS: &'static [Column] = &[
        Column { name: "Namespaces", type_: "string", path: ".spec.namespaces", wide: false },
        Column { name: "Addresses", type_: "string", path: ".spec.addresses", wide: false },
        Column { name: "Nodes", type_: "string", path: ".spec.nodes", wide: true },
        Column { name: "Active", type_: "string", path: ".status.activeNode", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let name = to.object_name().to_owned();
        let problems = &mut to.problems;
        let lists = [
            ("spec.namespaces", spec.namespaces.is_empty(), "must list at least one namespace"),
            ("spec.addresses", spec.addresses.is_empty(), "must list at least one address"),
            ("spec.nodes", spec.nodes.is_empty(), "must list at least one node"),
        ];
        for (field, _, why) in lists.into_iter().filter(|(_, is_empty, _)| *is_empty) {
            problems.invalid(field, why);
        }
        let namespaces = each(&spec.namespaces, "spec.namespaces", |name, at| name.read(at, problems));
        let mut addresses: Vec<IpAddr> = Vec::new();
        for (index, text) in spec.addresses.iter().enumerate() {
            let field = format!("spec.addresses[{index}]");
            let Some(address) = text.read_unicast(&field, problems) else { continue };
            match addresses.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
                Some(other) => problems.invalid(field, format!("{}, got {other} and {address}", FAMILIES.1)),
                None => addresses.push(address),
            }
        }
        let nodes = each(&spec.nodes, "spec.nodes", |name, at| name.read(at, problems));
        to.intent(
            "spec",
            IntentSpec::EgressGateway(EgressGatewayIntent { name, namespaces, addresses, nodes }),
        );
    }
}
