//! PodRoute: routes, policy rules, neighbours and sysctls inside pods, on interfaces of any origin.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::intent::{IntentSpec, RouteIntent, RoutingEntry, RoutingIntent};
use knit_model::route::LOCAL_TABLE;
use knit_model::{Problems, Rule};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, rule_list};
use crate::routing::{NeighbourEntry, PodRule, RouteEntry};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::sysctls;
use crate::translate::Translator;

const POD_LABEL: &str = "podnetwork.opdev.io/podroute";

const EMPTY: &str = "at least one of routes, rules, neighbours and sysctls must be set";

/// PodRouteSpec selects pods by the label `podnetwork.opdev.io/podroute: <object name>` or by `selector`. An entry that
/// references an interface is pending until the interface exists. An interface is referenced by its name in the pod or
/// by its name prefix.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodRoute",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "PodRoute manages routes, policy rules, neighbours and sysctls inside running pods. Each entry is applied when the interfaces that it references exist, is updated in place, and is removed with the object, the entry, the label or the pod.",
    shortname = "kroute"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[(
    "(has(self.routes) && size(self.routes) > 0) || (has(self.rules) && size(self.rules) > 0) \
     || (has(self.neighbours) && size(self.neighbours) > 0) || (has(self.sysctls) && size(self.sysctls) > 0)",
    EMPTY,
)])))]
pub struct PodRouteSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/podroute:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// vrf is the name or name prefix of a VRF in the pod: routes without a table, or with table 254, are added to its
    /// table. Defaults to none, the main table of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<InterfaceName>,
    /// routes lists routes, at most 64. A route without `dev` uses the interface whose network contains the next hop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 64,
        "x-kubernetes-list-type" = "atomic",
        "x-kubernetes-validations" = rule_list(&crate::rules::STANDALONE_ROUTES),
    ))]
    pub routes: Vec<RouteEntry>,
    /// rules lists policy routing rules, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodRule>,
    /// neighbours lists permanent neighbours and proxied addresses, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub neighbours: Vec<NeighbourEntry>,
    /// sysctls sets safe sysctls by name, such as `net.ipv4.ip_forward: "1"` or `net.ipv4.conf.net1.rp_filter: "2"`.
    /// The original value is restored when the entry is removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "sysctl_schema")]
    pub sysctls: BTreeMap<String, String>,
}

impl ResourceKind for PodRoute {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "VRF", type_: "string", path: ".spec.vrf", wide: true }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let vrf = spec.vrf.as_ref().and_then(|vrf| vrf.read("spec.vrf", &mut to.problems));
        let entries = spec.read(&mut to.problems);
        if spec.is_empty() {
            to.problems.invalid("spec", EMPTY);
        }
        for (field, entry) in entries {
            let intent = RoutingIntent { pods: pods.clone(), vrf: vrf.clone(), entry };
            to.intent(&field, IntentSpec::Routing(Box::new(intent)));
        }
    }
}

impl PodRouteSpec {
    fn is_empty(&self) -> bool {
        self.routes.is_empty()
            && self.rules.is_empty()
            && self.neighbours.is_empty()
            && self.sysctls.is_empty()
    }

    /// Every valid entry with its path.
    fn read(&self, problems: &mut Problems) -> Vec<(String, RoutingEntry)> {
        let mut entries = Vec::new();
        let at = |list: &str, index: usize| format!("spec.{list}[{index}]");
        for (index, route) in self.routes.iter().enumerate() {
            let field = at("routes", index);
            let read = route.read(&field, problems).filter(|route| is_complete(route, &field, problems));
            entries.extend(read.map(|route| (field, RoutingEntry::Route(route))));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let field = at("rules", index);
            let read = rule.read(&field, problems);
            entries.extend(read.map(|rule: Rule| (field, RoutingEntry::Rule(rule))));
        }
        for (index, neighbour) in self.neighbours.iter().enumerate() {
            let field = at("neighbours", index);
            let read = neighbour.read(&field, problems);
            entries.extend(read.map(|neighbour| (field, RoutingEntry::Neighbour(neighbour))));
        }
        for (name, value) in &self.sysctls {
            let field = format!("spec.sysctls[{}]", name.escape_debug());
            let read = problems.check(&field, sysctls::read(name, value));
            entries.extend(read.map(|sysctl| (field, RoutingEntry::Sysctl(sysctl))));
        }
        entries
    }
}

/// Whether a route is complete without a default interface.
fn is_complete(route: &RouteIntent, field: &str, problems: &mut Problems) -> bool {
    let before = problems.0.len();
    for hop in route.via.iter().filter(|hop| hop.link.is_none()) {
        match hop.gateway {
            None => problems.invalid(field, "via or dev must be set"),
            Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() => {
                let message = format!("dev must be set if the next hop {gateway} is link-local");
                problems.invalid(field, message);
            }
            Some(gateway) if hop.onlink => {
                let message =
                    format!("dev must be set if onlink is true: the interface of {gateway} is not known");
                problems.invalid(field, message);
            }
            Some(_) => {}
        }
    }
    for (index, hop) in route.via.iter().enumerate() {
        if route.via[..index].iter().any(|other| (other.gateway, &other.link) == (hop.gateway, &hop.link)) {
            problems.invalid(
                format!("{field}.nextHops[{index}]"),
                "nextHops must not contain duplicates: set weight instead",
            );
        }
    }
    if route.table == LOCAL_TABLE {
        problems.invalid(format!("{field}.table"), "table must not be 255, the table of local addresses");
    }
    problems.0.len() == before
}

/// Names are checked in the schema, so that mistakes are rejected by the API server.
fn sysctl_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 16 },
        "x-kubernetes-validations": rule_list(&[(
            "self.all(name, name.matches('^net[.]ipv[46][.]'))",
            "must be a network sysctl such as `net.ipv4.ip_forward` or `net.ipv4.conf.net1.rp_filter`",
        )]),
    })
}
