//! Checks of the nodes: readiness, platform, container runtime, kernel and network plugin.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Verdict::{Fail, Unknown, Warn};
use super::cluster::{ApiAnswer, ClusterFacts};
use super::{Check, Profile, Verdict};

/// Well-known network plugins: the prefix of the DaemonSet's name, and the name of the plugin.
const PLUGINS: [(&str, &str); 13] = [
    ("calico-node", "Calico"),
    ("cilium", "Cilium"),
    ("kube-flannel", "Flannel"),
    ("kindnet", "kindnet"),
    ("antrea-agent", "Antrea"),
    ("ovnkube-node", "OVN-Kubernetes"),
    ("kube-ovn", "Kube-OVN"),
    ("aws-node", "Amazon VPC CNI"),
    ("azure-cns", "Azure CNI"),
    ("kube-router", "kube-router"),
    ("weave-net", "Weave Net"),
    ("canal", "Canal"),
    ("contrail", "Contrail"),
];

/// All checks of nodes.
pub fn checks(facts: &ClusterFacts, profile: Profile) -> Vec<Check> {
    if let ApiAnswer::Denied(message) = &facts.nodes {
        let advice = "requires permission to list nodes";
        return vec![Check::new("nodes", Unknown, message.clone(), advice)];
    }
    let nodes: Vec<&Value> = facts.nodes.items().collect();
    if nodes.is_empty() {
        return vec![Check::new("nodes", Fail, "the cluster has no nodes", "add a node")];
    }
    let plugins = plugins(facts);
    let has_plugin = !plugins.is_empty();
    vec![
        ready(&nodes, has_plugin, profile),
        platform(&nodes),
        runtime(&nodes),
        kernel(&nodes),
        plugin(facts, &plugins, profile),
    ]
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn name(node: &Value) -> &str {
    text(node, "/metadata/name")
}

/// The distinct values with their counts: `containerd://2.4.2 (3 nodes)`.
fn tally<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let values = counts.into_iter().map(|(value, count)| match count {
        1 => value.to_owned(),
        _ => format!("{value} ({count} nodes)"),
    });
    values.collect::<Vec<_>>().join(", ")
}

/// At most three names, and the number of the others.
fn abbreviated(names: &[&str]) -> String {
    match names {
        [a, b, c, _, rest @ ..] => format!("{a}, {b}, {c} and {} more", rest.len() + 1),
        few => few.join(", "),
    }
}

/// The Ready condition of a node.
struct Readiness<'a> {
    node: &'a str,
    /// The status of the condition: whether the node is ready, or not known.
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

impl<'a> Readiness<'a> {
    fn of(node: &'a Value) -> Self {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
        let field = |path: &str| ready.map(|condition| text(condition, path));
        Self {
            node: name(node),
            status: field("/status").unwrap_or_default(),
            reason: field("/reason").unwrap_or_default(),
            message: field("/message").unwrap_or("no Ready condition"),
        }
    }

    /// Whether the kubelet runs and reports that the node cannot run pods, for example without a network.
    fn is_reported_by_kubelet(&self) -> bool {
        self.status == "False" && self.reason == "KubeletNotReady"
    }
}

fn ready(nodes: &[&Value], has_plugin: bool, profile: Profile) -> Check {
    let all = nodes.iter().map(|node| Readiness::of(node));
    let not_ready: Vec<Readiness<'_>> = all.filter(|one| one.status != "True").collect();
    let Some(first) = not_ready.first() else {
        return Check::pass("nodes", format!("{} of {} ready", nodes.len(), nodes.len()));
    };
    let names: Vec<&str> = not_ready.iter().map(|one| one.node).collect();
    let found = format!("{} not ready: {}: {}", not_ready.len(), abbreviated(&names), first.message);
    // The API has no field for a missing network: the kubelet is not ready, and there is no network plugin.
    let lacks_network = !has_plugin && not_ready.iter().any(Readiness::is_reported_by_kubelet);
    match (lacks_network, profile) {
        (true, Profile::Beside) => {
            let advice = "no network plugin was found: install one first, the profile `beside` needs it";
            Check::new("nodes", Fail, found, advice)
        }
        (true, Profile::Primary) => {
            let advice = "expected without a network plugin: the nodes become ready with the agent";
            Check::new("nodes", Warn, found, advice)
        }
        (false, _) => {
            let advice = "pods on these nodes get their networks once the node is ready";
            Check::new("nodes", Warn, found, advice)
        }
    }
}

fn platform(nodes: &[&Value]) -> Check {
    let of = |node: &&Value| {
        format!(
            "{}/{}",
            text(node, "/status/nodeInfo/operatingSystem"),
            text(node, "/status/nodeInfo/architecture")
        )
    };
    let all: Vec<String> = nodes.iter().map(of).collect();
    let found = tally(all.iter().map(String::as_str));
    let others: Vec<&str> = nodes
        .iter()
        .zip(&all)
        .filter(|(_, platform)| *platform != "linux/amd64")
        .map(|(node, _)| name(node))
        .collect();
    if others.is_empty() {
        return Check::pass("platform", found);
    }
    let advice = format!(
        "the image is built for linux/amd64: build it for other platforms, or exclude {} from the DaemonSet",
        abbreviated(&others)
    );
    Check::new("platform", Fail, found, advice)
}

fn runtime(nodes: &[&Value]) -> Check {
    let versions: Vec<&str> =
        nodes.iter().map(|node| text(node, "/status/nodeInfo/containerRuntimeVersion")).collect();
    let found = tally(versions.iter().copied());
    let problems = nodes.iter().zip(&versions).filter_map(|(node, version)| {
        let kubelet = text(node, "/status/nodeInfo/kubeletVersion");
        runtime_problem(version, kubelet).map(|(verdict, advice)| (name(node), verdict, advice))
    });
    let mut problems: Vec<(&str, Verdict, String)> = problems.collect();
    problems.sort_by_key(|(_, verdict, _)| *verdict != Fail);
    match problems.into_iter().next() {
        Some((node, verdict, advice)) => Check::new("runtime", verdict, found, format!("{node}: {advice}")),
        None => Check::pass("runtime", found),
    }
}

/// The problem with this container runtime, if any. The kubelet's version identifies k3s, RKE2 and k0s.
fn runtime_problem(version: &str, kubelet: &str) -> Option<(Verdict, String)> {
    let (program, number) = version.split_once("://").unwrap_or((version, ""));
    let distribution = ["k3s", "rke2", "k0s"].into_iter().find(|name| kubelet.contains(&format!("+{name}")));
    match program {
        // The first versions with CRI v1.
        "containerd" if release(number)? < (1, 6) => {
            Some((Fail, format!("containerd {number} has no CRI v1: upgrade to 1.6 or newer")))
        }
        "cri-o" if release(number)? < (1, 23) => {
            Some((Fail, format!("CRI-O {number} has no CRI v1: upgrade to 1.23 or newer")))
        }
        "containerd" => distribution.map(|name| {
            (
                Warn,
                format!("{name} has the containerd socket in another directory: set criSocket of the agent"),
            )
        }),
        "cri-o" => Some((
            Warn,
            "the socket is /run/crio/crio.sock: mount /run/crio in the DaemonSet of the agent".into(),
        )),
        other => Some((
            Fail,
            format!("unsupported container runtime `{other}`: Knit supports containerd and CRI-O"),
        )),
    }
}

fn kernel(nodes: &[&Value]) -> Check {
    let versions: Vec<&str> = nodes.iter().map(|node| text(node, "/status/nodeInfo/kernelVersion")).collect();
    let found = tally(versions.iter().map(|version| version.trim()));
    let older_than = |minimum: (u32, u32)| -> Vec<&str> {
        let older = nodes
            .iter()
            .zip(&versions)
            .filter(|(_, version)| release(version).is_some_and(|number| number < minimum));
        older.map(|(node, _)| name(node)).collect()
    };
    let (unsupported, limited) = (older_than((5, 14)), older_than((5, 18)));
    if !unsupported.is_empty() {
        let advice = format!(
            "{}: before Linux 5.14 reused network namespaces cannot be detected, unless the feature was backported: run `knit doctor` on the node",
            abbreviated(&unsupported)
        );
        return Check::new("kernel", Fail, found, advice);
    }
    if !limited.is_empty() {
        let advice = format!(
            "{}: before Linux 5.18 addresses have no protocol field: Knit identifies its addresses by their link",
            abbreviated(&limited)
        );
        return Check::new("kernel", Warn, found, advice);
    }
    // The API server does not have the kernel configuration.
    Check::new("kernel", Verdict::Pass, found, "run `knit doctor` on the node to check kernel features")
}

/// The first two numbers of a version: `6.1.0-13-amd64`, `v1.36.4`.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim().trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The well-known network plugins of the cluster, by name.
fn plugins(facts: &ClusterFacts) -> BTreeSet<&'static str> {
    let names = facts.daemonsets.items().map(|set| text(set, "/metadata/name"));
    let known = names.filter_map(|name| PLUGINS.iter().find(|(prefix, _)| name.starts_with(prefix)));
    known.map(|(_, plugin)| *plugin).collect()
}

fn plugin(facts: &ClusterFacts, known: &BTreeSet<&str>, profile: Profile) -> Check {
    const NAME: &str = "network";
    const NONE: &str = "no DaemonSet of a well-known network plugin";
    if let ApiAnswer::Denied(message) = &facts.daemonsets {
        return Check::new(NAME, Unknown, message.clone(), "requires permission to list DaemonSets");
    }
    let names = known.iter().copied().collect::<Vec<_>>().join(", ");
    match (known.is_empty(), profile) {
        (true, Profile::Beside) => {
            let advice = "Knit does not change eth0; packet filters of the primary network do not apply to interfaces of Knit";
            Check::new(NAME, Warn, NONE, advice)
        }
        (false, Profile::Beside) => Check::pass(NAME, names),
        (true, Profile::Primary) => Check::pass(NAME, NONE),
        (false, Profile::Primary) => {
            let advice = "the profile `primary` replaces it: migrate the nodes as in docs/migrate-primary.md";
            Check::new(NAME, Warn, names, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(runtime: &str, kernel: &str) -> Value {
        json!({
            "metadata": {"name": "n1"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"containerRuntimeVersion": runtime, "kernelVersion": kernel, "kubeletVersion": "v1.36.4",
                    "operatingSystem": "linux", "architecture": "amd64"},
            },
        })
    }

    #[test]
    fn old_and_unsupported_container_runtimes_fail() {
        let verdict =
            |version: &str, kubelet: &str| runtime_problem(version, kubelet).map(|(verdict, _)| verdict);
        assert_eq!(verdict("containerd://2.4.2", "v1.36.4"), None);
        assert_eq!(verdict("containerd://1.5.9", "v1.36.4"), Some(Fail));
        assert_eq!(verdict("containerd://2.1.5-k3s1", "v1.36.4+k3s1"), Some(Warn));
        assert_eq!(verdict("cri-o://1.34.1", "v1.34.1"), Some(Warn));
        assert_eq!(verdict("cri-o://1.20.0", "v1.34.1"), Some(Fail));
        assert_eq!(verdict("docker://27.0.0", "v1.34.1"), Some(Fail));
    }

    #[test]
    fn old_kernels_fail_or_warn() {
        let verdict = |version: &str| kernel(&[&node("containerd://2.4.2", version)]).verdict;
        assert_eq!(verdict("6.1.0-13-amd64"), Verdict::Pass);
        assert_eq!(verdict("5.14.0-427.el9.x86_64"), Warn);
        assert_eq!(verdict("4.18.0-553.el8_10.x86_64"), Fail);
    }

    #[test]
    fn a_node_without_a_network_fails_and_other_unready_nodes_warn() {
        let with = |status: &str, reason: &str| {
            let mut node = node("containerd://2.4.2", "6.1.0");
            // The message is not read, only shown.
            let message = "cni network";
            node["status"]["conditions"][0] =
                json!({"type": "Ready", "status": status, "reason": reason, "message": message});
            node
        };
        let verdict = |node: &Value, has_plugin, profile| ready(&[node], has_plugin, profile).verdict;
        let no_network = with("False", "KubeletNotReady");
        assert_eq!(verdict(&no_network, false, Profile::Beside), Fail);
        assert_eq!(verdict(&no_network, false, Profile::Primary), Warn, "Knit will be its network");
        assert_eq!(verdict(&no_network, true, Profile::Beside), Warn, "it has another cause");
        assert_eq!(verdict(&with("Unknown", "NodeStatusUnknown"), false, Profile::Beside), Warn);
        let running = node("containerd://2.4.2", "6.1.0");
        assert_eq!(verdict(&running, false, Profile::Beside), Verdict::Pass);
    }

    #[test]
    fn long_lists_of_nodes_are_abbreviated() {
        assert_eq!(abbreviated(&["a", "b"]), "a, b");
        assert_eq!(abbreviated(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!(tally(["x", "y", "x"].into_iter()), "x (2 nodes), y");
    }
}
