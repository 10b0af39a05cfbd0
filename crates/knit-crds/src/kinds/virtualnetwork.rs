//! VirtualNetwork: a tenant's network by name.

use ipnet::IpNet;
use knit_model::intent::{NetworkWant, Want};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{Cidr, Mtu};
use crate::status::PlainStatus;
use crate::translate::Translator;

/// The network. Interfaces refer to it with `network: <name of this object>`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "VirtualNetwork",
    namespaced,
    status = "PlainStatus",
    derive = "PartialEq",
    doc = "A network of this namespace: its subnets, its MTU, and whether the node is on it. Veth, Macvlan and Vxlan objects refer to it by name.",
    shortname = "vn"
)]
#[serde(rename_all = "camelCase")]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
}

/// Whether the node is on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Isolation {
    #[default]
    Open,
    Isolated,
}

/// The bridge on the node for a network's pairs.
pub(crate) fn bridge_name(network: &str) -> String {
    NetworkWant::bridge_name(network)
}

impl Kind for VirtualNetwork {
    const COLUMNS: &'static [Column] = &[
        Column { name: "Subnets", type_: "string", path: ".spec.subnets", wide: false },
        Column { name: "Isolation", type_: "string", path: ".spec.isolation", wide: false },
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
        let want = NetworkWant {
            name: to.object_name().to_owned(),
            ranges,
            isolated: spec.isolation == Isolation::Isolated,
            mtu,
        };
        to.want("spec", Want::Network(want));
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
}
