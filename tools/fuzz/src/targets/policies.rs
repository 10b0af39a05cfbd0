//! NetworkPolicies and ClusterNetworkPolicies.

use std::net::IpAddr;

use knit_model::filter::FilterTable;
use knit_policy::{
    CLOSED, Flow, Labels, LocalPod, NamedPort, PodKey, PolicyId, PolicyIndex, PolicyNamespace, PolicyPod,
    Protocol, cluster_network_policy, dispatch, network_policy,
};
use serde_json::Value;

/// The `spec` of a policy in each line: translated, compiled, and evaluated for some connections.
pub(super) fn policies(data: &[u8]) {
    let mut index = PolicyIndex::default();
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let Ok(spec) = serde_json::from_slice::<Value>(line) else { continue };
        let name = format!("p{number}");
        let policy = match spec.get("tier") {
            Some(_) => cluster_network_policy::translate(PolicyId::of_cluster(name), &spec).0,
            None => Some(network_policy::translate(PolicyId::namespaced("shop", name), &spec).0),
        };
        if let Some(policy) = policy {
            index.apply_policy(policy);
        }
    }
    let namespace = |labels: Labels, isolated: bool| PolicyNamespace { labels, isolated };
    let shop = ("shop".to_owned(), namespace(labels("team", "blue"), false));
    let lab = ("lab".to_owned(), namespace(Labels::new(), true));
    index.set_namespaces([shop, lab].into());
    index.set_pods([pod("shop", "web", 1), pod("shop", "db", 2), pod("lab", "web", 3)]);
    let local = |name| LocalPod { namespace: "shop", name, uid: name };
    let compiled = index.compile([local("web"), local("db"), local("unknown")]);
    assert_eq!(compiled.pods.len(), 3);
    let used = compiled.pods.iter().flat_map(|pod| [&pod.ingress, &pod.egress]).flatten();
    for chain in used.filter(|chain| *chain != CLOSED) {
        assert!(compiled.tables.chains.contains_key(chain), "{chain}");
    }
    dispatch(&mut FilterTable::default(), &compiled.tables);
    let _ = index.peer_elements();
    for (source, destination) in [(1, 2), (2, 1), (3, 1), (1, 9), (9, 1), (1, 1)] {
        for (protocol, port) in [(6, 80), (17, 53), (132, 9), (1, 0)] {
            let (from, to) = (address(source), address(destination));
            let flow = Flow { source: from, destination: to, protocol, port, through_service: port == 9 };
            let decision = index.evaluate(&flow);
            if source == destination {
                assert!(decision.ingress.is_allowed() && decision.egress.is_allowed());
            }
        }
    }
}

fn pod(namespace: &str, name: &str, number: u8) -> (PodKey, PolicyPod) {
    let key = PodKey { namespace: namespace.to_owned(), name: name.to_owned() };
    let ports = vec![NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp, port: 80 }];
    let six = format!("fd00::{number}").parse().expect("the address is valid");
    let addresses = vec![address(number), six];
    (
        key,
        PolicyPod {
            uid: name.to_owned(),
            labels: labels("app", name),
            addresses,
            ports,
            ..PolicyPod::default()
        },
    )
}

fn labels(key: &str, value: &str) -> Labels {
    [(key.to_owned(), value.to_owned())].into()
}

fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}
