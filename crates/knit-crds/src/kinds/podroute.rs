//! PodRoute: routes, policy rules, neighbours and sysctls inside pods, whoever made the interfaces.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::intent::{IntentSpec, RouteIntent, RoutingEntry, RoutingIntent};
use knit_model::route::LOCAL_TABLE;
use knit_model::{Problems, Rule};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, rule_list};
use crate::routing::{NeighbourEntry, PodRule, RouteEntry};
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::sysctls;
use crate::translate::Translator;

const POD_LABEL: &str = "podnetwork.opdev.io/podroute";

/// The sentence of an object that asks for nothing.
const NOTHING: &str = "nothing is asked for: state routes, rules, neighbours or sysctls";

/// Routing inside the pods that are labelled `podnetwork.opdev.io/podroute: <name of this object>`, or that `selector`
/// matches. Whatever names an interface waits for it. An interface is named by its name in the pod, or by the prefix
/// that an object asks for it with.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodRoute",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Routes, policy rules, neighbours and sysctls inside running pods. Each entry comes when the interfaces that it needs are there, changes in place, and goes with the object, the entry, the label or the pod.",
    shortname = "kroute"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[(
    "(has(self.routes) && size(self.routes) > 0) || (has(self.rules) && size(self.rules) > 0) \
     || (has(self.neighbours) && size(self.neighbours) > 0) || (has(self.sysctls) && size(self.sysctls) > 0)",
    NOTHING,
)])))]
pub struct PodRouteSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/podroute: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// A VRF of the pod, by the name of the interface (or prefix) of a Vrf: routes that state no table, or 254, go into
    /// the VRF's table. Default: none, the pod's main table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<InterfaceName>,
    /// Routes. Without `dev` a route leaves by the interface whose network has the router.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 64,
        "x-kubernetes-list-type" = "atomic",
        "x-kubernetes-validations" = rule_list(&crate::rules::ROUTES_ALONE),
    ))]
    pub routes: Vec<RouteEntry>,
    /// Policy rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 32, "x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PodRule>,
    /// Permanent neighbours, and addresses that an interface answers for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "atomic"))]
    pub neighbours: Vec<NeighbourEntry>,
    /// Sysctls by name, such as `net.ipv4.ip_forward: "1"` or `net.ipv4.conf.net1.rp_filter: "2"`, from a list of safe
    /// ones. The old value comes back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "sysctl_schema")]
    pub sysctls: BTreeMap<String, String>,
}

impl Kind for PodRoute {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "VRF", type_: "string", path: ".spec.vrf", wide: true }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let vrf = spec.vrf.as_ref().and_then(|vrf| vrf.read("spec.vrf", &mut to.problems));
        let entries = spec.read(&mut to.problems);
        if spec.is_empty() {
            to.problems.invalid("spec", NOTHING);
        }
        for (field, entry) in entries {
            let want = RoutingIntent { pods: pods.clone(), vrf: vrf.clone(), entry };
            to.want(&field, IntentSpec::Routing(Box::new(want)));
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

    /// Every entry with its path, those that can be read.
    fn read(&self, problems: &mut Problems) -> Vec<(String, RoutingEntry)> {
        let mut entries = Vec::new();
        let at = |list: &str, index: usize| format!("spec.{list}[{index}]");
        for (index, route) in self.routes.iter().enumerate() {
            let field = at("routes", index);
            let read = route.read(&field, problems).filter(|route| stands_alone(route, &field, problems));
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

/// Whether a route says enough without an interface that it comes with.
fn stands_alone(route: &RouteIntent, field: &str, problems: &mut Problems) -> bool {
    let before = problems.0.len();
    for hop in route.via.iter().filter(|hop| hop.link.is_none()) {
        match hop.gateway {
            None => problems
                .invalid(field, "where does it go? Name the router with `via`, or the interface with `dev`"),
            Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() => {
                let message =
                    format!("every interface has a network with {gateway}: name the interface with `dev`");
                problems.invalid(field, message);
            }
            Some(gateway) if hop.onlink => {
                let message = format!(
                    "with `onlink` no network says where {gateway} is: name the interface with `dev`"
                );
                problems.invalid(field, message);
            }
            Some(_) => {}
        }
    }
    for (index, hop) in route.via.iter().enumerate() {
        if route.via[..index].iter().any(|other| (other.gateway, &other.link) == (hop.gateway, &hop.link)) {
            problems.invalid(
                format!("{field}.nextHops[{index}]"),
                "the same next hop twice: state its share once, with `weight`",
            );
        }
    }
    if route.table == LOCAL_TABLE {
        problems.invalid(
            format!("{field}.table"),
            "table 255 is the pod's table of local addresses: take another",
        );
    }
    problems.0.len() == before
}

/// The schema of sysctls: names are checked where they can be, so that a typing mistake is seen at once.
fn sysctl_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": 16 },
        "x-kubernetes-validations": rule_list(&[(
            "self.all(name, name.matches('^net[.]ipv[46][.]'))",
            "a sysctl is one of the pod's network, such as `net.ipv4.ip_forward` or `net.ipv4.conf.net1.rp_filter`",
        )]),
    })
}
