//! The cluster's own ranges: found where a cluster says them, and compared with what objects ask for.

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Value, json};

use super::Check;
use super::Verdict::{Note, Unknown, Wrong};
use super::look::{Said, Seen};

/// The ranges of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ranges {
    pub pods: Vec<IpNet>,
    pub services: Vec<IpNet>,
    pub nodes: Vec<IpNet>,
    /// Where the ranges of pods were found.
    #[serde(skip)]
    pods_from: &'static str,
    /// Whether Services may have more than what was found.
    #[serde(skip)]
    services_unsure: bool,
}

impl Ranges {
    /// What the cluster says of itself.
    pub fn find(seen: &Seen) -> Self {
        let (pods, pods_from) = pods(seen);
        let (services, services_unsure) = services(seen);
        let addresses = seen.nodes.items().flat_map(|node| strings(&node["status"]["addresses"], "address"));
        let addresses: Vec<IpNet> =
            addresses.filter_map(|text| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?))).collect();
        Self {
            pods: IpNet::aggregate(&pods),
            services: IpNet::aggregate(&services),
            nodes: IpNet::aggregate(&addresses),
            pods_from,
            services_unsure,
        }
    }

    /// The object that the admission policies compare with.
    pub fn manifest(&self) -> Result<String> {
        let object = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1",
            "kind": "ClusterRanges",
            "metadata": {"name": "cluster"},
            "spec": {"pods": self.pods, "services": self.services, "nodes": self.nodes},
        });
        let head = "# What the cluster says of itself. Make it wider where you know better: ranges of nodes to come, say.\n";
        Ok(format!("{head}{}", serde_saphyr::to_string(&object).context("cannot write YAML")?))
    }

    /// Whose range overlaps this one.
    fn taken_by(&self, range: &IpNet) -> Option<(&'static str, &IpNet)> {
        let named = [("pods", &self.pods), ("Services", &self.services), ("nodes", &self.nodes)];
        let overlap = |other: &&IpNet| other.contains(range) || range.contains(*other);
        named.into_iter().find_map(|(whose, ranges)| ranges.iter().find(overlap).map(|found| (whose, found)))
    }
}

/// The texts of a field in each entry of a list.
fn strings<'a>(list: &'a Value, field: &'a str) -> impl Iterator<Item = &'a str> {
    list.as_array().into_iter().flatten().filter_map(move |entry| entry[field].as_str())
}

fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<IpNet> {
    texts.flat_map(|text| text.split(',')).filter_map(|text| text.trim().parse().ok()).collect()
}

/// The value of `--flag=` in the arguments of a list of pods.
fn argument<'a>(pods: &'a Said, flag: &'a str) -> impl Iterator<Item = &'a str> {
    let containers = pods.items().flat_map(|pod| pod["spec"]["containers"].as_array().into_iter().flatten());
    let words = containers.flat_map(|container| [&container["command"], &container["args"]]);
    let words = words.filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    words.filter_map(move |word| word.strip_prefix(flag)?.strip_prefix('='))
}

/// A line of the configuration that kubeadm keeps.
fn kubeadm<'a>(seen: &'a Seen, field: &'a str) -> Option<&'a str> {
    let text = seen.kubeadm.value()?["data"]["ClusterConfiguration"].as_str()?;
    text.lines().find_map(|line| line.trim().strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

/// The whole range where someone says it; else what nodes have so far.
fn pods(seen: &Seen) -> (Vec<IpNet>, &'static str) {
    let calico = seen.calico_pools.items().filter_map(|pool| pool["spec"]["cidr"].as_str());
    let of_nodes =
        seen.nodes.items().flat_map(|node| node["spec"]["podCIDRs"].as_array().into_iter().flatten());
    let places = [
        (parse(calico), "Calico's pools"),
        (parse(argument(&seen.controllers, "--cluster-cidr")), "the controller manager's --cluster-cidr"),
        (parse(kubeadm(seen, "podSubnet").into_iter()), "kubeadm's configuration"),
        (parse(of_nodes.filter_map(Value::as_str)), "the nodes' podCIDRs"),
    ];
    places.into_iter().find(|(ranges, _)| !ranges.is_empty()).unwrap_or_default()
}

fn services(seen: &Seen) -> (Vec<IpNet>, bool) {
    let cidrs =
        seen.service_cidrs.items().flat_map(|cidr| cidr["spec"]["cidrs"].as_array().into_iter().flatten());
    let places = [
        parse(cidrs.filter_map(Value::as_str)),
        parse(argument(&seen.controllers, "--service-cluster-ip-range")),
        parse(kubeadm(seen, "serviceSubnet").into_iter()),
    ];
    if let Some(ranges) = places.into_iter().find(|ranges| !ranges.is_empty()) {
        return (ranges, false);
    }
    let api = seen.api_service.value().map(|service| &service["spec"]["clusterIPs"]);
    let addresses = api.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    (addresses.filter_map(|text| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?))).collect(), true)
}

/// Everything about ranges.
pub fn checks(seen: &Seen, ranges: &Ranges) -> Vec<Check> {
    let mut checks = vec![pods_check(ranges), services_check(ranges)];
    checks.push(Check::fine("node-ranges", list(&ranges.nodes)));
    checks.push(compared(seen, ranges));
    checks.extend(overlaps(seen, ranges));
    checks
}

fn list(ranges: &[IpNet]) -> String {
    let words: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none found".to_owned() } else { words.join(", ") }
}

fn pods_check(ranges: &Ranges) -> Check {
    const NAME: &str = "pod-ranges";
    match ranges.pods_from {
        "" => Check::new(
            NAME,
            Unknown,
            "none found",
            "the network plugin keeps them to itself: state them in ClusterRanges",
        ),
        "the nodes' podCIDRs" => {
            let advice =
                "these are what nodes have now: state the whole range that nodes to come get theirs from";
            Check::new(NAME, Note, format!("{} (from the nodes' podCIDRs)", list(&ranges.pods)), advice)
        }
        from => Check::fine(NAME, format!("{} (from {from})", list(&ranges.pods))),
    }
}

fn services_check(ranges: &Ranges) -> Check {
    const NAME: &str = "service-ranges";
    if ranges.services_unsure {
        let found = format!("{} (the Service `kubernetes` alone)", list(&ranges.services));
        let advice =
            "the cluster does not say its whole range: it is the API server's --service-cluster-ip-range";
        return Check::new(NAME, Note, found, advice);
    }
    Check::fine(NAME, list(&ranges.services))
}

/// Whether the admission policies know the same.
fn compared(seen: &Seen, found: &Ranges) -> Check {
    const NAME: &str = "cluster-ranges";
    const MAKE: &str = "knit preflight --cluster-ranges | kubectl apply -f -";
    let Some(object) = seen.ranges.value() else {
        let why = "there is no ClusterRanges object: networks are not compared with the cluster's ranges at admission";
        return Check::new(NAME, Note, why, format!("once Knit is installed: {MAKE}"));
    };
    let stated = |field: &str| -> Vec<IpNet> {
        parse(object["spec"][field].as_array().into_iter().flatten().filter_map(Value::as_str))
    };
    let pairs = [("pods", &found.pods), ("services", &found.services), ("nodes", &found.nodes)];
    let missing: Vec<String> = pairs
        .into_iter()
        .flat_map(|(field, ranges)| {
            let stated = stated(field);
            let outside =
                ranges.iter().filter(move |range| !stated.iter().any(|whole| whole.contains(*range)));
            outside.map(move |range| format!("{range} of {field}")).collect::<Vec<_>>()
        })
        .collect();
    if missing.is_empty() {
        return Check::fine(NAME, "ClusterRanges has all that was found");
    }
    let advice = format!("add them, or make the object anew: {MAKE}");
    Check::new(NAME, Note, format!("ClusterRanges lacks {}", missing.join(", ")), advice)
}

/// Objects that exist and ask for what the cluster uses.
fn overlaps(seen: &Seen, ranges: &Ranges) -> Vec<Check> {
    let mut checks = Vec::new();
    for (plural, said) in &seen.objects {
        for object in said.items() {
            let mut asked = Vec::new();
            collect(&object["spec"], &mut asked);
            for range in asked {
                let Some((whose, taken)) = ranges.taken_by(&range) else { continue };
                let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
                let place =
                    [namespace, name].into_iter().filter_map(Value::as_str).collect::<Vec<_>>().join("/");
                let found = format!("{plural} {place}: {range} overlaps {taken}, which is of {whose}");
                checks.push(Check::new("overlap", Wrong, found, "give the network another range"));
            }
        }
    }
    checks
}

/// Every range and fixed address below here.
fn collect(value: &Value, asked: &mut Vec<IpNet>) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                match (key.as_str(), inner) {
                    ("cidr", Value::String(text)) => asked.extend(parse([text.as_str()].into_iter())),
                    ("subnets" | "addresses", Value::Array(list)) => {
                        asked.extend(parse(list.iter().filter_map(Value::as_str)));
                    }
                    _ => collect(inner, asked),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|entry| collect(entry, asked)),
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
    fn ranges_are_found_wherever_an_object_says_them() {
        let spec = json!({
            "networkAttachments": [{"name": "a", "cidr": "10.1.0.0/24,fd00::/64"}, {"name": "b"}],
            "subnets": ["10.2.0.0/24"], "addresses": ["10.3.0.7/24"], "routes": [{"to": "10.4.0.0/24"}],
        });
        let mut asked = Vec::new();
        collect(&spec, &mut asked);
        asked.sort();
        assert_eq!(asked, nets(&["10.1.0.0/24", "10.2.0.0/24", "10.3.0.7/24", "fd00::/64"]));
    }

    #[test]
    fn an_overlap_goes_both_ways() {
        let ranges = Ranges { services: nets(&["10.96.0.0/16"]), ..Ranges::default() };
        for range in ["10.96.7.0/24", "10.0.0.0/8"] {
            assert_eq!(ranges.taken_by(&range.parse().unwrap()).unwrap().0, "Services");
        }
        assert!(ranges.taken_by(&"10.97.0.0/24".parse().unwrap()).is_none());
    }

    #[test]
    fn arguments_of_the_controller_manager_are_read() {
        let pods = Said::Here(json!({"items": [{"spec": {"containers": [{
            "command": ["kube-controller-manager", "--cluster-cidr=10.244.0.0/16,fd00:10::/56"],
        }]}}]}));
        let found = parse(argument(&pods, "--cluster-cidr"));
        assert_eq!(found, nets(&["10.244.0.0/16", "fd00:10::/56"]));
    }
}
