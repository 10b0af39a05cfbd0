//! The ranges that are open to tenants, and objects whose networks are outside of them: nodes have no address on these.

use ipnet::IpNet;
use knit_engine::tenant_ranges::default_ranges;
use serde_json::Value;

use super::Check;
use super::Verdict::Warn;
use super::cluster::ClusterFacts;
use super::ranges::{Ranges, list, parse, title};

const NAME: &str = "tenant-ranges";
const ADVICE: &str = "open another range: spec.tenants of ClusterRanges, or `tenantRanges` of the agents";

/// The ranges that are open to tenants: those of ClusterRanges, or the default of the agents.
pub(super) fn tenants(facts: &ClusterFacts) -> Vec<IpNet> {
    let object = facts.cluster_ranges.value();
    match object.and_then(|object| object["spec"]["tenants"].as_array()) {
        Some(ranges) => parse(ranges.iter().filter_map(Value::as_str)),
        None => default_ranges().to_vec(),
    }
}

/// Whether the open ranges are usable, and suffice for the existing objects.
pub(super) fn checks(facts: &ClusterFacts, ranges: &Ranges) -> Vec<Check> {
    let mut checks = Vec::new();
    for range in &ranges.tenants {
        if let Some((owner, used)) = ranges.overlapping(range) {
            let found = format!("{range} is open to tenants and overlaps {used}, which is used by {owner}");
            checks.push(Check::new(NAME, Warn, found, ADVICE));
        }
    }
    for (plural, answer) in &facts.objects {
        for object in answer.items() {
            let is_open = |range: &IpNet| ranges.tenants.iter().any(|open| open.contains(range));
            for range in on_nodes(plural, &object["spec"]).into_iter().filter(|range| !is_open(range)) {
                let found = format!(
                    "{plural} {}: {range} is not open to tenants: nodes have no address of it",
                    title(object)
                );
                checks.push(Check::new(NAME, Warn, found, ADVICE));
            }
        }
    }
    if checks.is_empty() {
        checks.push(Check::pass(NAME, list(&ranges.tenants)));
    }
    checks
}

/// The ranges of an object of which nodes may have an address.
fn on_nodes(plural: &str, spec: &Value) -> Vec<IpNet> {
    let is_veth = |entry: &&Value| entry["linkType"].as_str().is_none_or(|kind| kind == "veth");
    let entries = |field: &str| spec[field].as_array().into_iter().flatten().filter(is_veth);
    let texts: Vec<&Value> = match plural {
        "bridges" | "veths" => vec![&spec["cidr"]],
        "podconfigs" => entries("networkAttachments").map(|entry| &entry["cidr"]).collect(),
        "podnetworkconfigs" => {
            entries("links").chain(entries("additionalNetworks")).map(|entry| &entry["cidr"]).collect()
        }
        "virtualnetworks" if spec["isolation"] != "isolated" => {
            spec["subnets"].as_array().into_iter().flatten().collect()
        }
        _ => Vec::new(),
    };
    parse(texts.into_iter().filter_map(Value::as_str))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_ranges_of_bridges_are_on_nodes() {
        for (plural, spec, expected) in [
            ("bridges", json!({"cidr": "10.1.0.0/24,fd00::/64"}), &["10.1.0.0/24", "fd00::/64"][..]),
            ("veths", json!({"cidr": "10.1.0.0/24", "addresses": ["10.2.0.7/24"]}), &["10.1.0.0/24"]),
            ("macvlans", json!({"cidr": "10.1.0.0/24"}), &[]),
            (
                "podconfigs",
                json!({"networkAttachments": [
                    {"name": "a", "cidr": "10.1.0.0/24"}, {"name": "b", "linkType": "macvlan", "cidr": "10.2.0.0/24"},
                    {"name": "c", "linkType": "veth", "cidr": "10.3.0.0/24"},
                ]}),
                &["10.1.0.0/24", "10.3.0.0/24"],
            ),
            ("podnetworkconfigs", json!({"links": [{"cidr": "10.1.0.0/24"}]}), &["10.1.0.0/24"]),
            ("virtualnetworks", json!({"subnets": ["10.1.0.0/24"]}), &["10.1.0.0/24"]),
            ("virtualnetworks", json!({"subnets": ["10.1.0.0/24"], "isolation": "isolated"}), &[]),
        ] {
            let found: Vec<String> = on_nodes(plural, &spec).iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{plural} {spec}");
        }
    }
}
