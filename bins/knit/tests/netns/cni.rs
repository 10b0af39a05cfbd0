//! CNI commands of a container runtime.

use std::time::Duration;

use crate::support::agent::{Machine, attach, netns, ports};
use crate::support::cni::{CniCall, addresses};
use knit_kni::v1;
use knit_testbed::{Dump, eventually};
use serde_json::json;

#[test]
fn add_works_in_each_cni_version_and_del_leaves_nothing() {
    let machine = Machine::new("cni-add");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let (host, inside) = (Dump::settled(&machine.host), Dump::settled(pod.namespace()));
    let path = netns(&pod);
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut add = CniCall::new(&machine, "ADD", "c1", &path).with("cniVersion", version);
        add.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=c1"
            .to_owned();
        let result = add.succeeded();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(addresses(&result).len(), 2, "{result}");
        assert_eq!(result["interfaces"][1]["name"], "eth0", "{result}");
        assert_eq!(result["interfaces"][1]["sandbox"], path.as_str());
        let routes = result["routes"].as_array().unwrap();
        assert!(
            routes.iter().any(|route| route["dst"] == "0.0.0.0/0" && route["gw"] == "10.75.0.1"),
            "{result}"
        );
        pod.ping("10.75.0.1").unwrap();

        let known = agent.pod("c1").unwrap();
        assert_eq!(
            (known.namespace.as_str(), known.name.as_str(), known.uid.as_str()),
            ("shop", "web", "u1")
        );
        assert_eq!(known.interfaces[0].provenance.as_ref().unwrap().dialect, "cni");
        if version >= "0.4.0" {
            CniCall { command: "CHECK", ..add.clone().with("prevResult", result.clone()) }.succeeded();
        }
        let del = CniCall {
            command: "DEL",
            started_at: knit_cni::boot_time_nanos(),
            ..add.with("prevResult", result)
        };
        assert_eq!(del.outcome().output, "");
        assert_eq!(agent.used_addresses(), 0);
        assert!(agent.pod("c1").is_none(), "with its last interface the sandbox is forgotten");
        eventually("the links are deleted", Duration::from_secs(20), || ports(&machine.host) == 0);
        inside.assert_unchanged(pod.namespace());
        host.assert_unchanged(&machine.host);
    }
}

#[test]
fn runtime_config_reaches_the_agent() {
    let machine = Machine::new("cni-asked");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let runtime_config = json!({
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"containerPort": 81}],
        "bandwidth": {"ingressRate": 8_000_000, "egressRate": 16_000_000},
        "ips": ["10.75.7.7/16"], "mac": "02:00:00:00:07:07",
        "dns": {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": ["ndots:5"]},
        "aliases": ["db"], "infinibandGUID": "c2:11",
    });
    let add = CniCall::new(&machine, "ADD", "c1", &netns(&pod))
        .with("runtimeConfig", runtime_config)
        .with("mtu", 1400);
    let outcome = add.outcome();
    let warnings = outcome.warnings.join("\n");
    assert!(warnings.contains("infinibandGUID"), "{warnings}");
    let result: serde_json::Value = serde_json::from_str(&outcome.output).unwrap();
    assert!(addresses(&result).contains(&"10.75.7.7".to_owned()), "{result}");
    assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:07:07");
    assert_eq!(result["interfaces"][1]["mtu"], 1400);
    assert_eq!(result["dns"]["nameservers"][0], "10.96.0.10");
    let known = agent.pod("c1").unwrap();
    let interface = &known.interfaces[0];
    assert_eq!(interface.port_mappings.len(), 1);
    let limits = interface.bandwidth.unwrap();
    assert_eq!((limits.ingress_bits, limits.egress_bits), (8_000_000, 16_000_000));
    assert_eq!(known.annotations["cni/aliases"], "db");
}

#[test]
fn in_a_chain_the_previous_result_is_extended() {
    let machine = Machine::new("cni-chain");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let path = netns(&pod);
    let prior = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": path}],
        "ips": [{"address": "192.0.2.2/24", "interface": 1}],
    });
    let chained = CniCall::new(&machine, "ADD", "c1", &path).with("prevResult", prior.clone());
    let (code, message) = chained.failed();
    assert_eq!(code, 100, "{message}");
    assert!(message.contains("interface"), "{message}");

    let add = chained.with("interface", "knit1").with("defaultRoute", false);
    let result = add.succeeded();
    assert_eq!(result["interfaces"][0], prior["interfaces"][0]);
    assert_eq!(result["interfaces"][3]["name"], "knit1");
    assert_eq!(result["ips"][0], prior["ips"][0]);
    assert_eq!(result["ips"][1]["interface"], 3);
    CniCall { command: "CHECK", ..add.clone().with("prevResult", result.clone()) }.succeeded();
    CniCall { command: "DEL", started_at: knit_cni::boot_time_nanos(), ..add.with("prevResult", result) }
        .succeeded();
    assert_eq!(agent.used_addresses(), 0);
}

#[test]
fn gc_removes_only_attachments_of_its_network() {
    let machine = Machine::new("cni-gc");
    let pods = ["one", "two", "three"].map(|name| machine.testbed.pod(name));
    let agent = machine.agent();
    for (id, pod) in ["c1", "c2", "c3"].iter().zip(&pods) {
        let name = if *id == "c3" { "other" } else { "test" };
        CniCall::new(&machine, "ADD", id, &netns(pod)).with("name", name).succeeded();
    }
    let mut plugged = attach("c2", &netns(&pods[1]));
    plugged.interfaces = vec![v1::InterfaceSpec { name: "net1".to_owned(), ..Default::default() }];
    agent.try_attach(plugged).unwrap();

    let living = json!([{"containerID": "c1", "ifname": "eth0"}]);
    let gc = CniCall::new(&machine, "GC", "", "").with("cni.dev/valid-attachments", living);
    let warnings = gc.outcome().warnings.join("\n");
    assert!(warnings.contains("collected eth0 of container c2"), "{warnings}");
    let names = |id: &str| {
        let pod = agent.pod(id).unwrap();
        pod.interfaces.into_iter().map(|interface| interface.name).collect::<Vec<_>>()
    };
    assert_eq!(names("c1"), ["eth0"]);
    assert_eq!(names("c2"), ["net1"], "what someone plugged in stays");
    assert_eq!(names("c3"), ["eth0"], "another network's");
    let log = machine.log();
    let audited = log.lines().any(|line| line.contains("collected") && line.contains("c2"));
    assert!(audited, "{log}");

    // No attachment of this network is valid.
    CniCall::new(&machine, "GC", "", "").succeeded();
    assert!(agent.pod("c1").is_none());
    assert_eq!(names("c2"), ["net1"]);
    assert_eq!(names("c3"), ["eth0"]);
}

#[test]
fn exhausted_addresses_keep_the_node_ready_and_fail_add() {
    let machine = Machine::new("cni-status");
    let pods = ["one", "two"].map(|name| machine.testbed.pod(name));
    let ranges = ["--cluster-ranges", "10.75.0.0/30"];
    let _agent = machine.agent_with(&ranges, &[]);
    let status = CniCall::new(&machine, "STATUS", "", "");
    status.succeeded();
    CniCall::new(&machine, "ADD", "c1", &netns(&pods[0])).succeeded();
    // A node that is not ready would have its pods evicted.
    status.succeeded();
    let (code, message) = CniCall::new(&machine, "ADD", "c2", &netns(&pods[1])).failed();
    assert_eq!(code, 11, "an address may become free: {message}");
    CniCall::new(&machine, "DEL", "c1", "").succeeded();
    let (code, _) = status.with("cniVersion", "1.0.0").failed();
    assert_eq!(code, 1, "1.0.0 has no STATUS");
}
