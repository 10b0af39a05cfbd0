//! What nodes say of themselves: container runtime, kernel, architecture, and who connects pods.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Verdict::{Note, Unknown, Wrong};
use super::look::{Said, Seen};
use super::{Check, Verdict};

/// The DaemonSets of well-known network plugins: how their names begin, and what they are called.
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

/// Everything about nodes.
pub fn checks(seen: &Seen) -> Vec<Check> {
    if let Said::Refused(why) = &seen.nodes {
        let advice = "ask as someone who may list nodes";
        return vec![Check::new("nodes", Unknown, why.clone(), advice)];
    }
    let nodes: Vec<&Value> = seen.nodes.items().collect();
    if nodes.is_empty() {
        return vec![Check::new("nodes", Wrong, "there are none", "add a node")];
    }
    vec![ready(&nodes), platform(&nodes), runtime(&nodes), kernel(&nodes), plugin(seen)]
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn name(node: &Value) -> &str {
    text(node, "/metadata/name")
}

/// What nodes have of something, each with how many have it: `containerd://2.4.2 (3)`.
fn tally<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let words = counts.into_iter().map(|(value, count)| match count {
        1 => value.to_owned(),
        _ => format!("{value} ({count} nodes)"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// A list of names that stays readable.
fn some(names: &[&str]) -> String {
    match names {
        [a, b, c, _, rest @ ..] => format!("{a}, {b}, {c} and {} more", rest.len() + 1),
        few => few.join(", "),
    }
}

fn ready(nodes: &[&Value]) -> Check {
    let condition = |node: &Value| -> Option<(bool, String)> {
        let list = node["status"]["conditions"].as_array()?;
        let ready = list.iter().find(|condition| condition["type"] == "Ready")?;
        Some((ready["status"] == "True", text(ready, "/message").to_owned()))
    };
    let waiting: Vec<(&str, String)> = nodes
        .iter()
        .map(|node| (name(node), condition(node).unwrap_or((false, "says nothing".into()))))
        .filter(|(_, (ready, _))| !ready)
        .map(|(name, (_, why))| (name, why))
        .collect();
    let Some((_, why)) = waiting.first() else {
        return Check::fine("nodes", format!("{} of {} ready", nodes.len(), nodes.len()));
    };
    let names: Vec<&str> = waiting.iter().map(|(name, _)| *name).collect();
    let found = format!("{} not ready: {}: {why}", waiting.len(), some(&names));
    if why.contains("cni") || why.contains("network") {
        let advice = "Knit beside another network needs that network: install a CNI plugin first";
        return Check::new("nodes", Wrong, found, advice);
    }
    Check::new("nodes", Note, found, "pods there get their networks once the node is ready")
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
        return Check::fine("platform", found);
    }
    let advice = format!(
        "Knit's image is built for linux/amd64; build it for others, or keep the agent off {}",
        some(&others)
    );
    Check::new("platform", Wrong, found, advice)
}

fn runtime(nodes: &[&Value]) -> Check {
    let versions: Vec<&str> =
        nodes.iter().map(|node| text(node, "/status/nodeInfo/containerRuntimeVersion")).collect();
    let found = tally(versions.iter().copied());
    let worst = nodes.iter().zip(&versions).filter_map(|(node, version)| {
        let kubelet = text(node, "/status/nodeInfo/kubeletVersion");
        runtime_problem(version, kubelet).map(|(verdict, advice)| (name(node), verdict, advice))
    });
    let mut worst: Vec<(&str, Verdict, String)> = worst.collect();
    worst.sort_by_key(|(_, verdict, _)| *verdict != Wrong);
    match worst.into_iter().next() {
        Some((node, verdict, advice)) => Check::new("runtime", verdict, found, format!("{node}: {advice}")),
        None => Check::fine("runtime", found),
    }
}

/// What is in the way of finding pods by this runtime. Its version says what it speaks, the kubelet's how it was packed.
fn runtime_problem(version: &str, kubelet: &str) -> Option<(Verdict, String)> {
    let (program, number) = version.split_once("://").unwrap_or((version, ""));
    let packed = ["k3s", "rke2", "k0s"].into_iter().find(|word| kubelet.contains(&format!("+{word}")));
    match program {
        // The interface's version 1, which Knit speaks, came with these.
        "containerd" if release(number)? < (1, 6) => {
            Some((Wrong, format!("containerd {number} has no CRI v1: 1.6 or newer is needed")))
        }
        "cri-o" if release(number)? < (1, 23) => {
            Some((Wrong, format!("CRI-O {number} has no CRI v1: 1.23 or newer is needed")))
        }
        "containerd" => packed.map(|word| {
            (Note, format!("{word} keeps containerd's socket in a folder of its own: the agent has to be told its path"))
        }),
        "cri-o" => Some((Note, "the socket is /run/crio/crio.sock: the agent's DaemonSet has to mount /run/crio".into())),
        other => Some((Wrong, format!("pods are found by containerd or CRI-O, this is `{other}`"))),
    }
}

fn kernel(nodes: &[&Value]) -> Check {
    let versions: Vec<&str> = nodes.iter().map(|node| text(node, "/status/nodeInfo/kernelVersion")).collect();
    let found = tally(versions.iter().map(|version| version.trim()));
    let older = |than: (u32, u32)| -> Vec<&str> {
        let old = nodes
            .iter()
            .zip(&versions)
            .filter(|(_, version)| release(version).is_some_and(|number| number < than));
        old.map(|(node, _)| name(node)).collect()
    };
    let (ancient, old) = (older((5, 14)), older((5, 18)));
    if !ancient.is_empty() {
        let advice = format!(
            "{}: a sandbox cannot be told from an older one before Linux 5.14, unless the distributor added it: ask `knit doctor` there",
            some(&ancient)
        );
        return Check::new("kernel", Wrong, found, advice);
    }
    if !old.is_empty() {
        let advice = format!(
            "{}: addresses carry no mark before Linux 5.18, the mark of their link counts",
            some(&old)
        );
        return Check::new("kernel", Note, found, advice);
    }
    // What a kernel was built with nobody can see from here.
    Check::new(
        "kernel",
        Verdict::Fine,
        found,
        "which kinds of links a kernel has, `knit doctor` says on the node",
    )
}

/// The first two numbers of a version: `6.1.0-13-amd64`, `v1.36.4`.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim().trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn plugin(seen: &Seen) -> Check {
    if let Said::Refused(why) = &seen.daemonsets {
        return Check::new("network", Unknown, why.clone(), "ask as someone who may list DaemonSets");
    }
    let names = seen.daemonsets.items().map(|set| text(set, "/metadata/name"));
    let mut known: Vec<&str> = names
        .filter_map(|name| PLUGINS.iter().find(|(begins, _)| name.starts_with(begins)))
        .map(|(_, plugin)| *plugin)
        .collect();
    known.sort_unstable();
    known.dedup();
    if known.is_empty() {
        let advice = "Knit leaves eth0 to whoever made it; if that one filters packets by address on the nodes, it sees none of Knit's interfaces";
        return Check::new("network", Note, "no DaemonSet of a plugin that is known by name", advice);
    }
    Check::fine("network", known.join(", "))
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
    fn a_runtime_is_known_by_its_name_and_new_enough() {
        let verdict =
            |version: &str, kubelet: &str| runtime_problem(version, kubelet).map(|(verdict, _)| verdict);
        assert_eq!(verdict("containerd://2.4.2", "v1.36.4"), None);
        assert_eq!(verdict("containerd://1.5.9", "v1.36.4"), Some(Wrong));
        assert_eq!(verdict("containerd://2.1.5-k3s1", "v1.36.4+k3s1"), Some(Note));
        assert_eq!(verdict("cri-o://1.34.1", "v1.34.1"), Some(Note));
        assert_eq!(verdict("cri-o://1.20.0", "v1.34.1"), Some(Wrong));
        assert_eq!(verdict("docker://27.0.0", "v1.34.1"), Some(Wrong));
    }

    #[test]
    fn a_kernel_is_judged_by_its_number() {
        let verdict = |version: &str| kernel(&[&node("containerd://2.4.2", version)]).verdict;
        assert_eq!(verdict("6.1.0-13-amd64"), Verdict::Fine);
        assert_eq!(verdict("5.14.0-427.el9.x86_64"), Note);
        assert_eq!(verdict("4.18.0-553.el8_10.x86_64"), Wrong);
    }

    #[test]
    fn a_node_without_a_network_is_wrong_and_any_other_that_is_not_ready_is_told() {
        let with = |message: &str| {
            let mut node = node("containerd://2.4.2", "6.1.0");
            node["status"]["conditions"][0] = json!({"type": "Ready", "status": "False", "message": message});
            ready(&[&node])
        };
        assert_eq!(with("container runtime network not ready: cni plugin not initialized").verdict, Wrong);
        assert_eq!(with("kubelet stopped posting node status").verdict, Note);
        assert_eq!(ready(&[&node("containerd://2.4.2", "6.1.0")]).verdict, Verdict::Fine);
    }

    #[test]
    fn long_lists_of_nodes_stay_short() {
        assert_eq!(some(&["a", "b"]), "a, b");
        assert_eq!(some(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!(tally(["x", "y", "x"].into_iter()), "x (2 nodes), y");
    }
}
