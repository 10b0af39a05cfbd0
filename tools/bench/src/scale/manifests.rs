//! The objects of a large cluster: Nodes without a kubelet, their Pods, and Knit's objects of other namespaces.
//!
//! Nodes have the size of real ones, because every agent receives them: the kubelet lists up to 50 images in its Node.

use serde_json::{Value, json};

/// The number of Knit's objects in a namespace.
pub const OBJECTS_PER_NAMESPACE: usize = 10;
/// The number of images that a kubelet lists by default, `nodeStatusMaxImages`.
const IMAGES: usize = 50;
/// The largest number of nodes: each has a /24 of 10.0.0.0/11.
pub const MAX_NODES: usize = 8_192;

/// How many objects there are besides those of the measured node.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Nodes without a kubelet.
    pub nodes: usize,
    /// Pods of these nodes.
    pub pods: usize,
    /// Objects of Knit.
    pub objects: usize,
}

/// A request that creates an object.
pub struct Create {
    /// The path of the collection.
    pub path: String,
    /// The object.
    pub body: Value,
}

impl Load {
    /// The number of foreign namespaces.
    pub fn namespaces(self) -> usize {
        self.objects.div_ceil(OBJECTS_PER_NAMESPACE).max(1)
    }

    /// The path of a Pod.
    pub fn pod_path(self, number: usize) -> String {
        format!("/api/v1/namespaces/{}/pods/web-{number:06}", namespace(number % self.namespaces()))
    }

    /// A Pod. Pods are spread over namespaces and nodes.
    pub fn pod(self, number: usize) -> Create {
        let team = namespace(number % self.namespaces());
        let path = format!("/api/v1/namespaces/{team}/pods");
        let app = format!("service-{:02}", number / self.namespaces() % 40);
        let labels = json!({
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/instance": format!("{app}-{team}"),
            "app.kubernetes.io/part-of": "shop",
            "pod-template-hash": format!("{:010x}", number * 7919),
            "tier": (["frontend", "backend", "database"][number % 3]),
        });
        let container = json!({
            "name": "main",
            "image": format!("registry.example.com/{team}/{app}:v1.{}.0", number % 20),
            "ports": [{"name": "http", "containerPort": 8080}],
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
        });
        let body = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            // No node that runs receives it: without tracking the managers of its fields it is created faster.
            "metadata": {"name": format!("web-{number:06}"), "labels": labels, "managedFields": [{}]},
            "spec": {
                "nodeName": node_name(number % self.nodes),
                // Without a token no volume is added.
                "automountServiceAccountToken": false,
                "containers": [container],
            },
        });
        Create { path, body }
    }
}

/// The name of a foreign namespace.
pub fn namespace(number: usize) -> String {
    format!("team-{number:04}")
}

/// The name of a foreign node.
pub fn node_name(number: usize) -> String {
    format!("worker-{number:05}")
}

/// The namespace itself.
pub fn create_namespace(number: usize) -> Create {
    let body = json!({"metadata": {"name": namespace(number), "labels": {"team": namespace(number)}}});
    Create { path: "/api/v1/namespaces".to_owned(), body }
}

/// The ServiceAccount of its pods, which the controller manager would create.
pub fn service_account(number: usize) -> Create {
    let path = format!("/api/v1/namespaces/{}/serviceaccounts", namespace(number));
    Create { path, body: json!({"metadata": {"name": "default"}}) }
}

/// A Node with ranges for its pods. Its addresses are not on the measured node's link, so that its pods are reached through
/// the overlay: that takes more of the kernel and of the agent than a route.
pub fn node(number: usize) -> Create {
    let name = node_name(number);
    let [high, low] = [number / 256, number % 256];
    let ranges = [format!("10.{high}.{low}.0/24"), format!("fd00:a000:0:{number:x}::/64")];
    let resources = json!({
        "cpu": "32", "memory": "131072000Ki", "pods": "110", "ephemeral-storage": "204800000Ki",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    let body = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "large",
                "topology.kubernetes.io/region": "region-1",
                "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"podCIDR": ranges[0], "podCIDRs": ranges, "providerID": format!("cloud:///region-1/{name}")},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": format!("100.64.{high}.{low}")},
                {"type": "InternalIP", "address": format!("fd00:64::{number:x}")},
                {"type": "Hostname", "address": name},
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions(0),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Debian GNU/Linux 12 (bookworm)",
                "kernelVersion": "6.1.0-31-amd64", "kubeletVersion": "v1.36.4", "kubeProxyVersion": "",
                "containerRuntimeVersion": "containerd://2.4.2",
                "machineID": format!("{number:032x}"), "systemUUID": format!("{number:032x}"),
                "bootID": format!("{number:032x}"),
            },
            "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
        },
    });
    Create { path: "/api/v1/nodes".to_owned(), body }
}

/// The conditions that a kubelet reports, at a time in seconds of a day.
pub fn conditions(seconds: usize) -> Value {
    let time = format!("2026-01-01T{:02}:{:02}:{:02}Z", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": time, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

fn image(number: usize) -> Value {
    let name = format!("registry.example.com/images/service-{number:02}");
    let digest = format!("{:064x}", (number as u128 + 1) * 0x9e37_79b9_7f4a_7c15_f39c_c060);
    json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.4.{number}")], "sizeBytes": 48_000_000 + number})
}

/// The path of one of Knit's objects whose MTU can be changed.
pub fn link_path(number: usize) -> String {
    format!("{}/link-{}", collection(number, "podnetwork.opdev.io", "veths"), number % OBJECTS_PER_NAMESPACE)
}

/// Whether an object has an MTU: six of ten.
pub fn is_link(number: usize) -> bool {
    number % OBJECTS_PER_NAMESPACE < 6
}

/// One of Knit's objects: of ten in a namespace six are a Veth, two a PodConfig, two a PodRoute.
pub fn object(number: usize) -> Create {
    let within = number % OBJECTS_PER_NAMESPACE;
    let range = format!("172.20.{within}.0/24");
    let (group, plural, kind, spec) = match within {
        _ if is_link(number) => {
            let route = json!({"to": format!("172.21.{within}.0/24"), "via": format!("172.20.{within}.1")});
            let spec = json!({
                "interfaceName": format!("net{within}"), "master": format!("netbr{within}"), "cidr": range,
                "mtu": 1400, "alias": "storage", "routes": [route],
            });
            ("podnetwork.opdev.io", "veths", "Veth", spec)
        }
        6 | 7 => {
            let attachment =
                json!({"name": format!("pc{within}"), "master": format!("pcbr{within}"), "cidr": range});
            ("podconfig.opdev.io", "podconfigs", "PodConfig", json!({"networkAttachments": [attachment]}))
        }
        _ => {
            let route = json!({"to": range, "type": "unreachable"});
            ("podnetwork.opdev.io", "podroutes", "PodRoute", json!({"routes": [route]}))
        }
    };
    let body = json!({
        "apiVersion": format!("{group}/v1alpha1"),
        "kind": kind,
        "metadata": {"name": format!("link-{within}")},
        "spec": spec,
    });
    Create { path: collection(number, group, plural), body }
}

fn collection(object: usize, group: &str, plural: &str) -> String {
    let team = namespace(object / OBJECTS_PER_NAMESPACE);
    format!("/apis/{group}/v1alpha1/namespaces/{team}/{plural}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_paths_and_ranges_are_unique() {
        let load = Load { nodes: MAX_NODES, pods: 500, objects: 50 };
        let nodes: Vec<Value> = (0..load.nodes).map(|number| node(number).body).collect();
        for field in ["/metadata/name", "/spec/podCIDR", "/spec/podCIDRs/1", "/status/addresses/0/address"] {
            let values: BTreeSet<&str> =
                nodes.iter().filter_map(|node| node.pointer(field)?.as_str()).collect();
            assert_eq!(values.len(), load.nodes, "{field}");
        }
        let paths: BTreeSet<String> = (0..load.pods).map(|number| load.pod_path(number)).collect();
        assert_eq!(paths.len(), load.pods);
        assert_eq!(load.namespaces(), 5);
        assert!((0..load.pods).all(|number| {
            let Create { path, body } = load.pod(number);
            load.pod_path(number) == format!("{path}/{}", body["metadata"]["name"].as_str().unwrap())
        }));
    }

    #[test]
    fn ranges_stay_outside_the_test_clusters() {
        let last = node(MAX_NODES - 1).body;
        assert_eq!(last["spec"]["podCIDR"], "10.31.255.0/24");
        assert_eq!(last["status"]["addresses"][0]["address"], "100.64.31.255");
    }

    #[test]
    fn a_node_has_the_size_of_a_real_one() {
        let size = node(1).body.to_string().len();
        assert!((10_000..20_000).contains(&size), "{size}");
    }

    #[test]
    fn every_link_has_a_path_for_changes() {
        for number in (0..100).filter(|number| is_link(*number)) {
            let Create { path, body } = object(number);
            assert_eq!(link_path(number), format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()));
            assert_eq!(body["spec"]["mtu"], 1400);
        }
        assert_eq!((0..10).filter(|number| is_link(*number)).count(), 6);
    }
}
