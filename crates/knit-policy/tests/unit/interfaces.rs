//! Policies about additional interfaces: compiled rules against the decision.

use std::net::IpAddr;

use knit_model::IfName;
use knit_policy::{
    Flow, LocalPod, PodNetworks, PolicyId, PolicyIndex, PolicyPod, Verdict, multi_network_policy,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::objects::{flows, namespaces, pods, spec};
use crate::packets::Tables;
use crate::support::{TestPod, tcp};

const NETWORK: &str = "VirtualNetwork/blue/lan";

fn lan() -> IfName {
    "lan0".parse().unwrap()
}

/// A cluster in which every pod but the last is on the network, with addresses that the cluster network does not know.
fn cluster(pods: &[TestPod]) -> PolicyIndex {
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&[]));
    index.set_pods(pods.iter().map(|pod| (pod.key(), PolicyPod { addresses: Vec::new(), ..pod.pod() })));
    let on_network = pods.split_last().map_or(&[][..], |(_, rest)| rest);
    let networks = on_network.iter().map(|pod| {
        let addresses: PodNetworks = [(NETWORK.to_owned(), vec![pod.v4(), pod.v6()])].into();
        (pod.key(), (pod.pod().uid, addresses))
    });
    index.set_all_pod_networks(networks);
    index
}

fn apply(index: &mut PolicyIndex, namespace: &str, name: &str, policy_for: &str, spec: &Value) {
    let id = PolicyId::multi_network(namespace, name);
    let (policy, warnings) = multi_network_policy::translate(id, Some(policy_for), spec);
    assert_eq!(warnings, [""; 0], "{spec}");
    index.apply_policy(policy);
}

/// The table of a pod with one interface on the network; `None` without policies.
fn table(index: &mut PolicyIndex, pod: &TestPod, uid: &str) -> Option<Tables> {
    let local = LocalPod { namespace: &pod.namespace, name: &pod.name, uid };
    index.compile_interfaces(local, &[(lan(), vec![NETWORK.to_owned()])]).map(Tables::of_pod)
}

fn accepts(table: Option<&Tables>, received: bool, flow: &Flow) -> bool {
    table.is_none_or(|table| table.accept_on(&lan(), received, flow))
}

/// Compares the tables of pods on the network with the decision about each connection that they receive or open.
fn compare(index: &mut PolicyIndex, pods: &[TestPod], on_network: &[TestPod]) {
    for pod in on_network {
        let table = table(index, pod, &pod.pod().uid);
        for flow in flows(pods) {
            let decision = index.evaluate_on(NETWORK, &flow);
            let is_own = |address: IpAddr| address == pod.v4() || address == pod.v6();
            // A pod reaches itself through `lo`.
            if flow.source == flow.destination {
                continue;
            }
            if is_own(flow.destination) {
                let expected = decision.ingress.is_allowed();
                assert_eq!(accepts(table.as_ref(), true, &flow), expected, "{flow:?}: {decision:?}");
            }
            if is_own(flow.source) {
                let expected = decision.egress.is_allowed();
                assert_eq!(accepts(table.as_ref(), false, &flow), expected, "{flow:?}: {decision:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn tables_of_pods_agree_with_the_decision(
        pods in pods(),
        policies in prop::collection::vec(spec(), 1..4),
        at in prop::collection::vec(0_usize..3, 4),
    ) {
        let mut index = cluster(&pods);
        for (number, spec) in policies.iter().enumerate() {
            let namespace = pods[at[number] % pods.len()].namespace.clone();
            let networks = ["VirtualNetwork/blue/lan", "other, VirtualNetwork/blue/lan", "other"][at[number]];
            apply(&mut index, &namespace, &format!("p{number}"), networks, spec);
        }
        let on_network = &pods[..pods.len() - 1];
        compare(&mut index, &pods, on_network);
        // Addresses of peers change without new rules.
        if let Some((first, rest)) = on_network.split_first() {
            index.set_pod_networks(&first.key(), None);
            compare(&mut index, &pods, rest);
        }
    }
}

fn three_pods() -> Vec<TestPod> {
    let pod = |number: u8, namespace: &str, name: &str, app: &str| TestPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: vec![("app".to_owned(), app.to_owned())],
        number,
        web: None,
    };
    vec![pod(1, "blue", "web", "a"), pod(2, "blue", "db", "b"), pod(3, "green", "other", "a")]
}

#[test]
fn a_policy_is_about_its_networks_and_peers_only_there() {
    let pods = three_pods();
    let mut index = cluster(&pods);
    let from_web = json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "a"}}}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": from_web}]});
    apply(&mut index, "blue", "db", "VirtualNetwork/lan", &spec);
    let db = table(&mut index, &pods[1], "uid-db").unwrap();
    assert!(db.accept_on(&lan(), true, &tcp(pods[0].v4(), pods[1].v4(), 80)));
    // It is selected, but not on the network.
    assert!(!db.accept_on(&lan(), true, &tcp(pods[2].v4(), pods[1].v4(), 80)));
    // Another interface, and connections from the pod.
    assert!(db.accept_on(&"eth0".parse().unwrap(), true, &tcp(pods[2].v4(), pods[1].v4(), 80)));
    assert!(db.accept_on(&lan(), false, &tcp(pods[1].v4(), pods[2].v4(), 80)));
    assert!(table(&mut index, &pods[0], "uid-web").is_none());
    let decision = index.evaluate_on(NETWORK, &tcp(pods[0].v4(), pods[1].v4(), 80));
    let policy = PolicyId::multi_network("blue", "db");
    assert_eq!(decision.ingress, Verdict::Allowed { policy, rule: 0 });
    // The cluster network is not affected.
    let compiled = index.compile([LocalPod { namespace: "blue", name: "db", uid: "uid-db" }]);
    assert!(compiled.pods[0].is_empty(), "{:?}", compiled.pods);
}

#[test]
fn a_pod_that_is_not_known_yet_is_closed_where_policies_are_about_its_network() {
    let pods = three_pods();
    let mut index = cluster(&pods);
    let closed = json!({"podSelector": {"matchLabels": {"app": "absent"}}});
    apply(&mut index, "blue", "closed", "VirtualNetwork/lan", &closed);
    let flow = tcp(pods[2].v4(), pods[0].v4(), 80);
    assert!(table(&mut index, &pods[0], "uid-web").is_none());
    let new = table(&mut index, &pods[0], "uid-new").unwrap();
    assert_eq!([true, false].map(|received| new.accept_on(&lan(), received, &flow)), [false, true]);
    assert!(table(&mut index, &pods[2], "uid-new").is_none(), "no policy of its namespace");
}

#[test]
fn addresses_of_the_pod_that_had_the_name_before_do_not_count() {
    let pods = three_pods();
    let mut index = cluster(&pods);
    let spec =
        json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{"from": [{"podSelector": {}}]}]});
    apply(&mut index, "blue", "db", "VirtualNetwork/lan", &spec);
    let reaches = |index: &mut PolicyIndex| {
        let db = table(index, &pods[1], "uid-db").unwrap();
        db.accept_on(&lan(), true, &tcp(pods[0].v4(), pods[1].v4(), 80))
    };
    assert!(reaches(&mut index));
    let replaced = PolicyPod { uid: "uid-2".to_owned(), ..pods[0].pod() };
    assert!(index.set_pod(&pods[0].key(), Some(replaced)).is_network_peer);
    assert!(!reaches(&mut index));
    let networks: PodNetworks = [(NETWORK.to_owned(), vec![pods[0].v4()])].into();
    assert!(index.set_pod_networks(&pods[0].key(), Some(("uid-2".to_owned(), networks))).is_network_peer);
    assert!(reaches(&mut index));
}
