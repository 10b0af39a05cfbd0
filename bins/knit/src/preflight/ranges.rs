//! The address ranges of the cluster: their discovery, and overlaps with the ranges of objects.

use std::fmt;

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value, json};

use super::Check;
use super::Verdict::{Fail, Unknown, Warn};
use super::cluster::{ApiAnswer, ClusterFacts};
use super::tenant_ranges;

/// The ranges of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ranges {
    pub pods: Vec<IpNet>,
    pub services: Vec<IpNet>,
    pub nodes: Vec<IpNet>,
    /// Those that are open to tenants.
    pub tenants: Vec<IpNet>,
    /// The source of the pod ranges, if any was found.
    #[serde(skip)]
    pods_source: Option<PodRangeSource>,
    /// Whether the service ranges may be larger than what was found.
    #[serde(skip)]
    services_incomplete: bool,
}

/// Where pod ranges were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodRangeSource {
    CalicoPools,
    ControllerManager,
    Kubeadm,
    /// The ranges of the current nodes; the range of the cluster is larger.
    Nodes,
}

impl fmt::Display for PodRangeSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::CalicoPools => "Calico IP pools",
            Self::ControllerManager => "--cluster-cidr of the controller manager",
            Self::Kubeadm => "kubeadm configuration",
            Self::Nodes => "podCIDRs of nodes",
        })
    }
}

impl Ranges {
    /// Finds the ranges in the facts.
    pub fn find(facts: &ClusterFacts) -> Self {
        let (pods, pods_source) = pods(facts);
        let (services, services_incomplete) = services(facts);
        let addresses = facts.nodes.items().flat_map(|node| strings(&node["status"]["addresses"], "address"));
        let addresses: Vec<IpNet> =
            addresses.filter_map(|text| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?))).collect();
        Self {
            pods: IpNet::aggregate(&pods),
            services: IpNet::aggregate(&services),
            nodes: IpNet::aggregate(&addresses),
            tenants: tenant_ranges::tenants(facts),
            pods_source,
            services_incomplete,
        }
    }

    /// The ClusterRanges object for the admission policies.
    pub fn manifest(&self) -> Result<String> {
        let object = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "ClusterRanges",
            "metadata": {"name": "cluster"},
            "spec": {
                "pods": self.pods, "services": self.services, "nodes": self.nodes, "tenants": self.tenants,
            },
        });
        let head = "# Found in the cluster. Extend the ranges where necessary, for example for future nodes.\n\
                    # Networks of tenants may have an address on nodes only in `tenants`.\n";
        Ok(format!("{head}{}", serde_saphyr::to_string(&object).context("cannot write YAML")?))
    }

    /// The range of the cluster that overlaps this one.
    pub(super) fn overlapping(&self, range: &IpNet) -> Option<(&'static str, &IpNet)> {
        let named = [("pods", &self.pods), ("Services", &self.services), ("nodes", &self.nodes)];
        let overlap = |other: &&IpNet| other.contains(range) || range.contains(*other);
        named.into_iter().find_map(|(owner, ranges)| ranges.iter().find(overlap).map(|found| (owner, found)))
    }
}

/// The values of a string field in each item of a list.
fn strings<'a>(list: &'a Value, field: &'a str) -> impl Iterator<Item = &'a str> {
    list.as_array().into_iter().flatten().filter_map(move |entry| entry[field].as_str())
}

pub(super) fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<IpNet> {
    texts.flat_map(|text| text.split(',')).filter_map(|text| text.trim().parse().ok()).collect()
}

/// The values of `--flag=` in the arguments of a list of pods.
fn argument<'a>(pods: &'a ApiAnswer, flag: &'a str) -> impl Iterator<Item = &'a str> {
    let containers = pods.items().flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
    let arguments = containers.flat_map(|container| [&container["command"], &container["args"]]);
    let arguments = arguments.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    arguments.filter_map(move |argument| argument.strip_prefix(flag)?.strip_prefix('='))
}

/// A field of `networking` in kubeadm's ClusterConfiguration.
fn kubeadm(facts: &ClusterFacts, field: &str) -> Option<String> {
    let text = facts.kubeadm.value()?["data"]["ClusterConfiguration"].as_str()?;
    let configuration: Value = serde_saphyr::from_str(text).ok()?;
    configuration["networking"][field].as_str().map(str::to_owned)
}

/// The whole range if a component is configured with it, otherwise the ranges of the current nodes.
fn pods(facts: &ClusterFacts) -> (Vec<IpNet>, Option<PodRangeSource>) {
    let calico = facts.calico_pools.items().filter_map(|pool| pool["spec"]["cidr"].as_str());
    let of_nodes =
        facts.nodes.items().flat_map(|node| node["spec"]["podCIDRs"].as_array().into_iter().flatten());
    let sources = [
        (parse(calico), PodRangeSource::CalicoPools),
        (
            parse(argument(&facts.controller_manager_pods, "--cluster-cidr")),
            PodRangeSource::ControllerManager,
        ),
        (parse(kubeadm(facts, "podSubnet").as_deref().into_iter()), PodRangeSource::Kubeadm),
        (parse(of_nodes.filter_map(Value::as_str)), PodRangeSource::Nodes),
    ];
    let found = sources.into_iter().find(|(ranges, _)| !ranges.is_empty());
    found.map_or_else(Default::default, |(ranges, source)| (ranges, Some(source)))
}

fn services(facts: &ClusterFacts) -> (Vec<IpNet>, bool) {
    let cidrs =
        facts.service_cidrs.items().flat_map(|cidr| cidr["spec"]["cidrs"].as_array().into_iter().flatten());
    let sources = [
        parse(cidrs.filter_map(Value::as_str)),
        parse(argument(&facts.controller_manager_pods, "--service-cluster-ip-range")),
        parse(kubeadm(facts, "serviceSubnet").as_deref().into_iter()),
    ];
    if let Some(ranges) = sources.into_iter().find(|ranges| !ranges.is_empty()) {
        return (ranges, false);
    }
    let api = facts.api_service.value().map(|service| &service["spec"]["clusterIPs"]);
    let addresses = api.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    (addresses.filter_map(|text| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?))).collect(), true)
}

/// All checks of ranges.
pub fn checks(facts: &ClusterFacts, ranges: &Ranges) -> Vec<Check> {
    let mut checks = vec![pods_check(ranges), services_check(ranges)];
    checks.push(Check::pass("node-ranges", list(&ranges.nodes)));
    checks.push(cluster_ranges_check(facts, ranges));
    checks.extend(tenant_ranges::checks(facts, ranges));
    checks.extend(overlaps(facts, ranges));
    checks
}

pub(super) fn list(ranges: &[IpNet]) -> String {
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    if ranges.is_empty() { "none found".to_owned() } else { ranges.join(", ") }
}

fn pods_check(ranges: &Ranges) -> Check {
    const NAME: &str = "pod-ranges";
    match ranges.pods_source {
        None => Check::new(
            NAME,
            Unknown,
            "none found",
            "the network plugin does not publish them: set them in ClusterRanges",
        ),
        Some(source @ PodRangeSource::Nodes) => {
            let advice = "these are the ranges of current nodes: set the whole range in ClusterRanges";
            Check::new(NAME, Warn, format!("{} (from {source})", list(&ranges.pods)), advice)
        }
        Some(source) => Check::pass(NAME, format!("{} (from {source})", list(&ranges.pods))),
    }
}

fn services_check(ranges: &Ranges) -> Check {
    const NAME: &str = "service-ranges";
    if ranges.services_incomplete {
        let found = format!("{} (only the Service `kubernetes`)", list(&ranges.services));
        let advice = "the whole range is unknown: it is --service-cluster-ip-range of the API server";
        return Check::new(NAME, Warn, found, advice);
    }
    Check::pass(NAME, list(&ranges.services))
}

/// Whether the ClusterRanges object has all ranges that were found.
fn cluster_ranges_check(facts: &ClusterFacts, found: &Ranges) -> Check {
    const NAME: &str = "cluster-ranges";
    const COMMAND: &str = "knit preflight --cluster-ranges | kubectl apply -f -";
    let Some(object) = facts.cluster_ranges.value() else {
        let found =
            "no ClusterRanges object: admission does not check networks for overlaps with cluster ranges";
        return Check::new(NAME, Warn, found, format!("after the installation: {COMMAND}"));
    };
    let stated = |field: &str| -> Vec<IpNet> {
        parse(object["spec"][field].as_array().into_iter().flatten().filter_map(Value::as_str))
    };
    let pairs = [("pods", &found.pods), ("services", &found.services), ("nodes", &found.nodes)];
    let missing: Vec<String> = pairs
        .into_iter()
        .flat_map(|(field, ranges)| {
            let stated = stated(field);
            let missing =
                ranges.iter().filter(move |range| !stated.iter().any(|whole| whole.contains(*range)));
            missing.map(move |range| format!("{range} of {field}")).collect::<Vec<_>>()
        })
        .collect();
    if missing.is_empty() {
        return Check::pass(NAME, "ClusterRanges has all ranges that were found");
    }
    let advice = format!("add them, or recreate the object: {COMMAND}");
    Check::new(NAME, Warn, format!("ClusterRanges lacks {}", missing.join(", ")), advice)
}

/// Objects whose ranges overlap those of the cluster.
fn overlaps(facts: &ClusterFacts, ranges: &Ranges) -> Vec<Check> {
    let mut checks = Vec::new();
    for (plural, answer) in &facts.objects {
        for object in answer.items() {
            let mut requested = Vec::new();
            collect(&object["spec"], &mut requested);
            for range in requested {
                let Some((owner, used)) = ranges.overlapping(&range) else { continue };
                let object = title(object);
                let found = format!("{plural} {object}: {range} overlaps {used}, which is used by {owner}");
                checks.push(Check::new("overlap", Fail, found, "use another range for the network"));
            }
        }
    }
    checks
}

/// The namespace and name of an object.
pub(super) fn title(object: &Value) -> String {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    [namespace, name].into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join("/")
}

/// Collects all ranges and static addresses in a spec.
fn collect(value: &Value, requested: &mut Vec<IpNet>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                match (key.as_str(), inner) {
                    ("cidr", Value::String(text)) => requested.extend(parse([text.as_str()].into_iter())),
                    ("subnets" | "addresses", Value::Array(list)) => {
                        requested.extend(parse(list.iter().filter_map(Value::as_str)));
                    }
                    _ => collect(inner, requested),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|entry| collect(entry, requested)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn ranges_are_found_in_all_fields() {
        let spec = json!({
            "networkAttachments": [{"name": "a", "cidr": "10.1.0.0/24,fd00::/64"}, {"name": "b"}],
            "subnets": ["10.2.0.0/24"], "addresses": ["10.3.0.7/24"], "routes": [{"to": "10.4.0.0/24"}],
        });
        let mut requested = Vec::new();
        collect(&spec, &mut requested);
        requested.sort();
        assert_eq!(requested, nets(&["10.1.0.0/24", "10.2.0.0/24", "10.3.0.7/24", "fd00::/64"]));
    }

    #[test]
    fn overlaps_are_found_in_both_directions() {
        let ranges = Ranges { services: nets(&["10.96.0.0/16"]), ..Ranges::default() };
        for range in ["10.96.7.0/24", "10.0.0.0/8"] {
            assert_eq!(ranges.overlapping(&range.parse().unwrap()).unwrap().0, "Services");
        }
        assert!(ranges.overlapping(&"10.97.0.0/24".parse().unwrap()).is_none());
    }

    #[test]
    fn arguments_of_the_controller_manager_are_read() {
        let pods = ApiAnswer::Found(json!({"items": [{"spec": {"containers": [{
            "command": ["kube-controller-manager", "--cluster-cidr=10.244.0.0/16,fd00:10::/56"],
        }]}}]}));
        let found = parse(argument(&pods, "--cluster-cidr"));
        assert_eq!(found, nets(&["10.244.0.0/16", "fd00:10::/56"]));
    }
}
