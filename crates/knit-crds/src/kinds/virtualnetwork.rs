//! VirtualNetwork: a tenant's network by name.

use ipnet::IpNet;
use knit_model::Problems;
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent};
use knit_model::provenance::Dialect;
use knit_model::report::Report;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{Cidr, Mtu, Vni};
use crate::status::{MAX_LISTED_PODS, Overview, Status};
use crate::translate::Translator;

/// The network. Interfaces refer to it with `network: <name of this object>`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "VirtualNetwork",
    namespaced,
    status = "VirtualNetworkStatus",
    derive = "PartialEq",
    doc = "A network of this namespace: its subnets, its MTU, whether the node is on it, and whether it is one network on all nodes. Veth, Macvlan and Vxlan objects refer to it by name.",
    shortname = "vn"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "!has(self.vni) || (has(self.transport) && self.transport == 'vxlan')",
    NO_TUNNEL,
), (
    "!has(self.transport) || self.transport != 'vxlan' || (has(oldSelf.transport) && oldSelf.transport == 'vxlan')",
    STAYS_LOCAL,
)])))]
pub struct VirtualNetworkSpec {
    /// Its address ranges, such as `10.20.0.0/16` and `fd00:20::/64`. An interface gets one address of each. The first
    /// address of each is the bridge's. A subnet that is taken away gives no new addresses; those in use stay.
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 8,
        "x-kubernetes-list-type" = "set",
        "x-kubernetes-validations" = crate::fields::rule_list(&[(
            "self.all(a, self.filter(b, isCIDR(a) && isCIDR(b) && cidr(a).containsCIDR(b)).size() <= 1)",
            "subnets of one network do not overlap",
        )]),
    ))]
    pub subnets: Vec<Cidr>,
    /// `open`: the node has the first address of each subnet. `isolated`: the node has none, pods on the network reach
    /// each other and nothing else. It changes while pods use the network. Default: `open`.
    #[serde(default)]
    pub isolation: Isolation,
    /// The MTU of interfaces that state none, in bytes, 68 to 65535. It changes on living interfaces. Default: what the
    /// kernel gives to the kind.
    /// On a network with `transport: vxlan`: what fits into its tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
    /// `local`: each node has a network of its own with these subnets; no two nodes give one address. `vxlan`: it is one
    /// network on all nodes, by tunnels between those that have pods on it. It holds for the network's own bridge,
    /// that of interfaces without a `master`. A network with tunnels may become a local one, and never the other way:
    /// make another network. Default: `local`.
    #[serde(default)]
    pub transport: Transport,
    /// The number of the network in its tunnels, 0 to 16777215. Of two networks of the cluster with one number the older has
    /// it. Default: one that follows from namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
}

const NO_TUNNEL: &str = "`vni` is the number of a tunnel: it goes with `transport: vxlan`";
const STAYS_LOCAL: &str = "a local network has no tunnels later: make another VirtualNetwork";

/// Whether the node is on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Isolation {
    #[default]
    Open,
    Isolated,
}

/// Whether the network is one on all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Transport {
    #[default]
    Local,
    Vxlan,
}

/// What became of the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualNetworkStatus {
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub overview: Overview,
    /// Of a network with tunnels: what each node that has pods on it says of its own, at most 100 nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<NetworkNode>,
}

/// A node of a network with tunnels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkNode {
    /// Its name; none on a machine by itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// How it reaches the others.
    pub transport: String,
}

impl Status for VirtualNetworkStatus {
    fn overview(&self) -> &Overview {
        &self.overview
    }

    fn new(overview: Overview, report: &Report) -> Self {
        let nodes = report.nodes.iter().flat_map(|of| {
            let items = of.items.iter().filter(|item| item.ready && item.field == TRANSPORT);
            items.map(|item| NetworkNode { node: of.node.clone(), transport: item.what.clone() })
        });
        Self { overview, nodes: nodes.take(MAX_LISTED_PODS).collect() }
    }
}

const TRANSPORT: &str = "spec.transport";

/// The bridge on the node for a network's pairs.
pub(crate) fn bridge_name(network: &str) -> String {
    NetworkIntent::bridge_name(network)
}

impl Kind for VirtualNetwork {
    const COLUMNS: &'static [Column] = &[
        Column { name: "Subnets", type_: "string", path: ".spec.subnets", wide: false },
        Column { name: "Isolation", type_: "string", path: ".spec.isolation", wide: false },
        Column { name: "Transport", type_: "string", path: ".spec.transport", wide: true },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let problems = &mut to.problems;
        if spec.subnets.is_empty() {
            problems.invalid("spec.subnets", "a network needs at least one subnet");
        }
        let mut ranges: Vec<IpNet> = Vec::new();
        for (index, subnet) in spec.subnets.iter().enumerate() {
            let field = format!("spec.subnets[{index}]");
            let Some(range) = subnet.read(&field, problems) else { continue };
            match ranges.iter().find(|other| other.contains(&range) || range.contains(*other)) {
                Some(other) => {
                    let message = format!("{range} overlaps {other}, a subnet of the same network");
                    problems.invalid(&field, message);
                }
                None => ranges.push(range),
            }
        }
        let mtu = spec.mtu.as_ref().and_then(|mtu| mtu.read("spec.mtu", problems));
        let vni = spec.vni.as_ref().and_then(|vni| vni.read("spec.vni", problems));
        if vni.is_some() && spec.transport == Transport::Local {
            problems.invalid("spec.vni", NO_TUNNEL);
        }
        let is_spanning = spec.transport == Transport::Vxlan;
        if is_spanning && to.dialect() != Dialect::Kubernetes {
            to.warn(TRANSPORT, "one machine has no other nodes: the network is this machine's alone");
        }
        let created = self.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
        let created = created.unwrap_or_default();
        let want = NetworkIntent {
            name: to.object_name().to_owned(),
            ranges,
            isolated: spec.isolation == Isolation::Isolated,
            mtu,
            span: is_spanning.then_some(OverlayIntent { vni, created }),
        };
        to.want("spec", IntentSpec::Network(want));
    }

    fn check_change(&self, old: &Self, problems: &mut Problems) {
        if self.spec.transport == Transport::Vxlan && old.spec.transport == Transport::Local {
            problems.invalid(TRANSPORT, STAYS_LOCAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use knit_model::IfName;

    use super::*;

    #[test]
    fn a_networks_bridge_has_its_name_where_that_fits() {
        assert_eq!(bridge_name("blue"), "vn-blue");
        let derived = bridge_name("a-rather-long-network-name");
        assert!(IfName::new(derived.as_str()).is_ok(), "{derived}");
        assert_eq!(derived, bridge_name("a-rather-long-network-name"));
    }

    fn network(transport: &str) -> VirtualNetwork {
        let manifest = format!(
            r#"{{"apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "VirtualNetwork",
                "metadata": {{"name": "blue", "creationTimestamp": "2026-01-02T03:04:05Z"}},
                "spec": {{"subnets": ["10.60.0.0/24"]{transport}}}}}"#
        );
        serde_json::from_str(&manifest).unwrap()
    }

    fn span(network: &VirtualNetwork) -> Result<Option<OverlayIntent>, String> {
        let translation = network.intents(Dialect::Kubernetes).map_err(|problems| problems.to_string())?;
        let [intent] = &translation.intents[..] else { panic!("{translation:?}") };
        let IntentSpec::Network(want) = &intent.spec else { panic!("{intent:?}") };
        Ok(want.span.clone())
    }

    #[test]
    fn a_network_is_one_on_all_nodes_if_it_says_so_and_knows_its_age() {
        assert_eq!(span(&network("")), Ok(None));
        let created = "2026-01-02T03:04:05Z".to_owned();
        let expected = OverlayIntent { vni: Some(42), created };
        assert_eq!(span(&network(r#", "transport": "vxlan", "vni": 42"#)), Ok(Some(expected)));
        assert!(span(&network(r#", "vni": 42"#)).unwrap_err().contains(NO_TUNNEL));
    }

    #[test]
    fn tunnels_go_and_do_not_come_later() {
        let (local, vxlan) = (network(""), network(r#", "transport": "vxlan""#));
        let check = |new: &VirtualNetwork, old: &VirtualNetwork| {
            let mut problems = Problems::default();
            new.check_change(old, &mut problems);
            problems.is_empty()
        };
        assert!(check(&local, &vxlan) && check(&vxlan, &vxlan));
        assert!(!check(&vxlan, &local));
    }
}
