//! NetworkAttachmentDefinitions of another namespace, on a running agent with a fake API server. Needs root.

use knit_testbed::{Testbed, eventually};
use serde_json::{Value, json};

use crate::support::api_server::{ApiServer, KNIT};
use crate::support::cluster_agent::{ClusterAgent, PODS, TIMEOUT, api_pod, mtu, wait_for_mtu};

const DEFINITIONS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";

/// A definition of the namespace `infra`, shared with this namespace.
fn definition(shared_with: &str) -> Value {
    let config = json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "storage0", "mtu": 1410,
        "ipam": {"type": "host-local", "subnet": "10.56.0.0/24"}});
    json!({"metadata": {"name": "storage", "namespace": "infra",
            "annotations": {"knit.opdev.io/shared-with": shared_with}},
        "spec": {"config": config.to_string()}})
}

#[test]
fn a_pod_joins_a_network_of_another_namespace_only_while_it_is_shared_with_its_own() {
    let testbed = Testbed::new("shared-nad");
    let host = testbed.host();
    let api = ApiServer::start(&host);
    api.put("/api/v1/nodes", json!({"metadata": {"name": "node1"}}));
    api.put(DEFINITIONS, definition("others"));
    let agent = ClusterAgent::start_with(&host, &api, |config| config.network_attachments.read = true);
    let pod = testbed.pod("a");
    let mut object = api_pod("a");
    object["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": "infra/storage"});
    let uid = api.put(PODS, object)["metadata"]["uid"].as_str().unwrap().to_owned();
    agent.start_sandbox("sandbox-a", &uid, &pod);

    let is_rejected = || {
        let state = api.get(&format!("{KNIT}/podnetworkstates"), "default", "a").unwrap_or_default();
        state.to_string().contains("infra/storage is not shared with namespace default")
    };
    for _ in 0..2 {
        eventually("the network is rejected", TIMEOUT, is_rejected);
        wait_for_mtu(&pod, "net1", None);
        assert_eq!(agent.leases(), 0);
        api.put(DEFINITIONS, definition("default"));
        wait_for_mtu(&pod, "net1", Some(1410));
        eventually("the rejection is withdrawn", TIMEOUT, || !is_rejected());
        // A running pod loses it.
        api.put(DEFINITIONS, definition("others"));
    }
    eventually("the network is rejected", TIMEOUT, is_rejected);
    assert_eq!(mtu(&pod, "net1"), None);
}
