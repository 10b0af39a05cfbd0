//! EgressGateway: the address that pods of some namespaces have outside of the cluster, and the nodes that may have it.

use std::net::IpAddr;

use knit_model::intent::{EgressGatewayIntent, IntentSpec};
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{IpText, ObjectName, Rule, is_object_name, rule_list};
use crate::status::{Overview, Status};
use crate::translate::Translator;

const FAMILIES: Rule<'_> = (
    "self.size() < 2 || !self.all(a, isIP(a)) || ip(self[0]).family() != ip(self[1]).family()",
    "one address of each family at most",
);
const ORDINARY: Rule<'_> = (
    "!isIP(self) || ip(self).isGlobalUnicast()",
    "the address of a gateway is an ordinary one, not multicast, loopback or link-local",
);
const ADDRESS: Rule<'_> = ("isIP(self)", "expected an address such as 192.0.2.10 or 2001:db8::10");

/// Whose pods, which addresses, which nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "EgressGateway",
    status = "EgressGatewayStatus",
    derive = "PartialEq",
    doc = "The address that pods of some namespaces have outside of the cluster, where Knit is the cluster's network. One of the nodes it names has the address, and what those pods say to the outside leaves by that node, or not at all. When the node is not Ready, the next one has it.",
    shortname = "keg"
)]
#[serde(rename_all = "camelCase")]
pub struct EgressGatewaySpec {
    /// Namespaces whose pods leave by it. A namespace that two gateways name leaves by the first of them by name.
    #[schemars(extend("minItems" = 1, "maxItems" = 1024, "x-kubernetes-list-type" = "set", "items" = namespace_schema()))]
    pub namespaces: Vec<String>,
    /// The addresses that the outside sees, one of each family at most. No node, pod, Service or other gateway may have them, and
    /// the outside has to find them on the network of the nodes. A family without one is as if there were no gateway.
    #[schemars(extend("minItems" = 1, "maxItems" = 2, "x-kubernetes-list-type" = "atomic", "items" = address_schema(), "x-kubernetes-validations" = rule_list(&[FAMILIES])))]
    pub addresses: Vec<IpText>,
    /// The nodes that may have the addresses, by name. The first of them that is Ready has them; while none is, the last one
    /// keeps them.
    #[schemars(extend("minItems" = 1, "maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<ObjectName>,
}

/// What became of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressGatewayStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    /// The node that has the addresses; for a moment it may be two, when they go from one to the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_node: Option<String>,
    /// The addresses that it has, each with the link that it has them on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub held: Vec<String>,
}

impl Status for EgressGatewayStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, report: &Report) -> Self {
        let holders: Vec<&str> = report.nodes.iter().map(|one| one.node.as_str()).collect();
        let items = report.nodes.iter().flat_map(|one| &one.items).filter(|item| item.ready);
        let active_node = (!holders.is_empty()).then(|| holders.join(", "));
        Self { overview, active_node, held: items.map(|item| item.what.clone()).collect() }
    }
}

const NAMESPACE: &str = "a namespace's name has 1 to 63 lower case letters, digits and `-`";

fn namespace_schema() -> serde_json::Value {
    crate::fields::text(63, &[("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", NAMESPACE)]).to_value()
}

fn address_schema() -> serde_json::Value {
    crate::fields::text(45, &[ADDRESS, ORDINARY]).to_value()
}

impl Kind for EgressGateway {
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
            (
                "spec.namespaces",
                spec.namespaces.is_empty(),
                "pods leave by it only where it names their namespace",
            ),
            ("spec.addresses", spec.addresses.is_empty(), "a gateway has an address"),
            ("spec.nodes", spec.nodes.is_empty(), "a gateway is a node: name those that may be it"),
        ];
        for (field, _, why) in lists.into_iter().filter(|(_, is_empty, _)| *is_empty) {
            problems.invalid(field, why);
        }
        for (index, namespace) in spec.namespaces.iter().enumerate() {
            if namespace.len() > 63 || namespace.contains('.') || !is_object_name(namespace) {
                let message = format!("`{}` is none: {NAMESPACE}", namespace.escape_debug());
                problems.invalid(format!("spec.namespaces[{index}]"), message);
            }
        }
        let mut addresses: Vec<IpAddr> = Vec::new();
        for (index, text) in spec.addresses.iter().enumerate() {
            let field = format!("spec.addresses[{index}]");
            let Some(address) = text.read_ordinary(&field, problems) else { continue };
            match addresses.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
                Some(other) => {
                    problems.invalid(field, format!("{address} is of the family of {other}: {}", FAMILIES.1))
                }
                None => addresses.push(address),
            }
        }
        let read = |(index, name): (usize, &ObjectName)| name.read(format!("spec.nodes[{index}]"), problems);
        let nodes = spec.nodes.iter().enumerate().filter_map(read).collect();
        let namespaces = spec.namespaces.clone();
        to.want(
            "spec",
            IntentSpec::EgressGateway(EgressGatewayIntent { name, namespaces, addresses, nodes }),
        );
    }
}
