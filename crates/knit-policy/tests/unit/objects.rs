//! Random objects: NetworkPolicies, ClusterNetworkPolicies, pods, and connections between them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_policy::{APP_LABEL, Flow, Labels, PolicyNamespace};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{TestPod, tcp};

pub const NAMESPACES: [&str; 3] = ["blue", "green", "red"];
const OUTSIDE: [&str; 3] = ["10.75.0.200", "192.0.2.9", "2001:db8::9"];

fn selector() -> impl Strategy<Value = Value> {
    let value = || prop::sample::select(vec!["a", "b"]);
    prop_oneof![
        2 => Just(json!({})),
        3 => value().prop_map(|value| json!({"matchLabels": {"app": value}})),
        1 => (value(), prop::sample::select(vec!["In", "NotIn"])).prop_map(|(value, operator)| {
            json!({"matchExpressions": [{"key": "app", "operator": operator, "values": [value]}]})
        }),
        1 => prop::sample::select(vec!["Exists", "DoesNotExist"])
            .prop_map(|operator| json!({"matchExpressions": [{"key": "app", "operator": operator}]})),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    let range = prop::sample::select(vec![
        json!({"cidr": "10.75.0.0/24", "except": ["10.75.0.2/31", "10.75.0.200/32"]}),
        json!({"cidr": "10.75.0.3/32"}),
        json!({"cidr": "0.0.0.0/0"}),
        json!({"cidr": "192.0.2.0/24"}),
        json!({"cidr": "fd75::/126", "except": ["fd75::2/128"]}),
        json!({"cidr": "2001:db8::/32"}),
    ]);
    prop_oneof![
        selector().prop_map(|pods| json!({"podSelector": pods})),
        selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (selector(), selector())
            .prop_map(|(namespaces, pods)| json!({"namespaceSelector": namespaces, "podSelector": pods})),
        range.prop_map(|range| json!({"ipBlock": range})),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"port": 80}),
        json!({"port": 80, "endPort": 90}),
        json!({"port": 85, "endPort": 100}),
        json!({"port": "web"}),
        json!({"protocol": "UDP"}),
        json!({"protocol": "UDP", "port": 80}),
        json!({"protocol": "TCP", "port": 8080}),
    ])
}

fn rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let rule = (prop::collection::vec(peer(), 0..3), prop::collection::vec(port(), 0..3));
    let rule = rule.prop_map(move |(all, ports)| json!({peers: all, "ports": ports}));
    prop::collection::vec(rule, 0..3).prop_map(Value::from)
}

pub fn spec() -> impl Strategy<Value = Value> {
    let types = prop::sample::select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
        json!([]),
    ]);
    (selector(), types, rules("from"), rules("to")).prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

/// A ClusterNetworkPolicy without its priority.
pub fn cluster_spec() -> impl Strategy<Value = Value> {
    let subject = || {
        prop_oneof![
            selector().prop_map(|namespaces| json!({"namespaces": namespaces})),
            (selector(), selector()).prop_map(|(namespaces, pods)| {
                json!({"pods": {"namespaceSelector": namespaces, "podSelector": pods}})
            }),
        ]
    };
    let networks = prop::sample::select(vec![
        json!({"networks": ["10.75.0.2/31", "fd75::2/127"]}),
        json!({"networks": ["0.0.0.0/0"]}),
        json!({"networks": ["192.0.2.0/24", "192.0.2.9/32", "2001:db8::/32"]}),
    ]);
    let protocol = prop::sample::select(vec![
        json!({"tcp": {"destinationPort": {"number": 80}}}),
        json!({"tcp": {"destinationPort": {"range": {"start": 85, "end": 100}}}}),
        json!({"udp": {}}),
        json!({"destinationNamedPort": "web"}),
    ]);
    let action = prop::sample::select(vec!["Accept", "Deny", "Pass"]);
    let protocols = move || prop::collection::vec(protocol.clone(), 0..3);
    let from = prop::collection::vec(subject(), 1..3);
    let ingress = (action.clone(), from, protocols()).prop_map(
        |(action, from, protocols)| json!({"action": action, "from": from, "protocols": protocols}),
    );
    let to = prop::collection::vec(prop_oneof![subject(), networks], 1..3);
    let egress = (action, to, protocols())
        .prop_map(|(action, to, protocols)| json!({"action": action, "to": to, "protocols": protocols}));
    let (ingress, egress) = (prop::collection::vec(ingress, 0..3), prop::collection::vec(egress, 0..3));
    let tier = prop::sample::select(vec!["Admin", "Baseline"]);
    (tier, subject(), ingress, egress).prop_map(|(tier, subject, ingress, egress)| {
        json!({"tier": tier, "subject": subject, "ingress": ingress, "egress": egress})
    })
}

pub fn pods() -> impl Strategy<Value = Vec<TestPod>> {
    let app = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let web = prop::option::of(prop::sample::select(vec![80u16, 8080]));
    let segment = prop::option::weighted(0.3, prop::sample::select(vec!["shop", "bank", ""]));
    let pod = (prop::sample::select(NAMESPACES.to_vec()), app, segment, web).prop_map(
        |(namespace, app, segment, web)| {
            let labels = [("app", app), (APP_LABEL, segment)];
            let labels =
                labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
            let (namespace, labels) = (namespace.to_owned(), labels.collect());
            TestPod { namespace, name: String::new(), labels, number: 0, web }
        },
    );
    prop::collection::vec(pod, 2..6).prop_map(|mut pods| {
        for (at, pod) in pods.iter_mut().enumerate() {
            (pod.name, pod.number) = (format!("pod{at}"), at as u8 + 1);
        }
        pods
    })
}

/// Namespace `blue` has the label `app: a`, `green` has `app: b`, `red` has none. Some are isolated.
pub fn namespaces(isolated: &[&str]) -> BTreeMap<String, PolicyNamespace> {
    let labels = |value: &str| Labels::from([("app".to_owned(), value.to_owned())]);
    [("blue", labels("a")), ("green", labels("b")), ("red", Labels::new())]
        .map(|(name, labels)| {
            (name.to_owned(), PolicyNamespace { labels, isolated: isolated.contains(&name) })
        })
        .into()
}

pub fn flows(pods: &[TestPod]) -> Vec<Flow> {
    let outside = OUTSIDE.iter().map(|text| text.parse::<IpAddr>().unwrap());
    let ends: Vec<IpAddr> = pods.iter().flat_map(|pod| [pod.v4(), pod.v6()]).chain(outside).collect();
    let mut flows = Vec::new();
    for source in &ends {
        for destination in ends.iter().filter(|one| one.is_ipv4() == source.is_ipv4()) {
            for port in [80, 88, 100, 8080] {
                flows.push(tcp(*source, *destination, port));
            }
            flows.push(Flow { through_service: true, ..tcp(*source, *destination, 80) });
            flows.push(Flow { protocol: 17, ..tcp(*source, *destination, 80) });
            flows.push(Flow { protocol: 1, ..tcp(*source, *destination, 0) });
        }
    }
    flows
}
